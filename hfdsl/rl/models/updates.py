"""Updates: every micro-batch's loss is its share of the loss of the whole batch.

Dim letters: B rows of a rank, b rows of a micro-batch, R response tokens.

An example
----------
Two ranks of ``dp`` have two rows each. The losses of their tokens, and the micro-batches that they go through::

    rank 0   row 0   1  2  3     micro-batch [row 0]
             row 1  10           micro-batch [row 1]
    rank 1   row 2   4  4        micro-batch [row 2, row 3]
             row 3   0  8

The batch has 8 tokens with a total of 32, so with ``token-mean`` its loss is 4. A mean over each micro-batch, then over
the micro-batches of a rank, then over ranks would give ((2 + 10) / 2 + 4) / 2 = 5, and with rows 0 and 1 in one
micro-batch (4 + 4) / 2 = 4: the update would depend on how rows happen to be split.

So the weights come first. ``token_weights`` counts the tokens of the whole batch (each rank counts its own, and one
all-reduce adds them up), and every token weighs 1/8 wherever it is. Micro-batches then yield 6/8, 10/8 and 16/8::

>>> import torch
>>> from hfdsl.rl.masked import token_weights
>>> losses = torch.tensor([[1., 2, 3], [10, 0, 0], [4, 4, 0], [0, 8, 0]])
>>> lengths = torch.tensor([[3], [1], [2], [2]])
>>> shares = losses * token_weights(torch.arange(3) < lengths)
>>> splits = [[0], [1], [2, 3]], [[0, 1], [2, 3]], [[3, 0, 2, 1]]
>>> [sum(float(shares[rows].sum()) for rows in split) for split in splits]
[4.0, 4.0, 4.0]

Why this is right: the loss is a sum over tokens, whose weights depend on the masks of the whole batch and on nothing
else. ``backward`` adds up gradients, and so does the all-reduce over ranks (``Learner.step``). Any split into
micro-batches and ranks is another bracketing of the same sum, so all of them give the same gradient, up to the order of
floating-point rounding. The other aggregations differ only in their weights. Metrics are sums of the same kind: ranks
return shares, which ``hf.Metric[float, "sum"]`` adds up. But only the loss has the weights of its aggregation. Every
other metric is a mean over the tokens of the batch, a rank's sum over all ranks' tokens: with the weights of
``sequence-mean-token-sum``, an entropy would be that of a whole response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from hfdsl.protocols.call import current_call
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.batches import (
    ActorMetrics,
    CriticMetrics,
    Experience,
    ImitationMetrics,
    Pairs,
    PreferenceMetrics,
    Preferences,
    Sequences,
    ValueExperience,
)
from hfdsl.rl.losses import DPO, BradleyTerry, ClippedValue, PolicyLoss, PreferenceTerms, imitation
from hfdsl.rl.masked import masked, masked_sum, token_weights
from hfdsl.rl.models.device import autocast
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.learning import Learner
from hfdsl.rl.models.micro_batches import MicroBatch, micro_batches
from hfdsl.rl.models.row_errors import bad_row, check_preferences
from hfdsl.rl.models.scoring import columns, response_log_probs, scored_columns, scores
from hfdsl.rl.workers.config import ActorConfig, CriticConfig
from hfdsl.types.batches import Batch, schema

TokenTerms = Mapping[str, torch.Tensor]
"""The terms of every token of a micro-batch, f32[b, r]: ``loss``, which has a gradient, and metrics."""


def policy_update(
    learner: Learner, experience: Experience, loss: PolicyLoss, config: ActorConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a policy on its experience: the columns of ``ActorMetrics``."""
    if not len(experience):
        return _nothing_learned(ActorMetrics)
    ids, mask, response_mask = columns(experience, learner.module)
    width = response_mask.shape[1]
    old, advantage = experience.log_probs.tensor.to(ids.device), experience.advantage.tensor.to(ids.device)
    reference = None if experience.ref_log_probs is None else experience.ref_log_probs.tensor.to(ids.device)
    engine = None if experience.engine_log_probs is None else experience.engine_log_probs.tensor.to(ids.device)

    staleness = None
    if type(loss).staleness_weights is not PolicyLoss.staleness_weights:
        staleness = _staleness(experience).to(ids.device)

    def terms(part: MicroBatch, token_mask: torch.Tensor) -> TokenTerms:
        inputs = part.sequences(ids, width), part.sequences(mask, width), part.length
        log_probs, entropy = learner.module(*inputs, "differentiable" if loss.entropy else "detached")
        policy_terms = loss(
            log_probs,
            part.response(old),
            part.response(advantage),
            token_mask,
            reference_log_probs=None if reference is None else part.response(reference),
            entropy=entropy,
            engine_log_probs=None if engine is None else part.response(engine),
            **({} if staleness is None else {"staleness": staleness[part.rows]}),
        )
        return {**policy_terms._asdict(), "entropy": entropy.detach()}

    loss_weights = loss.weights(response_mask, peers.all_reduce)
    step_columns = _optimizer_step(learner, mask, response_mask, loss_weights, terms, config, peers)
    gaps = masked(old - (old if engine is None else engine), response_mask).abs()
    return {**step_columns, "engine_gap_max": float(gaps.max()) if gaps.numel() else 0.0}


