# mypy: disable-error-code="empty-body"
"""The rollout engine of a diffusion model never receives the weights that the actor learns.

Seen: https://github.com/NVlabs/Long-RL/issues/29
Elsewhere: silent: samples come from the initial weights for the whole run, as a reader of the code suspects.
"""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.vocabulary import ActorMetrics, Advantages, B, P, Prompts, R, Rollout


class Trainer(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, advantages: Advantages) -> ActorMetrics: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[float]]: ...


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def prepare_rollout_engine(self, weights: dict[str, list[float]]) -> None: ...


@hf.function
def advantages_of(rollout: Rollout) -> Advantages: ...


@hf.dataflow
def step(prompts: Prompts, trainer: Trainer, engine: Engine) -> ActorMetrics:
    rollout = engine.generate(prompts)  # <- HF510
    return trainer.update(rollout, advantages_of(rollout))


train, serve = hf.ResourcePool([8]).split([4, 4])
experiment = hf.Experiment(
    step,
    hf.Deployment(trainer=hf.place(Trainer, pool=train), engine=hf.place(Engine, pool=serve)),
    dims={B: 64, P: 77, R: 16},
)
