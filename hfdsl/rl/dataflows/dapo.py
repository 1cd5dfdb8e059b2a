"""DAPO: groups whose responses are all right or all wrong are dropped, and the clip range is wider above than below.

Yu et al., 2025, DAPO: An Open-Source LLM Reinforcement Learning System at Scale: clip-higher (section 3.1), dynamic
sampling (3.2), a token-level loss (3.3), overlong reward shaping (3.4). A step samples more prompts than it needs: it
trains on ``rows`` responses of the groups that it keeps, and repeats them from the first if there are fewer.

``dapo`` is one round and one update. ``dapo_round`` and ``dapo_update`` sample until the batch is full, as the paper
does: ``hfdsl train`` runs rounds until the update has its rows.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience, Outcome, Prompts
from hfdsl.rl.functions import group_advantages, informative, length_penalized_scores, mixed, outcome
from hfdsl.rl.losses import Clip
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reward, Sampler


@hf.dataflow
def dapo(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 16,
    rows: int = 8192,
    updates: int = 16,
    longest: int = 20480,
    buffer: int = 4096,
    loss: Clip = Clip(0.2, 0.28, aggregation="token-mean"),
) -> tuple[ActorMetrics, Outcome]:
    """One step of DAPO."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    scores = reward.score(questions, rollout)
    shaped = length_penalized_scores(rollout, scores, longest=longest, buffer=buffer)
    advantages = group_advantages(rollout, shaped, group=group)
    choice = informative(scores, group=group)
    selected = hf.filter(hf.merge(Experience, rollout, advantages), choice.keep, group=group)
    parts = hf.minibatches(hf.fill(selected, rows), updates)
    metrics = [actor.update(part, loss=loss) for part in parts]
    return metrics[-1], outcome(rollout, scores)


@hf.dataflow
def dapo_round(
    prompts: Prompts,
    actor: Actor,
    reward: Reward,
    sampler: Sampler | None = None,
    *,
    group: int = 16,
    longest: int = 20480,
    buffer: int = 4096,
) -> tuple[Experience, Outcome]:
    """One round of dynamic sampling: the groups whose scores differ, which may be none."""
    questions = hf.repeat(prompts, group)
    rollout = sample(questions, actor, synced(actor, sampler))
    scores = reward.score(questions, rollout)
    shaped = length_penalized_scores(rollout, scores, longest=longest, buffer=buffer)
    advantages = group_advantages(rollout, shaped, group=group)
    choice = mixed(scores, group=group)
    selected = hf.filter(hf.merge(Experience, rollout, advantages), choice.keep, group=group)
    return selected, outcome(rollout, scores)


@hf.dataflow
def dapo_update(
    experience: Experience,
    actor: Actor,
    *,
    updates: int = 16,
    loss: Clip = Clip(0.2, 0.28, aggregation="token-mean"),
) -> ActorMetrics:
    """The updates of DAPO, on a batch that rounds have filled."""
    metrics = [actor.update(part, loss=loss) for part in hf.minibatches(experience, updates)]
    return metrics[-1]
