"""Dataflows over all ready-made roles, which the tests run on several meshes and backends."""

from __future__ import annotations

from typing import Any

import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.advantages import gae, spread_over_tokens
from hfdsl.rl.batches import (
    ActorMetrics,
    Advantages,
    AdvantagesAndReturns,
    B,
    CriticMetrics,
    Experience,
    ImitationMetrics,
    P,
    Prompts,
    R,
    ReferenceLogProbs,
    Rollout,
    Scores,
    Sequences,
    ValueExperience,
    Values,
)
from hfdsl.rl.losses import Clip, ClippedValue, PolicyLoss
from hfdsl.rl.models.sharding import local_part
from hfdsl.rl.rewards import token_rewards
from hfdsl.types.batches import schema
from tests.rl.workers import tiny

ROWS = 8
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: tiny.PROMPT, R: tiny.RESPONSE}
LOSS: PolicyLoss = Clip(0.2, kl=0.1, entropy=0.01)
ALONE: PolicyLoss = Clip(0.2, entropy=0.01)
"""A loss for experience without a reference."""


@hf.function
def estimated(rollout: Rollout, scores: Scores, values: Values) -> AdvantagesAndReturns:
    mask = rollout.response_mask.tensor
    advantage, returns = gae(token_rewards(scores.score.tensor, mask), values.values.tensor, mask)
    return AdvantagesAndReturns(advantage=advantage, returns=returns)


@hf.dataflow
def everything(
    prompts: Prompts, actor: w.Actor, critic: w.Critic, reference: w.Reference, reward: w.Reward
) -> tuple[Rollout, Rollout, ReferenceLogProbs, Scores, list[Values], list[ActorMetrics], list[CriticMetrics]]:
    rollout, greedy = actor.generate(prompts), actor.generate(prompts, greedy=True)
    values, ref = critic.values(rollout), reference.log_probs(rollout)
    scores = reward.score(prompts, rollout)
    estimates = estimated(rollout, scores, values)
    experience = hf.merge(Experience, rollout, estimates, ref)
    targets = hf.merge(ValueExperience, rollout, values, estimates)
    learned = [actor.update(experience, loss=LOSS) for _ in range(3)]
    valued = [critic.update(targets, loss=ClippedValue(0.01)) for _ in range(3)]
    return rollout, greedy, ref, scores, [values, critic.values(rollout)], learned, valued


@hf.dataflow
def policy(actor: w.Actor) -> dict[str, Any]:
    return actor.weights()


def tensors(batch: hf.Batch) -> dict[str, torch.Tensor]:
    columns = {name: getattr(batch, name) for name in schema(type(batch)).fields}
    return {name: column.tensor for name, column in columns.items() if column is not None}


def numbers(batch: hf.Batch) -> dict[str, float]:
    return {name: getattr(batch, name).value for name in schema(type(batch)).fields}


@hf.dataflow
def apart(
    prompts: Prompts, actor: w.Actor, sampler: w.Sampler, reward: w.Reward
) -> tuple[Rollout, Rollout, Rollout, ActorMetrics]:
    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts)
    likeliest, of_actor = sampler.generate(prompts, greedy=True), actor.generate(prompts, greedy=True)
    experience = hf.merge(Experience, rollout, advantages(rollout, reward.score(prompts, rollout)))
    return rollout, likeliest, of_actor, actor.update(experience, loss=ALONE)


@hf.function
def advantages(rollout: Rollout, scores: Scores) -> Advantages:
    return Advantages(advantage=spread_over_tokens(scores.score.tensor - 0.1, rollout.response_mask.tensor))


class Weighed(w.Actor):
    """An actor that tells how many numbers its process holds."""

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def held(self) -> int:
        moments = (moment for state in self.learner.optimizer.state.values() for moment in state.values())
        return sum(local_part(tensor).numel() for tensor in (*self.learner.parameters, *moments))


@hf.dataflow
def weighed(sequences: Sequences, actor: Weighed) -> tuple[ImitationMetrics, hf.PerRank[int]]:
    return actor.imitate(sequences), actor.held()
