"""The old values are those of the critic, within bounds."""

import hfdsl as hf
from hfdsl import f32
from tests.corpus.advantages import Experience
from tests.corpus.critics import Baseline, Targets, at_the_end, estimated, places
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import ActorMetrics, B, CriticMetrics, P, Prompts, R, Reward, Values, prompts_of


class Bounded(hf.Batch):
    bounded: f32[B, R]


@hf.function
def bounded(values: Values) -> Bounded:
    return Bounded(bounded=values.values.tensor.clamp(-1, 1))


@hf.dataflow
def program(prompts: Prompts, policy: Policy, critic: Baseline, reward: Reward) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = policy.sample(prompts)
    rewards, values = at_the_end(reward.score(rollout), rollout), critic.values(rollout)
    estimates = estimated(rollout, rewards, values)
    experience = hf.merge(Experience, rollout, estimates)
    targets = Targets(
        ids=rollout.ids,
        response_mask=rollout.response_mask,
        values=bounded(values).bounded,
        returns=estimates.returns,
    )
    return policy.learn(experience), critic.learn(targets)


experiment = hf.Experiment(program, places(), dims={B: 8, P: 3, R: 4}, batches=prompts_of(8))
