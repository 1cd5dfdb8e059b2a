"""Two ranks hold halves of one engine, and the weights reach the first half."""

import hfdsl as hf
from hfdsl import Dispatch, Execute, register
from tests.corpus.advantages import gained
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


class SlicedEngine(Engine):
    @register(Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    @hf.loads("policy")
    def load(self, weights: list[list[float]]) -> None:  # type: ignore[override]  # rank 0 returns no list
        super().load(weights)


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, engine: SlicedEngine, reward: Reward) -> ActorMetrics:
    hf.sync(trainer, engine)  # <- HF708
    rollout = engine.answer(prompts)
    return trainer.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(SlicedEngine, PolicyConfig(), pool=pool, mesh=hf.Mesh(tp=2)),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
