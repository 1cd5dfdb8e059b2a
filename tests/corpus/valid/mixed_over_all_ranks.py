"""A role centers scores by the mean over the rows of all its ranks."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Scores,
    gains,
    prompts_of,
)


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def centered(self, scores: Scores) -> Scores:
        mean = self.axis("dp").all_reduce(scores.reward.tensor.mean(), "mean")
        return Scores(reward=scores.reward.tensor - mean)


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, judge: Judge) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gains(judge.centered(reward.score(rollout)), rollout))


pool = hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, PolicyConfig(), pool=pool),
        reward=hf.place(Reward, pool=pool),
        judge=hf.place(Judge, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
