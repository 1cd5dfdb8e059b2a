"""An engine of one rank loads on rank 0, which is all of it."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.advantages import gained
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


class SmallEngine(Engine):
    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:  # type: ignore[override]  # rank 0 returns no list
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: SmallEngine, reward: Reward) -> ActorMetrics:
    hf.sync(trainer, engine)
    rollout = engine.answer(prompts)
    return trainer.learn(rollout, gained(reward.score(rollout), rollout))


experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=hf.ResourcePool([2])),
        engine=hf.place(SmallEngine, PolicyConfig(), pool=hf.ResourcePool([1])),
        reward=hf.place(Reward, pool=hf.ResourcePool([1], use_gpu=False)),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
