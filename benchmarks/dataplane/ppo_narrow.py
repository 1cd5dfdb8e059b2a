"""The chain as an hfdsl program that declares narrow dtypes, and no column that its reader can take from another."""

from __future__ import annotations

from typing import Literal

import hfdsl as hf
from benchmarks.dataplane.columns import CHAINS, NARROW, Body
from hfdsl import Add, Dispatch, f32, i32, i64, register, u8


class B(hf.Dim):
    """Rows: one prompt and its response."""


class P(hf.Dim):
    """Prompt tokens."""


class R(hf.Dim):
    """Response tokens."""


T = Add[P, R]


class Prompts(hf.Batch):
    prompts: i64[B, P]


class Tokens(hf.Batch):
    input_ids: i32[B, T]
    attention_mask: u8[B, T]


class Trained(Tokens):
    response_mask: u8[B, R]


class Rollout(Trained):
    old_log_probs: f32[B, R]


class Reference(hf.Batch):
    ref_log_probs: f32[B, R]


class Values(hf.Batch):
    values: f32[B, R]


class Scores(hf.Batch):
    token_level_scores: f32[B, R]


class Estimates(hf.Batch):
    advantages: f32[B, R]
    returns: f32[B, R]


class Digest(hf.Batch):
    digest: hf.Metric[int, Literal["sum"]]


class Actor(hf.Worker):
    def __init__(self, chain: str = "narrow", touch: bool = False) -> None:
        self._generate, self._update = (
            Body(CHAINS[chain], "generate", touch),
            Body(CHAINS[chain], "update_actor", touch),
        )

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout:
        return Rollout(**self._generate({"prompts": prompts.prompts.tensor}))

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, reference: Reference, advantages: f32[B, R]) -> Digest:
        return Digest(
            **self._update(
                {
                    "input_ids": rollout.input_ids.tensor,
                    "attention_mask": rollout.attention_mask.tensor,
                    "response_mask": rollout.response_mask.tensor,
                    "old_log_probs": rollout.old_log_probs.tensor,
                    "ref_log_probs": reference.ref_log_probs.tensor,
                    "advantages": advantages.tensor,
                }
            )
        )


class ReferencePolicy(hf.Worker):
    def __init__(self, chain: str = "narrow", touch: bool = False) -> None:
        self._body = Body(CHAINS[chain], "reference", touch)

    @register(Dispatch.THREE_D_PROTO)
    def log_probs(self, tokens: Tokens) -> Reference:
        return Reference(
            **self._body(
                {
                    "input_ids": tokens.input_ids.tensor,
                    "attention_mask": tokens.attention_mask.tensor,
                }
            )
        )


class Critic(hf.Worker):
    def __init__(self, chain: str = "narrow", touch: bool = False) -> None:
        self._estimate, self._update = (
            Body(CHAINS[chain], "estimate", touch),
            Body(CHAINS[chain], "update_critic", touch),
        )

    @register(Dispatch.THREE_D_PROTO)
    def estimate(self, tokens: Tokens) -> Values:
        return Values(
            **self._estimate(
                {
                    "input_ids": tokens.input_ids.tensor,
                    "attention_mask": tokens.attention_mask.tensor,
                }
            )
        )

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Trained, values: Values, returns: f32[B, R]) -> Digest:
        return Digest(
            **self._update(
                {
                    "input_ids": rollout.input_ids.tensor,
                    "attention_mask": rollout.attention_mask.tensor,
                    "response_mask": rollout.response_mask.tensor,
                    "values": values.values.tensor,
                    "returns": returns.tensor,
                }
            )
        )


class Reward(hf.Worker):
    def __init__(self, chain: str = "narrow", touch: bool = False) -> None:
        self._body = Body(CHAINS[chain], "score", touch)

    @register(Dispatch.THREE_D_PROTO)
    def score(self, tokens: Tokens) -> Scores:
        return Scores(
            **self._body(
                {
                    "input_ids": tokens.input_ids.tensor,
                    "attention_mask": tokens.attention_mask.tensor,
                }
            )
        )


_advantage = Body(NARROW, "advantage")


@hf.function
def advantage(values: Values, scores: Scores, response_mask: u8[B, R]) -> Estimates:
    return Estimates(
        **_advantage(
            {
                "values": values.values.tensor,
                "token_level_scores": scores.token_level_scores.tensor,
                "response_mask": response_mask.tensor,
            }
        )
    )


@hf.dataflow
def ppo(
    prompts: Prompts, actor: Actor, reference: ReferencePolicy, critic: Critic, reward: Reward
) -> tuple[Digest, Digest]:
    rollout = actor.generate(prompts)
    log_probs = reference.log_probs(rollout)
    values = critic.estimate(rollout)
    scores = reward.score(rollout)
    estimates = advantage(values, scores, rollout.response_mask)
    return critic.update(rollout, values, estimates.returns), actor.update(rollout, log_probs, estimates.advantages)


def deployment(ranks: int, colocated: bool, chain: str = "narrow", touch: bool = False) -> hf.Deployment:
    """Actor and reference on one pool, critic and reward on another; or all on one."""
    first = hf.ResourcePool([ranks], use_gpu=False, name="actor")
    second = first if colocated else hf.ResourcePool([ranks], use_gpu=False, name="critic")
    return hf.Deployment(
        actor=hf.place(Actor, chain, touch, pool=first),
        reference=hf.place(ReferencePolicy, chain, touch, pool=first),
        critic=hf.place(Critic, chain, touch, pool=second),
        reward=hf.place(Reward, chain, touch, pool=second),
    )
