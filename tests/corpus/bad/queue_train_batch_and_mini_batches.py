"""A batch of 128 prompts in 12 mini-batches of one synchronization.

Seen: https://github.com/verl-project/verl-omni/issues/628
Elsewhere: an assert: the training batch is the number of steps until a synchronization times the mini-batch.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1, late="wait")
    parts = hf.minibatches(batch, 12)  # <- HF310
    metrics = [learner.learn(part, gains(part, part)) for part in parts]
    hf.sync(learner, engine)
    return metrics[-1]


experiment = hf.Experiment(step, queue_places(), dims={B: 128, P: 512, R: 4})
