"""The dims, records and metrics of the algorithms. Nothing here loads torch."""

from __future__ import annotations

from typing import Any, Literal

import hfdsl as hf
from hfdsl import Add, bool_, f32, i64


class B(hf.Dim):
    """Rows: one prompt, or one prompt with its response."""


class P(hf.Dim):
    """Prompt tokens, left-padded."""


class R(hf.Dim):
    """Response tokens, right-padded."""


T = Add[P, R]

# -- what roles read and return


class Prompts(hf.Batch):
    """Prompts, and for each the row of its data set, which a verifier reads."""

    ids: i64[B, P]
    mask: bool_[B, P]
    task: hf.Obj[dict[str, Any], B]


class Sequences(hf.Batch):
    """Prompts with their responses.

    ``mask`` is false on padding; ``response_mask`` is true up to and with the end-of-sequence token.
    """

    ids: i64[B, T]
    mask: bool_[B, T]
    response_mask: bool_[B, R]


class Rollout(Sequences):
    """Responses that a policy generated, with its log-probs at that time; those of padding are 0.

    An update divides by ``log_probs``. An engine whose arithmetic differs from the trainer's also returns the
    ``engine_log_probs`` that it sampled with; a loss corrects for the gap between the two.
    """

    log_probs: f32[B, R]
    engine_log_probs: f32[B, R] | None = None


class ReferenceLogProbs(hf.Batch):
    """Log-probs of the same responses under another, frozen model."""

    ref_log_probs: f32[B, R]


class Values(hf.Batch):
    """A critic's estimate of the rest of a response, before each of its tokens."""

    values: f32[B, R]


class Scores(hf.Batch):
    """The score of a response as a whole."""

    score: f32[B]


class Costs(hf.Batch):
    """The cost of a response as a whole: its harm."""

    cost: f32[B]


class Rewards(hf.Batch):
    """The reward of each token."""

    rewards: f32[B, R]


class Informative(hf.Batch):
    """The rows that have something to learn from."""

    keep: bool_[B]


class Choices(hf.Batch):
    """Preferences in pairs of consecutive responses: 1 for the better one, -1 for the other, 0 for both in a tie."""

    preference: f32[B]


class Advantages(hf.Batch):
    """The advantage of each token: how much better than expected it is."""

    advantage: f32[B, R]


class AdvantagesAndReturns(Advantages):
    """Advantages, and the returns that a critic learns."""

    returns: f32[B, R]


class ScoredRollout(Rollout, Scores):
    """Responses with their scores: what a queue between sampling and training holds."""


class TokenVersions(hf.Batch):
    """The version of the policy that sampled each token: a number of trained batches; on padding that of the last."""

    token_versions: i64[B, R]


class VersionedRollout(Rollout, TokenVersions):
    """Responses that took new weights between tokens; each token has the log-prob under the weights that sampled it."""


class VersionedScoredRollout(ScoredRollout, TokenVersions):
    """Responses with the versions of their tokens and their scores, for a queue between sampling and training."""


class PolicyVersions(hf.Batch):
    """The versions of the policy that sampled a row, and of the one that learns from it: numbers of trained batches."""

    from_version: i64[B]
    to_version: i64[B]


class Experience(Rollout):
    """The input of a policy's update; the reference's log-probs are for losses with a KL term.

    Versions come from ``hfdsl.rl.functions.versions``, for an update that cannot know them: a function has changed
    them, or the rows are of several batches. ``token_versions`` are those of single tokens, and go before.
    """

    advantage: f32[B, R]
    ref_log_probs: f32[B, R] | None = None
    from_version: i64[B] | None = None
    to_version: i64[B] | None = None
    token_versions: i64[B, R] | None = None


class ValueExperience(Sequences):
    """The input of a critic's update."""

    values: f32[B, R]
    returns: f32[B, R]


class ActorCriticExperience(Experience, ValueExperience):
    """The inputs of a policy's update and of a critic's."""


