"""The dataflow that samples and scores returns its rows from a queue, out of sight of the one that learns."""

import hfdsl as hf
from tests.corpus.vocabulary import ActorMetrics, B, Engine, Learner, P, Prompts, R, Reward, Scored, gains, queue_places


@hf.dataflow
def sampled(prompts: Prompts, engine: Engine, reward: Reward) -> Scored:
    rollout = engine.sample(prompts)
    return hf.queue(hf.merge(Scored, rollout, reward.score(rollout)), lag=1, late="wait")  # <- HF741


@hf.dataflow
def program(prompts: Prompts, learner: Learner, engine: Engine, reward: Reward) -> ActorMetrics:
    batch = sampled(prompts, engine, reward)
    metrics = learner.learn(batch, gains(batch, batch))
    hf.sync(learner, engine)
    return metrics


experiment = hf.Experiment(program, queue_places(), dims={B: 64, P: 512, R: 4})
