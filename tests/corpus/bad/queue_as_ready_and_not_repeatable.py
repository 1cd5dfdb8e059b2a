"""The mode that should equal the synchronous trainer trains on whatever is ready.

Seen: https://github.com/verl-project/verl/issues/6780
Elsewhere: its curves differ from those of the synchronous trainer.
"""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def step(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    scored = hf.merge(Scored, rollout, reward.score(rollout))
    batch = hf.queue(scored, lag=1)  # <- HF743
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(step, queue_places(), dims={B: 64, P: 512, R: 4})
