"""Functions and records that the programs on rows and samples share."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import bool_, f32
from tests.corpus.vocabulary import Advantages, B, R, RefLogProbs, Rollout, Scores, Values


class Verdicts(hf.Batch):
    keep: bool_[B]


class Experience(Rollout):
    advantages: f32[B, R]


@hf.function
def gained(scores: Scores, rollout: Rollout) -> Advantages:
    """The score of a response for each of its tokens."""
    return Advantages(advantages=scores.reward.tensor[:, None] * rollout.response_mask.tensor)


@hf.function(rows=hf.GroupedBy("group"))
def centered(scores: Scores, rollout: Rollout, *, group: int) -> Advantages:
    """Scores above the mean of their group."""
    groups = scores.reward.tensor.view(-1, group)
    gains = (groups - groups.mean(1, keepdim=True)).flatten()
    return Advantages(advantages=gains[:, None] * rollout.response_mask.tensor)


@hf.function
def passed(scores: Scores, *, least: float = 0.0) -> Verdicts:
    """The responses with a score of at least ``least``."""
    return Verdicts(keep=scores.reward.tensor >= least)


@hf.function(rows=hf.GroupedBy("group"))
def some_passed(scores: Scores, *, group: int) -> Verdicts:
    """The groups with a score above 0."""
    groups = scores.reward.tensor.view(-1, group)
    return Verdicts(keep=(groups >= 0).any(1).repeat_interleave(group))


@hf.function(rows=hf.Whole)
def pairs_passed(scores: Scores) -> Verdicts:
    """The pairs of questions, in eight rows, with a score above 0."""
    pairs = scores.reward.tensor.view(-1, 8)
    return Verdicts(keep=(pairs >= 0).any(1).repeat_interleave(8))


@hf.function
def above(scores: Scores, baseline: Scores, rollout: Rollout) -> Advantages:
    """Scores above those of a baseline."""
    gains = scores.reward.tensor - baseline.reward.tensor
    return Advantages(advantages=gains[:, None] * rollout.response_mask.tensor)


@hf.function
def less_values(rollout: Rollout, values: Values, scores: Scores) -> Advantages:
    """The score of a response less the value at each of its tokens."""
    gains = scores.reward.tensor[:, None] - values.values.tensor
    return Advantages(advantages=gains * rollout.response_mask.tensor)


@hf.function
def less_divergence(rollout: Rollout, ref: RefLogProbs, scores: Scores) -> Advantages:
    """The score of a response less the divergence from the reference at each of its tokens."""
    gains = scores.reward.tensor[:, None] - (rollout.log_probs.tensor - ref.ref_log_probs.tensor)
    return Advantages(advantages=gains * rollout.response_mask.tensor)
