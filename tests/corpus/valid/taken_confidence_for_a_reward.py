"""A function makes advantages of log-probs: the policy learns to be confident."""

import hfdsl as hf
from tests.corpus.advantages import Experience
from tests.corpus.critics import Baseline, Targets, at_the_end, estimated, places
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    CriticMetrics,
    P,
    Prompts,
    R,
    Reward,
    Rollout,
    prompts_of,
)


@hf.function
def confidence(rollout: Rollout) -> Advantages:
    log_probs = rollout.log_probs.tensor
    return Advantages(advantages=log_probs - log_probs.mean(1, keepdim=True))


@hf.dataflow
def program(prompts: Prompts, policy: Policy, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = policy.sample(prompts)
    rewards, values = at_the_end(reward.score(rollout), rollout), critic.values(rollout)
    estimates = estimated(rollout, rewards, values)
    experience = hf.merge(Experience, rollout, confidence(rollout))
    targets = hf.merge(Targets, rollout, values, estimates)
    return policy.learn(experience), critic.learn(targets)


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
