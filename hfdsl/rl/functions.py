"""The functions of the dataflows: formulas of rewards and advantages, on records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hfdsl as hf
from hfdsl.rl.batches import (
    Advantages,
    AdvantagesAndReturns,
    Choices,
    Costs,
    Distance,
    Informative,
    Outcome,
    PairOutcome,
    Pairs,
    PolicyVersions,
    ReferenceLogProbs,
    Rewards,
    Rollout,
    Scores,
    Sequences,
    Values,
)
from hfdsl.rl.fields import Coefficient, Count, GroupSize, Share

if TYPE_CHECKING:
    import torch

# -- policies


@hf.function
def with_log_probs(rollout: Rollout, policy: ReferenceLogProbs) -> Rollout:
    """The rollout with another policy's log-probs of its tokens, such as those of the one that learns.

    So the ratio of an update starts at 1 even if a copy sampled in another precision or with older weights. The
    log-probs that the tokens were sampled with become ``engine_log_probs``, by which the loss corrects for the gap.

    >>> import torch
    >>> ids, mask = torch.tensor([[7, 4]]), torch.tensor([[True]])
    >>> rollout = Rollout(ids=ids, mask=ids > 0, response_mask=mask, log_probs=torch.tensor([[-1.5]]))
    >>> both = with_log_probs(rollout, ReferenceLogProbs(ref_log_probs=torch.tensor([[-1.25]])))
    >>> both.log_probs.tensor.item(), both.engine_log_probs.tensor.item()
    (-1.25, -1.5)
    """
    sampled = rollout.log_probs if rollout.engine_log_probs is None else rollout.engine_log_probs
    return Rollout(
        ids=rollout.ids.tensor,
        mask=rollout.mask.tensor,
        response_mask=rollout.response_mask.tensor,
        log_probs=policy.ref_log_probs.tensor,
        engine_log_probs=sampled,
    )


@hf.function
def versions(sequences: Sequences) -> PolicyVersions:
    """Behind a queue: the versions of the policy that sampled the rows, and of the one that learns from them.

    The difference is the staleness of a row, 0 to ``lag``. In a program without a queue it is 0.

    >>> import torch
    >>> from hfdsl.protocols.call import Call, in_call
    >>> ids = torch.tensor([[7, 4], [7, 5]])
    >>> sequences = Sequences(ids=ids, mask=ids > 0, response_mask=ids[:, 1:] > 0)
    >>> call = Call(seed=0, step=3, node=1, rank=0, first_row=0, row_count=2, version=3, row_versions=(2, 3))
    >>> with in_call(call):
    ...     behind = versions(sequences)
    >>> behind.to_version.tensor - behind.from_version.tensor
    tensor([1, 0])
    """
    import torch

    call, rows = hf.current_call(), len(sequences)
    from_version = [call.rows_version] * rows if call.row_versions is None else call.row_versions
    return PolicyVersions(from_version=torch.tensor(from_version), to_version=torch.full((rows,), call.version))


# -- rewards of tokens


@hf.function
def kl_penalized_rewards(
    rollout: Rollout, reference: ReferenceLogProbs, scores: Scores, *, kl: Coefficient = 0.05
) -> Rewards:
    """The score at the last token, less ``kl`` times the KL to the reference at every token.

    >>> import torch
    >>> mask, ids = torch.tensor([[True, True, False]]), torch.zeros(1, 5, dtype=torch.int64)
    >>> rollout = Rollout(ids=ids, mask=ids == 0, response_mask=mask, log_probs=torch.tensor([[-1.0, -2.0, 0.0]]))
    >>> reference = ReferenceLogProbs(ref_log_probs=torch.tensor([[-2.0, -2.0, 0.0]]))
    >>> kl_penalized_rewards(rollout, reference, Scores(score=torch.tensor([3.0])), kl=0.5).rewards.tensor.tolist()
    [[-0.5, 3.0, 0.0]]
    """
    from hfdsl.rl.rewards import kl_penalized, token_rewards

    mask, old, ref = rollout.response_mask.tensor, rollout.log_probs.tensor, reference.ref_log_probs.tensor
    return Rewards(rewards=kl_penalized(token_rewards(scores.score.tensor, mask), old, ref, mask, kl))


@hf.function
def kl_penalized_costs(
    rollout: Rollout, reference: ReferenceLogProbs, costs: Costs, *, kl: Coefficient = 0.05
) -> Rewards:
    """The cost at the last token, plus ``kl`` times the KL to the reference at every token.

    >>> import torch
    >>> mask, ids = torch.tensor([[True, True, False]]), torch.zeros(1, 5, dtype=torch.int64)
    >>> rollout = Rollout(ids=ids, mask=ids == 0, response_mask=mask, log_probs=torch.tensor([[-1.0, -2.0, 0.0]]))
    >>> reference = ReferenceLogProbs(ref_log_probs=torch.tensor([[-2.0, -2.0, 0.0]]))
    >>> kl_penalized_costs(rollout, reference, Costs(cost=torch.tensor([3.0])), kl=0.5).rewards.tensor.tolist()
    [[0.5, 3.0, 0.0]]
    """
    from hfdsl.rl.rewards import kl_penalized, token_rewards

    mask, old, ref = rollout.response_mask.tensor, rollout.log_probs.tensor, reference.ref_log_probs.tensor
    return Rewards(rewards=kl_penalized(token_rewards(costs.cost.tensor, mask), old, ref, mask, -kl))


@hf.function
def length_penalized_scores(sequences: Sequences, scores: Scores, *, longest: Count, buffer: Count) -> Scores:
    """Scores less up to 1 for responses that come within ``buffer`` tokens of the longest."""
    from hfdsl.rl.rewards import overlong_penalty

    return Scores(score=scores.score.tensor + overlong_penalty(sequences.response_mask.tensor, longest, buffer))


@hf.function(rows=hf.GroupedBy("group"))
def centered_scores(scores: Scores, *, group: GroupSize) -> Scores:
    """Scores above the mean of the responses to one prompt, to be rewards of tokens."""
    from hfdsl.rl.advantages import group_centered

    return Scores(score=group_centered(scores.score.tensor, group))


# -- advantages


@hf.function
def generalized_advantages(
    sequences: Sequences, rewards: Rewards, values: Values, *, gamma: Share = 1.0, lam: Share = 0.95
) -> AdvantagesAndReturns:
    """Generalized advantage estimates and returns.

    >>> import torch
    >>> ids, mask = torch.zeros(1, 4, dtype=torch.int64), torch.tensor([[True, True]])
    >>> sequences = Sequences(ids=ids, mask=ids == 0, response_mask=mask)
    >>> rewards, values = Rewards(rewards=torch.tensor([[0.0, 2.0]])), Values(values=torch.tensor([[1.0, 1.5]]))
    >>> estimates = generalized_advantages(sequences, rewards, values, lam=1.0)
    >>> estimates.advantage.tensor.tolist(), estimates.returns.tensor.tolist()
    ([[1.0, 0.5]], [[2.0, 2.0]])
    """
    from hfdsl.rl.advantages import gae

    mask = sequences.response_mask.tensor
    advantage, returns = gae(rewards.rewards.tensor, values.values.tensor, mask, gamma, lam)
    return AdvantagesAndReturns(advantage=advantage, returns=returns)


@hf.function(rows=hf.Whole)
def whitened_advantages(
    sequences: Sequences, rewards: Rewards, values: Values, *, gamma: Share = 1.0, lam: Share = 0.95
) -> AdvantagesAndReturns:
    """Generalized advantage estimates, whitened over the batch, and returns."""
    from hfdsl.rl.advantages import gae
    from hfdsl.rl.masked import whitened

    mask = sequences.response_mask.tensor
    advantage, returns = gae(rewards.rewards.tensor, values.values.tensor, mask, gamma, lam)
    return AdvantagesAndReturns(advantage=whitened(advantage, mask), returns=returns)


@hf.function
def safe_advantages(
    gains: AdvantagesAndReturns, harms: AdvantagesAndReturns, multiplier: float
) -> AdvantagesAndReturns:
    """The advantages of reward less ``multiplier`` times those of cost, over 1 + ``multiplier``; the returns of reward.

    >>> import torch
    >>> gains = AdvantagesAndReturns(advantage=torch.tensor([[1.0]]), returns=torch.tensor([[2.0]]))
    >>> harms = AdvantagesAndReturns(advantage=torch.tensor([[-0.5]]), returns=torch.tensor([[7.0]]))
    >>> safe = safe_advantages(gains, harms, multiplier=1.0)
    >>> safe.advantage.tensor.item(), safe.returns.tensor.item()
    (0.75, 2.0)
    """
    from hfdsl.rl import lagrangian

    advantage = lagrangian.safe_advantages(gains.advantage.tensor, harms.advantage.tensor, multiplier)
    return AdvantagesAndReturns(advantage=advantage, returns=gains.returns)


@hf.function(rows=hf.GroupedBy("group"))
def group_advantages(sequences: Sequences, scores: Scores, *, group: GroupSize) -> Advantages:
    """Scores normalized within the responses to one prompt.

    >>> import torch
    >>> mask = torch.ones(2, 3, dtype=torch.bool)
    >>> ids, real = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)
    >>> sequences = Sequences(ids=ids, mask=real, response_mask=mask)
    >>> advantages = group_advantages(sequences, Scores(score=torch.tensor([1.0, 0.0])), group=2)
    >>> advantages.advantage.tensor[:, 0].sign().tolist()
    [1.0, -1.0]
    """
    from hfdsl.rl.advantages import group_normalized, spread_over_tokens

    advantage = group_normalized(scores.score.tensor, group)
    return Advantages(advantage=spread_over_tokens(advantage, sequences.response_mask.tensor))


@hf.function(rows=hf.GroupedBy("group"))
def centered_advantages(sequences: Sequences, scores: Scores, *, group: GroupSize) -> Advantages:
    """Scores above the mean of the responses to one prompt."""
    from hfdsl.rl.advantages import group_centered, spread_over_tokens

    advantage = group_centered(scores.score.tensor, group)
    return Advantages(advantage=spread_over_tokens(advantage, sequences.response_mask.tensor))


@hf.function(rows=hf.GroupedBy("group"))
def leave_one_out_advantages(sequences: Sequences, rewards: Rewards, *, group: GroupSize) -> Advantages:
    """The reward of a whole response above the mean of the others to its prompt."""
    from hfdsl.rl.advantages import leave_one_out, spread_over_tokens
    from hfdsl.rl.masked import masked_sum

    mask = sequences.response_mask.tensor
    advantage = leave_one_out(masked_sum(rewards.rewards.tensor.double(), mask, dim=-1), group)
    return Advantages(advantage=spread_over_tokens(advantage, mask).float())


@hf.function(rows=hf.GroupedBy("group"))
def normalized_leave_one_out_advantages(sequences: Sequences, scores: Scores, *, group: GroupSize) -> Advantages:
    """Scores above the mean of the other responses to one prompt, over the others' standard deviation."""
    from hfdsl.rl.advantages import leave_one_out_normalized, spread_over_tokens

    advantage = leave_one_out_normalized(scores.score.tensor, group)
    return Advantages(advantage=spread_over_tokens(advantage, sequences.response_mask.tensor))


