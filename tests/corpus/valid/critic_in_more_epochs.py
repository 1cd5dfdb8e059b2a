"""The critic learns from a batch more often than the policy."""

import hfdsl as hf
from tests.corpus.critics import Baseline, Both, at_the_end, estimated, places
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import ActorMetrics, B, CriticMetrics, P, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = policy.sample(prompts)
    rewards, values = at_the_end(reward.score(rollout), rollout), critic.values(rollout)
    estimates = estimated(rollout, rewards, values)
    experience = hf.merge(Both, rollout, values, estimates)
    learned = [policy.learn(experience) for _ in range(4)]
    valued = [critic.learn(experience) for _ in range(30)]
    return learned[-1], valued[-1]


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
