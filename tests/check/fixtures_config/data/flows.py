"""Dataflows and roles that configurations name."""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Prompts
from hfdsl.rl.functions import centered_advantages
from hfdsl.rl.losses import Clip, Reinforce
from hfdsl.rl.workers import Actor, Reward, Sampler


@hf.dataflow
def by_the_sampler(
    prompts: Prompts,
    actor: Actor,
    sampler: Sampler,
    reward: Reward,
    *,
    group: int = 2,
    loss: Clip | Reinforce = Clip(0.2),
) -> ActorMetrics:
    """A step whose ratios divide by the log-probs that the sampler gave to its tokens."""
    hf.sync(actor, sampler)
    questions = hf.repeat(prompts, group)
    rollout = sampler.generate(questions)
    advantages = centered_advantages(rollout, reward.score(questions, rollout), group=group)
    return actor.update(hf.merge(Experience, rollout, advantages), loss=loss)


@hf.dataflow
def learned(experience: Experience, actor: Actor, *, loss: Clip = Clip(0.2)) -> ActorMetrics:
    """An update by rows that are given."""
    return actor.update(experience, loss=loss)


class Forgetful(Sampler):
    """A sampler that keeps nothing of its weights in a checkpoint."""

    state = load_state = None  # type: ignore[assignment]  # as if it had none