@hf.function(rows=hf.Whole)
def normalized_returns(sequences: Sequences, rewards: Rewards, *, gamma: Share = 1.0) -> Advantages:
    """The rewards from every token on, whitened over the batch.

    >>> import torch
    >>> ids, mask = torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 2, dtype=torch.bool)
    >>> sequences = Sequences(ids=ids, mask=ids == 0, response_mask=mask)
    >>> gains = normalized_returns(sequences, Rewards(rewards=torch.tensor([[0.0, 1.0], [0.0, -1.0]])))
    >>> gains.advantage.tensor.sign().tolist()
    [[1.0, 1.0], [-1.0, -1.0]]
    """
    from hfdsl.rl.advantages import globally_normalized

    return Advantages(advantage=globally_normalized(rewards.rewards.tensor, sequences.response_mask.tensor, gamma))


@hf.function
def advantages_over(sequences: Sequences, rewards: Rewards, baseline: Scores) -> Advantages:
    """The rewards from every token on, above the score of another response to the prompt."""
    from hfdsl.rl.advantages import above_baseline

    mask = sequences.response_mask.tensor
    return Advantages(advantage=above_baseline(rewards.rewards.tensor, baseline.score.tensor, mask))


@hf.function
def teacher_advantages(rollout: Rollout, teacher: ReferenceLogProbs) -> Advantages:
    """The teacher's log-prob of every token less the student's, in nats."""
    from hfdsl.rl.rewards import distillation_reward

    mask, old, ref = rollout.response_mask.tensor, rollout.log_probs.tensor, teacher.ref_log_probs.tensor
    return Advantages(advantage=distillation_reward(old, ref, mask))


