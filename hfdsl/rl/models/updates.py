"""What an update does: losses of micro-batches whose weights make them shares of the whole batch's loss.

Dim letters: B rows of a rank, b rows of a micro-batch, R response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.batches import Experience, Preferences, Sequences, ValueExperience
from hfdsl.rl.losses import DPO, ClippedValue, PolicyLoss, imitation
from hfdsl.rl.masked import masked_sum, token_weights
from hfdsl.rl.models.device import autocast
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.learning import Learner
from hfdsl.rl.models.micro_batches import MicroBatch, micro_batches
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.models.scoring import columns, response_log_probs
from hfdsl.rl.workers.config import ActorConfig, CriticConfig

TokenTerms = Mapping[str, torch.Tensor]
"""What is known of every token of a micro-batch, f32[b, r]: ``loss``, which has a gradient, and metrics."""


def policy_update(
    learner: Learner, experience: Experience, loss: PolicyLoss, config: ActorConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a policy on its experience: the columns of ``ActorMetrics``."""
    ids, mask, response_mask = columns(experience)
    width = response_mask.shape[1]
    old, advantage = experience.log_probs.tensor.to(ids.device), experience.advantage.tensor.to(ids.device)
    reference = None if experience.ref_log_probs is None else experience.ref_log_probs.tensor.to(ids.device)

    def terms(part: MicroBatch, counted: torch.Tensor) -> TokenTerms:
        inputs = part.sequences(ids, width), part.sequences(mask, width), part.length
        log_probs, entropy = learner.module(*inputs, "differentiable" if loss.entropy else "detached")
        found = loss(
            log_probs,
            part.response(old),
            part.response(advantage),
            counted,
            reference_log_probs=None if reference is None else part.response(reference),
            entropy=entropy,
        )
        return {**found._asdict(), "entropy": entropy.detach()}

    weights = loss.weights(response_mask, peers.all_reduce)
    return _step(learner, mask, response_mask, weights, terms, config, peers)


def sft_update(learner: Learner, sequences: Sequences, config: ActorConfig, peers: AxisGroup) -> dict[str, float]:
    """One step of a supervised stage: the columns of ``ImitationMetrics``."""
    ids, mask, response_mask = columns(sequences)
    width = response_mask.shape[1]

    def terms(part: MicroBatch, counted: torch.Tensor) -> TokenTerms:
        log_probs, entropy = learner.module(
            part.sequences(ids, width), part.sequences(mask, width), part.length, "detached"
        )
        return {"loss": imitation(log_probs, counted), "entropy": entropy.detach()}

    weights = token_weights(response_mask, reduce=peers.all_reduce)
    return _step(learner, mask, response_mask, weights, terms, config, peers)


def dpo_update(
    policy: Policy, learner: Learner, preferences: Preferences, loss: DPO, config: ActorConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a policy on pairs of responses: the columns of ``PreferenceMetrics``.

    The gradient of a pair's loss is a number for each of its responses times the gradient of that response's log-prob.
    The numbers come from a pass without gradients; then every row goes its own way through the micro-batches.
    """
    ids, mask, response_mask = columns(preferences)
    width = response_mask.shape[1]
    now = response_log_probs(policy, ids, mask, response_mask, config.batching, config.training.autocast)
    reference = masked_sum(preferences.ref_log_probs.tensor.to(ids.device).double(), response_mask, -1).view(-1, 2)
    sums = masked_sum(now.double(), response_mask, -1).view(-1, 2).requires_grad_()
    first = preferences.preference.tensor.to(ids.device).view(-1, 2)[:, 0]
    chosen = (first < 0).long()  # which of the two
    order = torch.stack([chosen, 1 - chosen], 1)
    found = loss(*sums.gather(1, order).unbind(1), *reference.gather(1, order).unbind(1))
    decided = (first != 0).double()
    pairs = peers.all_reduce(decided.sum()).clamp(min=1)
    shares = {name: (term * decided).sum() / pairs for name, term in found._asdict().items()}
    [pull] = torch.autograd.grad(shares["loss"], sums)

    def terms(part: MicroBatch, counted: torch.Tensor) -> TokenTerms:
        log_probs, _ = policy(part.sequences(ids, width), part.sequences(mask, width), part.length)
        return {"loss": pull.flatten()[part.rows, None].to(log_probs.dtype) * log_probs}

    step = _step(learner, mask, response_mask, torch.ones_like(response_mask), terms, config, peers)
    return {**step, **{name: float(share.detach()) for name, share in shares.items()}}


def value_update(
    learner: Learner, experience: ValueExperience, loss: ClippedValue, config: CriticConfig, peers: AxisGroup
) -> dict[str, float]:
    """One step of a critic: the columns of ``CriticMetrics``."""
    ids, mask, response_mask = columns(experience)
    width = response_mask.shape[1]
    old, returns = experience.values.tensor.to(ids.device), experience.returns.tensor.to(ids.device)

    def terms(part: MicroBatch, counted: torch.Tensor) -> TokenTerms:
        values = learner.module(part.sequences(ids, width), part.sequences(mask, width))[:, -part.length - 1 : -1]
        return loss(values, part.response(old), part.response(returns), counted)._asdict()

    weights = loss.weights(response_mask, peers.all_reduce)
    return _step(learner, mask, response_mask, weights, terms, config, peers)


def _step(
    learner: Learner,
    mask: torch.Tensor,
    response_mask: torch.Tensor,
    weights: torch.Tensor,
    terms: Callable[[MicroBatch, torch.Tensor], TokenTerms],
    config: ActorConfig | CriticConfig,
    peers: AxisGroup,
) -> dict[str, float]:
    """Learn from the weighted terms of all tokens; this rank's shares of their sums, and what the step was."""
    sums: dict[str, list[torch.Tensor]] = {}
    losses_of: list[tuple[MicroBatch, torch.Tensor]] = []

    def losses() -> Iterator[torch.Tensor]:
        parts = micro_batches(mask, response_mask.shape[1], config.batching)
        for part in learner.evened(parts, peers):
            counted = part.token_mask(response_mask)
            with autocast(config.training.autocast, mask.device):
                found = terms(part, counted)
            shares = {name: _weighted(term, part.response(weights), counted) for name, term in found.items()}
            losses_of.append((part, shares["loss"].detach()))
            for name, share in shares.items():
                sums.setdefault(name, []).append(share.detach().double().sum())
            yield shares["loss"].sum()
        _check_finite(losses_of)  # at the end: a look at a number is a wait for the GPU

    step = learner.step(losses(), peers)
    return {
        **{name: float(torch.stack(shares).sum()) for name, shares in sums.items()},
        "tokens": float(response_mask.sum()),
        "grad_norm": step.grad_norm,
        "learning_rate": step.learning_rate,
    }


def _weighted(term: torch.Tensor, weights: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    return torch.where(counted, term * weights.to(term.dtype), torch.zeros((), dtype=term.dtype, device=term.device))


def _check_finite(losses: Sequence[tuple[MicroBatch, torch.Tensor]]) -> None:
    """Name the first row whose loss is no finite number.

    Raises:
        HfError: HF811.
    """
    if torch.stack([loss.isfinite().all() for _, loss in losses]).all():
        return
    for part, loss in losses:
        for row, token in (~loss.isfinite()).nonzero().tolist():
            raise bad_row(int(part.rows[row]), f"the loss of its token {token} is {float(loss[row, token])}")
