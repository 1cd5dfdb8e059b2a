"""The discount of an episode of 4 steps, for responses of 4 tokens: next to nothing of the score reaches the first."""

import hfdsl as hf
from tests.corpus.advantages import Experience
from tests.corpus.critics import Baseline, Targets, at_the_end, estimated, places
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import ActorMetrics, B, CriticMetrics, P, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = policy.sample(prompts)
    rewards, values = at_the_end(reward.score(rollout), rollout), critic.values(rollout)
    estimates = estimated(rollout, rewards, values, discount=0.05)  # <- HF948
    targets = hf.merge(Targets, rollout, values, estimates)
    return policy.learn(hf.merge(Experience, rollout, estimates)), critic.learn(targets)


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