# -- choices


@hf.function(rows=hf.Whole)
def informative(scores: Scores, *, group: GroupSize) -> Informative:
    """The groups whose scores differ; all groups if there is none."""
    from hfdsl.rl.advantages import in_groups

    groups = in_groups(scores.score.tensor, group, "spread")
    mixed = (groups != groups[:, :1]).any(1)
    return Informative(keep=(mixed | ~mixed.any()).repeat_interleave(group))


@hf.function(rows=hf.GroupedBy("group"))
def mixed(scores: Scores, *, group: GroupSize) -> Informative:
    """The groups whose scores are not all the same, which may be none.

    >>> import torch
    >>> mixed(Scores(score=torch.tensor([1.0, 0.0, 1.0, 1.0])), group=2).keep.tensor.tolist()
    [True, True, False, False]
    """
    from hfdsl.rl.advantages import in_groups

    groups = in_groups(scores.score.tensor, group, "spread")
    return Informative(keep=(groups != groups[:, :1]).any(1).repeat_interleave(group))


@hf.function(rows=hf.Grouped(2))
def better_of_two(scores: Scores) -> Choices:
    """The preference for the response with the higher score of two consecutive ones; that of a NaN is NaN."""
    from hfdsl.rl.advantages import in_groups

    first, second = in_groups(scores.score.tensor, 2, "preference").unbind(1)
    sign = (first > second).float() - (first < second).float()
    sign = sign.masked_fill(first.isnan() | second.isnan(), float("nan"))  # no tie
    return Choices(preference=sign[:, None].mul(sign.new_tensor([1.0, -1.0])).flatten())