class Pairs(Sequences):
    """Pairs of responses to one prompt, in consecutive rows: 1 at the better one and -1 at the other."""

    preference: f32[B]


class Preferences(Sequences):
    """Pairs of responses to one prompt, in consecutive rows, with the reference's log-probs and which is better."""

    ref_log_probs: f32[B, R]
    preference: f32[B]


# -- metrics: a rank returns its share of the whole batch's mean, and shares add up


class StepMetrics(hf.Batch):
    """One optimizer step: its loss, its tokens, the norm of the gradient before clipping, and the learning rate.

    The loss is that of the batch, in its own aggregation; the metrics of tokens that subclasses add are means over the
    tokens of the batch with every aggregation.
    """

    loss: hf.Metric[float, Literal["sum"]]
    tokens: hf.Metric[float, Literal["sum"]]
    grad_norm: hf.Metric[float, Literal["first"]]
    learning_rate: hf.Metric[float, Literal["first"]]


class ActorMetrics(StepMetrics):
    """One optimizer step of a policy.

    ``kl`` estimates how far it is from the policy that generated, by k3, and ``reference_kl`` how far from the
    reference, by the loss's estimator (0 without a reference's log-probs), both in nats per token; ``clipped`` is the
    share of tokens whose ratio the loss clips, ``entropy`` the policy's entropy in nats per token.

    The others compare the engine that sampled with the trainer; they are 0 if the trainer itself sampled.
    ``engine_gap`` is the mean of |log(trainer / engine)| over tokens, and ``engine_gap_max`` the largest, in nats;
    ``engine_kl`` estimates KL(engine || trainer) by k3, in nats per token; ``engine_outside`` is the share of tokens
    whose ratio the loss's correction truncates or masks.
    """

    kl: hf.Metric[float, Literal["sum"]]
    reference_kl: hf.Metric[float, Literal["sum"]]
    clipped: hf.Metric[float, Literal["sum"]]
    entropy: hf.Metric[float, Literal["sum"]]
    engine_gap: hf.Metric[float, Literal["sum"]]
    engine_gap_max: hf.Metric[float, Literal["max"]]
    engine_kl: hf.Metric[float, Literal["sum"]]
    engine_outside: hf.Metric[float, Literal["sum"]]


class ImitationMetrics(StepMetrics):
    """One optimizer step of a supervised stage; ``entropy`` is the policy's, in nats per token."""

    entropy: hf.Metric[float, Literal["sum"]]


class PreferenceMetrics(StepMetrics):
    """One optimizer step on preferences, over the pairs in which one response is better.

    ``loss`` and ``margin`` are means over these pairs; ``correct`` is the share in which the better response has the
    higher reward.
    """

    margin: hf.Metric[float, Literal["sum"]]
    correct: hf.Metric[float, Literal["sum"]]


class CriticMetrics(StepMetrics):
    """One optimizer step of a critic; ``clipped`` is the share of tokens whose value the loss clips."""

    clipped: hf.Metric[float, Literal["sum"]]


class Outcome(hf.Batch):
    """The quality of responses: mean score, share of scores of 1 or more, mean length, share shorter than R."""

    score: hf.Metric[float, Literal["mean"]]
    solved: hf.Metric[float, Literal["mean"]]
    length: hf.Metric[float, Literal["mean"]]
    ended: hf.Metric[float, Literal["mean"]]


class PairOutcome(hf.Batch):
    """The order of pairs by their scores, over the pairs in which one response is better.

    ``correct`` is the share in which the better response has the higher score, ``margin`` the mean difference of the
    scores.
    """

    correct: hf.Metric[float, Literal["mean"]]
    margin: hf.Metric[float, Literal["mean"]]


class Distance(hf.Batch):
    """The distance of a student from its teacher: KL(student || teacher) per token of its responses; their length."""

    kl: hf.Metric[float, Literal["mean"]]
    length: hf.Metric[float, Literal["mean"]]
