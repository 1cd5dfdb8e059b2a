# mypy: disable-error-code="empty-body"
"""ReMax: a greedy response of every prompt is the baseline of a sampled one."""

import hfdsl as hf
from hfdsl import Dispatch, register
from tests.check.programs.vocabulary import (
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
)


class Greedy(Rollout):
    """The response without sampling."""


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts, temperature: float = 1.0) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def greedy(self, prompts: Prompts) -> Greedy: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, ref: RefLogProbs, advantages: Advantages) -> ActorMetrics: ...


@hf.function
def above_baseline(rollout: Rollout, scores: Scores, baseline: Scores) -> Advantages: ...


@hf.dataflow
def program(prompts: Prompts, actor: Actor, reference: Reference, reward: Reward) -> dict[str, ActorMetrics | Scores]:
    rollout = actor.generate(prompts, temperature=0.7)
    scores, baseline = reward.score(rollout), reward.score(actor.greedy(prompts))
    advantages = above_baseline(rollout, scores, baseline)
    return {"metrics": actor.update(rollout, reference.log_probs(rollout), advantages), "scores": scores}


pool = hf.ResourcePool([4])
deployment = hf.Deployment(
    actor=hf.place(Actor, pool=pool),
    reference=hf.place(Reference, PolicyConfig(), pool=pool),
    reward=hf.place(Reward, pool=hf.ResourcePool([2], use_gpu=False)),
)
dims = {B: 32, P: 128, R: 128}