# -- reports


@hf.function(rows=hf.Whole)
def outcome(sequences: Sequences, scores: Scores) -> Outcome:
    """The mean score, the share of solved responses, their mean length and the share that ended; 0 without rows.

    >>> import torch
    >>> mask = torch.tensor([[True, True, False], [True, True, True]])
    >>> ids, real = torch.zeros(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)
    >>> sequences = Sequences(ids=ids, mask=real, response_mask=mask)
    >>> result = outcome(sequences, Scores(score=torch.tensor([1.0, 0.0])))
    >>> result.solved.value, result.length.value, result.ended.value
    (0.5, 2.5, 0.5)
    """
    score, mask = scores.score.tensor, sequences.response_mask.tensor
    return Outcome(
        score=_mean(score),
        solved=_mean(score >= 1),
        length=_mean(mask.sum(1)),
        ended=_mean(~mask[:, -1]),
    )


@hf.function(rows=hf.Whole)
def pair_outcome(pairs: Pairs, scores: Scores) -> PairOutcome:
    """The share of pairs whose better response has the higher score, and the mean margin; 0 if none is better.

    Responses with the same score are not in order.

    >>> import torch
    >>> no, mask = torch.zeros(4, 3, dtype=torch.int64), torch.ones(4, 3, dtype=torch.bool)
    >>> sign, score = torch.tensor([1.0, -1, 1, -1]), torch.tensor([2.0, 0, 1, 1])
    >>> pairs = Pairs(ids=no, mask=mask, response_mask=mask[:, 1:], preference=sign)
    >>> result = pair_outcome(pairs, Scores(score=score))
    >>> result.correct.value, result.margin.value
    (0.5, 1.0)
    """
    first, second = scores.score.tensor.double().view(-1, 2).unbind(1)
    sign = pairs.preference.tensor.to(first.device).view(-1, 2)[:, 0].sign()
    margin = sign * (first - second)  # 0 where none is better
    decided = (sign != 0).sum().clamp(min=1)
    return PairOutcome(correct=float((margin > 0).sum() / decided), margin=float(margin.sum() / decided))


@hf.function(rows=hf.Whole)
def distance(rollout: Rollout, teacher: ReferenceLogProbs) -> Distance:
    """The distance of a student from its teacher, by k1; 0 without rows."""
    from hfdsl.rl.kl import kl_estimate
    from hfdsl.rl.masked import masked_mean

    mask = rollout.response_mask.tensor
    gap = kl_estimate(rollout.log_probs.tensor, teacher.ref_log_probs.tensor, "k1")
    return Distance(kl=float(masked_mean(gap, mask)), length=_mean(mask.sum(1)))


def _mean(values: torch.Tensor) -> float:
    """The mean over rows; 0 without rows, like the metrics of an update that gets none."""
    return float(values.double().mean()) if len(values) else 0.0
