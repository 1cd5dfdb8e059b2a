"""One policy class with or without a value head: the config says whether values are there, and PPO needs them."""

from dataclasses import dataclass

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    Advantages,
    B,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Sequences,
    prompts_of,
)


class Sampled(Rollout):
    values: f32[B, R] | None = None


@dataclass(frozen=True)
class HeadConfig(PolicyConfig):
    value_head: bool = True


class WithValueHead(Actor):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.value_head = config.value_head

    @register(Dispatch.THREE_D_PROTO)
    @hf.provides("values", when="value_head")
    def sample(self, prompts: Prompts) -> Sampled:
        rollout = super().generate(prompts)
        values = self.said(rollout.ids.tensor).mean(-1)
        return Sampled(
            ids=rollout.ids,
            response_mask=rollout.response_mask,
            log_probs=rollout.log_probs,
            values=f32(values) if self.value_head else None,
        )


@hf.function
def over_baseline(scores: Scores, values: f32[B, R]) -> Advantages:
    return Advantages(advantages=scores.reward.tensor[:, None] - values.tensor)


@hf.function
def value_range(sequences: Sequences, values: f32[B, R] | None) -> f32[B]:
    width = sequences.response_mask.tensor.sum(1)
    return f32(width * 0.0 if values is None else values.tensor.amax(1) - values.tensor.amin(1))


@hf.dataflow
def program(
    prompts: Prompts, actor: WithValueHead, plain: WithValueHead, reward: Reward
) -> tuple[ActorMetrics, f32[B]]:
    sampled, other = actor.sample(prompts), plain.sample(prompts)
    advantages = over_baseline(reward.score(sampled), hf.present(sampled.values))
    return actor.update(sampled, advantages), value_range(other, other.values)


pool = hf.ResourcePool([2])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(WithValueHead, HeadConfig(), pool=pool),
        plain=hf.place(WithValueHead, HeadConfig(value_head=False), pool=pool),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
