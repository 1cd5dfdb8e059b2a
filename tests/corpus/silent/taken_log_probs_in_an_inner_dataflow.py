"""An inner dataflow puts the experience together, of the wrong column."""

import hfdsl as hf
from tests.corpus.advantages import Experience
from tests.corpus.critics import Baseline, Targets, at_the_end, estimated, places
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import (
    ActorMetrics,
    B,
    CriticMetrics,
    Estimates,
    P,
    Prompts,
    R,
    Reward,
    Rollout,
    prompts_of,
)


@hf.dataflow
def learned(rollout: Rollout, estimates: Estimates, policy: Policy) -> ActorMetrics:
    experience = Experience(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        log_probs=rollout.log_probs,
        advantages=rollout.log_probs,  # <- HF347
    )
    return policy.learn(experience)


@hf.dataflow
def program(prompts: Prompts, policy: Policy, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = policy.sample(prompts)
    rewards, values = at_the_end(reward.score(rollout), rollout), critic.values(rollout)
    estimates = estimated(rollout, rewards, values)
    targets = hf.merge(Targets, rollout, values, estimates)
    return learned(rollout, estimates, policy), critic.learn(targets)


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
