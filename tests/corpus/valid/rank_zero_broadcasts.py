"""Rank 0 takes the weights, and a second call broadcasts them to the other ranks."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.advantages import gained
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


class SharingEngine(Engine):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:  # type: ignore[override]  # rank 0 returns no list
        super().load(weights)

    @register(Dispatch.ONE_TO_ALL)
    @hf.writes("policy")
    def share(self) -> None:
        self.table = self.axis("dp").broadcast(self.table)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: SharingEngine, reward: Reward) -> ActorMetrics:
    hf.sync(trainer, engine)
    engine.share()
    rollout = engine.answer(prompts)
    return trainer.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(SharingEngine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