def _staleness(experience: Experience) -> torch.Tensor:
    """How many updates ago rows were sampled, i64[B, 1], or their tokens, i64[B, R].

    By their columns, else by the call's row versions.
    """
    if experience.token_versions is not None:
        learning = experience.to_version
        now = current_call().version if learning is None else learning.tensor[:, None]
        return now - experience.token_versions.tensor
    if experience.from_version is not None and experience.to_version is not None:
        return (experience.to_version.tensor - experience.from_version.tensor)[:, None]
    call = current_call()
    from_versions = [call.rows_version] * len(experience) if call.row_versions is None else call.row_versions
    return call.version - torch.tensor(from_versions)[:, None]


def sft_update(learner: Learner, sequences: Sequences, config: ActorConfig, peers: AxisGroup) -> dict[str, float]:
    """One step of a supervised stage: the columns of ``ImitationMetrics``."""
    if not len(sequences):
        return _nothing_learned(ImitationMetrics)
    ids, mask, response_mask = columns(sequences, learner.module)
    width = response_mask.shape[1]

    def terms(part: MicroBatch, token_mask: torch.Tensor) -> TokenTerms:
        inputs = part.sequences(ids, width), part.sequences(mask, width), part.length
        log_probs, entropy = learner.module(*inputs, "detached")
        return {"loss": imitation(log_probs, token_mask), "entropy": entropy.detach()}

    loss_weights = token_weights(response_mask, reduce=peers.all_reduce)
    return _optimizer_step(learner, mask, response_mask, loss_weights, terms, config, peers)


