"""Engine and learner share their GPUs in processes of their own, which run at the same time."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    Engine,
    Learner,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scored,
    gains,
    prompts_of,
)


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="wait")
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


pool, config = hf.ResourcePool([2]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=pool),
    engine=hf.place(Engine, config, pool=pool, colocate=False),
    reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
)
experiment = hf.Experiment(program, places, dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
