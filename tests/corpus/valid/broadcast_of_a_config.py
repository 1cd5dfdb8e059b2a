"""A plain Python object goes to every rank before it generates; a constant of the program in another call."""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    stop: tuple[str, ...] = ("</answer>",)


class Actor(Policy):
    sampling = Sampling()

    @register(Dispatch.ONE_TO_ALL)
    def configure(self, sampling: Sampling, seeds: list[int], name: str | None = None) -> str:
        self.sampling = sampling
        return f"{name}: {sampling.temperature} {len(seeds)}"

    @register(Dispatch.THREE_D_PROTO)
    def sample(self, prompts: Prompts, scale: float = 1.0, greedy: bool = False) -> Rollout:
        return super().generate(prompts)


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> tuple[hf.PerRank[str], Rollout]:
    configured = actor.configure(Sampling(temperature=0.7), [1, 2, 3], name="hot")
    return configured, actor.sample(prompts, 0.5, greedy=False)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([4]), mesh=hf.Mesh(dp=2, tp=2))),
    dims={B: 4, P: 3, R: 4},
    batches=prompts_of(4),
)
