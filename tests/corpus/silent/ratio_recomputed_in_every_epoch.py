"""The old log-probs are computed in the loop: from the second epoch on, the ratio is 1."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.policies import Policy, experience_of
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reward: Reward) -> list[ActorMetrics]:
    rollout = policy.sample(prompts)
    advantages = gained(reward.score(rollout), rollout)
    metrics = list[ActorMetrics]()
    for _ in range(2):
        old = policy.log_probs(rollout)
        parts = hf.minibatches(experience_of(rollout, old, advantages), 2)
        metrics += [policy.learn(part) for part in parts]  # <- HF335
    return metrics


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
