"""The trainer computes the old log-probs of what the engine sampled once, before all epochs."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.policies import Engine, Policy, experience_of
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, engine: Engine, reward: Reward) -> list[ActorMetrics]:
    rollout = engine.sample(prompts)
    old = policy.log_probs(rollout)
    experience = experience_of(rollout, old, gained(reward.score(rollout), rollout))
    metrics = [policy.learn(part) for part in hf.minibatches(experience, 2) * 2]
    hf.sync(policy, engine)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
