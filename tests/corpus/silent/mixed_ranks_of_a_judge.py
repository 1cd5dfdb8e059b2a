"""A role replaces scores by their place in the order, among the rows of its own GPU."""

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
    def places(self, scores: Scores) -> Scores:
        order = scores.reward.tensor.argsort().argsort()
        return Scores(reward=order.float())  # <- HF338


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reward: Reward, judge: Judge) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(rollout, gains(judge.places(reward.score(rollout)), rollout))


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
