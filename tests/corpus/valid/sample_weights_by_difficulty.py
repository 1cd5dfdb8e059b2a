"""Scores are weighted by what a judge says of the prompts."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.advantages import Experience, gained
from tests.corpus.policies import Policy
from tests.corpus.vocabulary import ActorMetrics, B, P, PolicyConfig, Prompts, R, Reward, Scores, prompts_of


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def rate(self, prompts: Prompts) -> Scores:
        return Scores(reward=prompts.ids.tensor.float().mean(1))


@hf.function
def weighted(scores: Scores, weights: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor * weights.reward.tensor)


@hf.dataflow
def program(prompts: Prompts, policy: Policy, judge: Judge, reward: Reward) -> ActorMetrics:
    rollout = policy.sample(prompts)
    scores = weighted(reward.score(rollout), judge.rate(prompts))
    return policy.learn(hf.merge(Experience, rollout, gained(scores, rollout)))


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Policy, PolicyConfig(), pool=pool),
        judge=hf.place(Judge, pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
