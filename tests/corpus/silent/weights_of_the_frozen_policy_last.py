"""The engine gets the weights that learn, and those of the frozen policy over them."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, trainer: Trainer, frozen: Trainer, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.answer(prompts)  # <- HF510
    metrics = trainer.learn(rollout, gained(reward.score(rollout), rollout))
    hf.sync(trainer, engine)
    hf.sync(frozen, engine)
    return metrics


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
