"""Decoupled PPO: the proximal policy is a newer one in every epoch, beside the log-probs of the sampling."""

import hfdsl as hf
from tests.corpus.advantages import gained
from tests.corpus.policies import Policy, ProximalExperience
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, reward: Reward) -> list[ActorMetrics]:
    rollout = policy.sample(prompts)
    advantages = gained(reward.score(rollout), rollout)
    metrics = list[ActorMetrics]()
    for _ in range(2):
        experience = ProximalExperience(
            ids=rollout.ids,
            response_mask=rollout.response_mask,
            log_probs=rollout.log_probs,
            proximal=policy.log_probs(rollout).log_probs,
            advantages=advantages.advantages,
        )
        metrics += [policy.learn_decoupled(part) for part in hf.minibatches(experience, 2)]
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
