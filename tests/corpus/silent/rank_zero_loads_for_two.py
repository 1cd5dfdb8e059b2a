"""The engine's two ranks sample, and only rank 0 takes the weights that arrive."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.advantages import gained
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


class LazyEngine(Engine):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:  # type: ignore[override]  # rank 0 returns no list
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: LazyEngine, reward: Reward) -> ActorMetrics:
    rollout = engine.answer(prompts)
    metrics = trainer.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(trainer, engine)  # <- HF708
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(LazyEngine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
