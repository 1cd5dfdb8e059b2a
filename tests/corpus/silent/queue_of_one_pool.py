"""Engine and learner take turns on one pool, so that a lag makes rows older and no step shorter."""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, PolicyConfig, Prompts, R, Reward, Scored, gains


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=4, late="wait")  # <- HF754
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


pool, config = hf.ResourcePool([8]), PolicyConfig()
places = hf.Deployment(
    learner=hf.place(Learner, config, pool=pool),
    engine=hf.place(Engine, config, pool=pool),
    reward=hf.place(Reward, pool=pool),
)
experiment = hf.Experiment(program, places, dims={B: 64, P: 512, R: 4})
