"""The critic learns the reward of each token for its return."""

import hfdsl as hf
from tests.corpus.advantages import Experience
from tests.corpus.critics import Baseline, Targets, at_the_end, estimated, places
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import ActorMetrics, B, CriticMetrics, P, Prompts, R, Reward, prompts_of


@hf.dataflow
def program(prompts: Prompts, policy: Policy, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = policy.sample(prompts)
    rewards, values = at_the_end(reward.score(rollout), rollout), critic.values(rollout)
    estimates = estimated(rollout, rewards, values)
    experience = hf.merge(Experience, rollout, estimates)
    targets = Targets(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        values=values.values,
        returns=rewards.rewards,
    )
    return policy.learn(experience), critic.learn(targets)  # <- HF351


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
