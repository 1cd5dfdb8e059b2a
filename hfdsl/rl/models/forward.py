"""Forward passes over given tokens: log-probs of responses, values, scores.

Dim letters: b rows of a micro-batch, t tokens, r response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.models.packing import allow_packing, packed, packed_states
from hfdsl.rl.models.parallel_layers import Sliced, gathered_slices, parallel_log_probs_and_entropies

MAX_LOGITS = 2**26
"""The most float32 logits that exist at a time: 256 MiB."""

Entropy: TypeAlias = Literal["none", "detached", "differentiable"]
"""Whether entropies are computed, and whether gradients flow through them."""


def positions(mask: torch.Tensor) -> torch.Tensor:
    """The positions of tokens, counted from the first one that is not padding, i64[b, t]."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def version_of(parameters: Iterable[nn.Parameter]) -> int:
    """A number from 1 that changes with torch's count of in-place writes to parameters."""
    return 1 + sum(parameter._version for parameter in parameters)


def hidden_states(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The backbone's last hidden state of every token, [b, t, H]."""
    output = model.base_model(input_ids=ids, attention_mask=mask.long(), position_ids=positions(mask), use_cache=False)
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


def cache_name(model: Any) -> str:
    """The name of the cache in a model's arguments and output; transformers renamed it in 5.24."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


class Policy(nn.Module):
    """A causal model that computes log-probs of responses, and may be sliced over the ranks of ``tp``.

    Logits are by far the largest tensor of a pass: 16,384 tokens of a vocabulary of 150,000 take 10 GB in float32. So
    hidden states go through the output layer in parts of at most ``MAX_LOGITS`` logits. With a gradient and more than
    one part, the backward pass recomputes logits instead of keeping them.
    """

    def __init__(self, model: Any, temperature: float, tp: AxisGroup, *, packing: bool = False) -> None:
        super().__init__()
        if packing:
            allow_packing(model)
        self.model, self.temperature, self.tp, self.packing = model, temperature, tp, packing
        self.slices = tp.size if isinstance(model.get_output_embeddings(), Sliced) else 1
        self.writes = 0
        self.cache_name = cache_name(model.base_model)
        self.export_dtype: torch.dtype | None = None  # of weights for other roles, if not that of this module

    @property
    def version(self) -> int:
        """A number from 1 that changes with every write of weights.

        It adds torch's count of in-place writes and a learner's own, since fused optimizers and writes to shards do not
        change torch's.
        """
        return version_of(self.parameters()) + self.writes

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, length: int, entropy: Entropy = "none"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The log-probs of the last ``length`` tokens, and the entropies of their distributions, f32[b, r] each.

        ``ids`` is i64[b, t] and ``mask`` bool[b, t]. Entropies are 0 with ``entropy="none"``; with packing, both are 0
        on padding.
        """
        # A token is predicted by the hidden state before it.
        chosen = ids[:, -length:]
        if not self.packing:
            hidden = hidden_states(self.model, ids, mask)[:, -length - 1 : -1]
            log_probs, entropies = self._scored(hidden.flatten(0, 1), chosen.flatten(), entropy)
            # FSDP attaches hooks to outputs, which must not be views.
            return log_probs.view(chosen.shape).clone(), entropies.view(chosen.shape).clone()
        rows, real = packed(mask, length), mask[:, -length:]
        hidden = packed_states(self.model, ids, rows)[rows.index()[:, -length:][real] - 1]
        columns = self._scored(hidden, chosen[real], entropy)
        log_probs, entropies = (column.new_zeros(chosen.shape).masked_scatter(real, column) for column in columns)
        return log_probs, entropies

    def _scored(
        self, hidden: torch.Tensor, chosen: torch.Tensor, entropy: Entropy
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The log-probs of tokens i64[n] after the states [n, H], and entropies."""
        chunk = max(1, MAX_LOGITS * self.slices // self.model.config.get_text_config().vocab_size)
        parts = list(zip(hidden.split(chunk), chosen.split(chunk), strict=True))
        recompute = torch.is_grad_enabled() and len(parts) > 1
        results = [
            checkpoint(self._score, *part, entropy, use_reentrant=False) if recompute else self._score(*part, entropy)
            for part in parts
        ]
        log_probs, entropies = (torch.cat(column) for column in zip(*results, strict=True))
        return log_probs, entropies

    def next_logits(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        """The logits of the token after ids i64[b, n], f32[b, V], and the cache, which held the tokens before them."""
        output = self.model.base_model.forward(  # ``forward`` skips the version compiled for whole sequences
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, **{self.cache_name: cache}
        )
        logits = self.logits(output.last_hidden_state[:, -1])
        return gathered_slices(logits, self.tp) if self.slices > 1 else logits, output[self.cache_name]

    def broadcast_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens that the first rank of ``tp`` sampled; on a GPU equal logits may sample different ones."""
        return self.tp.broadcast(tokens) if self.tp.size > 1 else tokens

    def _score(self, hidden: torch.Tensor, chosen: torch.Tensor, entropy: Entropy) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.logits(hidden)
        if self.slices > 1:
            return parallel_log_probs_and_entropies(
                logits, chosen, self.tp, entropy != "none", entropy == "differentiable"
            )
        total = logits.logsumexp(-1)
        log_probs = logits.gather(-1, chosen[:, None]).squeeze(-1) - total
        if entropy == "none":
            return log_probs, torch.zeros_like(total)
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "differentiable"):
            return log_probs, total - ((logits - total[:, None]).exp() * logits).sum(-1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits that tokens are sampled from, f32[n, V], or this rank's slice of them."""
        config = self.model.config
        logits: torch.Tensor = self.model.get_output_embeddings()(hidden).float()
        if scale := getattr(config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if scale := getattr(config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if cap := getattr(config, "final_logit_softcapping", None):  # Gemma
            logits = (logits / cap).tanh() * cap
        return logits if self.temperature == 1 else logits / self.temperature


class Scorer(nn.Module):
    """A backbone with a linear head of one number per token: a critic, or a reward model.

    The backbone may be sliced over the ranks of ``tp``; the head is replicated.
    """

    def __init__(self, model: Any, head: torch.Tensor | None, tp: AxisGroup, *, packing: bool = False) -> None:
        super().__init__()
        if packing:
            allow_packing(model)
        self.base_model, self.tp, self.packing, self.writes = model.base_model, tp, packing, 0
        self.export_dtype: torch.dtype | None = None
        weight = next(self.base_model.parameters())
        width = model.config.get_text_config().hidden_size
        self.score = nn.Linear(width, 1, bias=False, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            self.score.weight.copy_(torch.zeros_like(self.score.weight) if head is None else head)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """A number per token, f32[b, t], of ids i64[b, t] and mask bool[b, t]; with packing, 0 on padding."""
        dtype = self.score.weight.dtype
        if self.packing:
            rows = packed(mask)
            column = self.score(packed_states(self, ids, rows).to(dtype)).squeeze(-1).float()
            return column.new_zeros(mask.shape).masked_scatter(rows.real, column)  # type: ignore[no-any-return]  # of torch
        scores: torch.Tensor = self.score(hidden_states(self, ids, mask).to(dtype)).squeeze(-1).float()
        return scores.clone()  # FSDP, as above
