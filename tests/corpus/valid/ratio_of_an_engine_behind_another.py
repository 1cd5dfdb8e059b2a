"""Weights go from the policy to an engine by way of another one, whose log-probs the ratio takes."""

import hfdsl as hf
from tests.corpus.advantages import Experience, gained
from tests.corpus.policies import Engine, Policy
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, relay: Engine, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    metrics = policy.learn(hf.merge(Experience, rollout, gained(reward.score(rollout), rollout)))
    hf.sync(policy, relay)
    hf.sync(relay, engine)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool),
        relay=hf.place(Engine, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
