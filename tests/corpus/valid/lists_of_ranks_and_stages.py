"""One value a rank, one a pipeline stage: reduced in functions, and given back to the ranks that made them."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, PerRank, PerStage, register
from tests.corpus.vocabulary import Actor as Policy
from tests.corpus.vocabulary import B, P, PolicyConfig, Prompts, R, Rollout, prompts_of


class Actor(Policy):
    @register(Dispatch.ONE_TO_ALL)
    def memory(self) -> float:
        return 0.5 + self.rank

    @register(Dispatch.THREE_D_PP_ONLY)
    def layers(self) -> int:
        return 12

    @register(Dispatch.ALL_TO_ALL)
    def limit(self, memory: float) -> bool:
        return memory == 0.5 + self.rank

    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    def save(self, path: str) -> str:
        return path


@hf.function
def largest(memory: PerRank[float]) -> float:
    return max(memory)


@hf.function
def depth(layers: PerStage[int]) -> int:
    return sum(layers)


@hf.dataflow
def program(prompts: Prompts, actor: Actor) -> tuple[float, int, PerRank[bool], str, Rollout]:
    memory = actor.memory()
    done = actor.limit(memory)
    return largest(memory), depth(actor.layers()), done, actor.save("checkpoint"), actor.generate(prompts)


experiment = hf.Experiment(
    program,
    hf.Deployment(actor=hf.place(Actor, PolicyConfig(), pool=hf.ResourcePool([6]), mesh=hf.Mesh(pp=3, dp=2))),
    dims={B: 4, P: 3, R: 4},
    batches=prompts_of(4),
)
