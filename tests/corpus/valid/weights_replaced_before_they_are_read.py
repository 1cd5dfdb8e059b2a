"""The engine gets frozen weights for a moment, and those that learn before it answers."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, frozen: Trainer, engine: Engine, reward: Reward) -> ActorMetrics:
    hf.sync(frozen, engine)
    hf.sync(trainer, engine)
    rollout = engine.answer(prompts)
    return trainer.learn(rollout, gained(reward.score(rollout), rollout))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        frozen=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
