"""The engine answers for the policy, and a copy that is never trained gives the old log-probs."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.policies import Engine, Policy, experience_of
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, frozen: Policy, engine: Engine, reward: Reward) -> ActorMetrics:
    rollout = engine.sample(prompts)
    old = frozen.log_probs(rollout)
    advantages = gained(reward.score(rollout), rollout)
    metrics = policy.learn(experience_of(rollout, old, advantages))  # <- HF335
    hf.sync(policy, engine)
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool),
        frozen=hf.place(Policy, PolicyConfig(), pool=pool),
        engine=hf.place(Engine, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
