"""The policy learns from the second half twice, of a record of its own."""

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
    targets = hf.minibatches(hf.merge(Targets, rollout, values, estimates), 2)
    _, second = hf.minibatches(hf.merge(Experience, rollout, estimates), 2)
    valued = [critic.learn(part) for part in targets]
    learned = [policy.learn(second) for _ in targets]  # <- HF349
    return learned[-1], valued[-1]


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