def dpo_update(
    policy: Policy, learner: Learner, preferences: Preferences, loss: DPO, config: ActorConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a policy on pairs of responses: the columns of ``PreferenceMetrics``.

    The loss of a pair is not a sum over rows, and micro-batches separate the rows of a pair. But by the chain rule its
    gradient is a sum over rows: d loss / d log-prob of a response, a number, times the gradient of that log-prob. A
    pass without gradients yields the log-probs and thus the numbers; the update then learns from number * log-prob, row
    by row.
    """
    if not len(preferences):
        return _nothing_learned(PreferenceMetrics)
    ids, mask, response_mask = columns(preferences, policy)
    width = response_mask.shape[1]
    current = response_log_probs(policy, ids, mask, response_mask, config.batching, config.training.autocast)
    reference = masked_sum(preferences.ref_log_probs.tensor.to(ids.device).double(), response_mask, -1).view(-1, 2)
    sums = masked_sum(current.double(), response_mask, -1).view(-1, 2).requires_grad_()
    sign = check_preferences(preferences.preference.tensor).to(ids.device).view(-1, 2)[:, 0]
    pair_terms = loss(*_better_first(sums, sign), *_better_first(reference, sign))
    shares, slope = _shares(pair_terms, sign, sums, peers)

    def terms(part: MicroBatch, token_mask: torch.Tensor) -> TokenTerms:
        log_probs, _ = policy(part.sequences(ids, width), part.sequences(mask, width), part.length)
        return {"loss": slope.flatten()[part.rows, None].to(log_probs.dtype) * log_probs}

    step_columns = _optimizer_step(learner, mask, response_mask, torch.ones_like(response_mask), terms, config, peers)
    return {**step_columns, **shares}


def ranking_update(
    scorer: Scorer, learner: Learner, pairs: Pairs, loss: BradleyTerry, config: CriticConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a reward model on pairs of responses: the columns of ``PreferenceMetrics``.

    As in ``dpo_update``: the gradient of a pair's loss is a number per row times the gradient of the row's score.
    """
    if not len(pairs):
        return _nothing_learned(PreferenceMetrics)
    ids, mask, response_mask = scored_columns(pairs, scorer)
    width = response_mask.shape[1]
    current = scores(scorer, pairs, config.batching, config.training.autocast).double().view(-1, 2).requires_grad_()
    sign = check_preferences(pairs.preference.tensor).to(ids.device).view(-1, 2)[:, 0]
    shares, slope = _shares(loss(*_better_first(current, sign)), sign, current, peers)

    def terms(part: MicroBatch, token_mask: torch.Tensor) -> TokenTerms:
        outputs = learner.module(part.sequences(ids, width), part.sequences(mask, width))[:, -part.length :]
        is_last = token_mask & (token_mask.flip(1).cumsum(1).flip(1) == 1)
        return {"loss": slope.flatten()[part.rows, None].to(outputs.dtype) * outputs * is_last}

    step_columns = _optimizer_step(learner, mask, response_mask, torch.ones_like(response_mask), terms, config, peers)
    return {**step_columns, **shares}


def _better_first(values: torch.Tensor, sign: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The values of the better and the worse responses of pairs [n, 2]; ``sign`` [n] is 1 if the first is better."""
    better = (sign < 0).long()
    return values.gather(1, torch.stack([better, 1 - better], 1)).unbind(1)


def _shares(
    pair_terms: PreferenceTerms, sign: torch.Tensor, values: torch.Tensor, peers: AxisGroup
) -> tuple[dict[str, float], torch.Tensor]:
    """This rank's shares of the means over pairs with a preference, and the slopes of the loss in ``values``."""
    decided = (sign != 0).double()
    pairs = peers.all_reduce(decided.sum()).clamp(min=1)
    shares = {name: (term * decided).sum() / pairs for name, term in pair_terms._asdict().items()}
    [slope] = torch.autograd.grad(shares["loss"], values)
    return {name: float(share.detach()) for name, share in shares.items()}, slope


def value_update(
    learner: Learner, experience: ValueExperience, loss: ClippedValue, config: CriticConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a critic: the columns of ``CriticMetrics``."""
    if not len(experience):
        return _nothing_learned(CriticMetrics)
    ids, mask, response_mask = columns(experience, learner.module)
    width = response_mask.shape[1]
    old, returns = experience.values.tensor.to(ids.device), experience.returns.tensor.to(ids.device)

    def terms(part: MicroBatch, token_mask: torch.Tensor) -> TokenTerms:
        outputs = learner.module(part.sequences(ids, width), part.sequences(mask, width))
        # The value of a state is at its last token, the one before the token that it leads to.
        values = outputs[:, -part.length - 1 : -1]
        return loss(values, part.response(old), part.response(returns), token_mask)._asdict()

    loss_weights = loss.weights(response_mask, peers.all_reduce)
    return _optimizer_step(learner, mask, response_mask, loss_weights, terms, config, peers)


def _nothing_learned(metrics: type[Batch]) -> dict[str, float]:
    """The metrics of an update without rows, as where a filter keeps none: it changes nothing, and all are 0."""
    return dict.fromkeys(schema(metrics).fields, 0.0)


def _optimizer_step(
    learner: Learner,
    mask: torch.Tensor,
    response_mask: torch.Tensor,
    loss_weights: torch.Tensor,
    terms: Callable[[MicroBatch, torch.Tensor], TokenTerms],
    config: ActorConfig | CriticConfig,
    peers: AxisGroup,
) -> dict[str, float]:
    """Learn from the loss of all tokens, and return the columns of the step with this rank's shares of the terms.

    ``loss_weights`` are those of the loss. Every other term is averaged over tokens.
    """
    sums: dict[str, list[torch.Tensor]] = {}
    detached_losses: list[tuple[MicroBatch, torch.Tensor]] = []

    # A generator, so that the learner runs the backward pass of a micro-batch and frees its activations before the
    # forward pass of the next one.
    def losses() -> Iterator[torch.Tensor]:
        parts = micro_batches(mask, response_mask.shape[1], config.batching)
        for part in learner.padded_to_peers(parts, peers):
            token_mask = part.token_mask(response_mask)
            with autocast(config.training.autocast, mask.device):
                token_terms = terms(part, token_mask)
            loss = masked(token_terms["loss"] * part.response(loss_weights).to(token_terms["loss"].dtype), token_mask)
            detached_losses.append((part, loss.detach()))
            for name, term in {**token_terms, "loss": loss}.items():
                sums.setdefault(name, []).append(masked_sum(term.detach().double(), token_mask))
            yield loss.sum()
        # Once, after the last micro-batch: reading a number waits for the GPU. No parameter has changed yet.
        _check_finite(detached_losses)

    optimizer_step = learner.step(losses(), peers)
    tokens = response_mask.sum().double()
    all_tokens = float(peers.all_reduce(tokens).clamp(min=1))
    totals = {name: float(torch.stack(parts).sum()) for name, parts in sums.items()}
    return {
        **{name: total if name == "loss" else total / all_tokens for name, total in totals.items()},
        "tokens": float(tokens),
        "grad_norm": optimizer_step.grad_norm,
        "learning_rate": optimizer_step.learning_rate,
    }


def _check_finite(losses: Sequence[tuple[MicroBatch, torch.Tensor]]) -> None:
    """Name the first row whose loss is not a finite number.

    Raises:
        HfError: HF811.
    """
    if torch.stack([loss.isfinite().all() for _, loss in losses]).all():
        return
    for part, loss in losses:
        for row, token in (~loss.isfinite()).nonzero().tolist():
            raise bad_row(int(part.rows[row]), f"the loss of its token {token} is {float(loss[row, token])}")
