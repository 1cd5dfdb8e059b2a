"""One engine follows the policy, another one keeps the frozen weights for a baseline."""

import hfdsl as hf
from tests.corpus.advantages import above
from tests.corpus.valid.trainer_and_engine import Engine, Trainer
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(
    prompts: Prompts, trainer: Trainer, frozen: Trainer, engine: Engine, baseline: Engine, reward: Reward
) -> ActorMetrics:
    rollout = engine.answer(prompts)
    scores = reward.score(rollout)
    metrics = trainer.learn(rollout, above(scores, reward.score(baseline.answer(prompts)), rollout))
    hf.sync(trainer, engine)
    hf.sync(frozen, baseline)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        trainer=hf.place(Trainer, PolicyConfig(), pool=pool),
        frozen=hf.place(Trainer, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        baseline=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
