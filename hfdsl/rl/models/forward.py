"""What a model says of given tokens: log-probs of responses, values, scores.

Dim letters: b rows of a micro-batch, t tokens, r response tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.models.parallel_layers import Sliced, gathered_slices, parallel_log_probs_and_entropies

MAX_LOGITS = 2**26
"""How many float32 logits are made at once."""

Entropy: TypeAlias = Literal["none", "detached", "differentiable"]
"""Whether entropies are computed, and whether with a gradient."""


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Positions from the first token that is no padding, i64[b, t]."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def hidden_states(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What the backbone makes of every token, [b, t, H]."""
    output = model.base_model(input_ids=ids, attention_mask=mask.long(), position_ids=positions(mask), use_cache=False)
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


class Policy(nn.Module):
    """A causal model as log-probs of its responses. At most ``MAX_LOGITS`` logits are there at a time.

    The model may be sliced over the ranks of ``tp``.
    """

    def __init__(self, model: Any, temperature: float, tp: AxisGroup) -> None:
        super().__init__()
        self.model, self.temperature, self.tp = model, temperature, tp
        self.slices = tp.size if isinstance(model.get_output_embeddings(), Sliced) else 1

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, length: int, entropy: Entropy = "none"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the last ``length`` tokens the log-probs, and the entropies of what they were chosen from, f32[b, r] each.

        ``ids`` is i64[b, t] and ``mask`` bool[b, t]. Entropies are 0 where nobody asks for them.
        """
        hidden = hidden_states(self.model, ids, mask)[:, -length - 1 : -1]
        chosen = ids[:, -length:]
        at_once = max(1, MAX_LOGITS * self.slices // self.model.config.get_text_config().vocab_size)
        parts = list(zip(hidden.flatten(0, 1).split(at_once), chosen.flatten().split(at_once), strict=True))
        again = torch.is_grad_enabled() and len(parts) > 1  # else the logits of all parts are kept for the gradient
        found = [
            checkpoint(self._read, *part, entropy, use_reentrant=False) if again else self._read(*part, entropy)
            for part in parts
        ]
        log_probs, entropies = (torch.cat(column).view(chosen.shape) for column in zip(*found, strict=True))
        return log_probs.clone(), entropies.clone()  # FSDP hooks on to outputs, and wants no views

    def next_logits(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any
    ) -> tuple[torch.Tensor, Any]:
        """The logits of the next token, f32[b, V], after ids i64[b, n] whose forerunners are in the cache; and both."""
        output = self.model.base_model.forward(  # not what may be compiled for whole sequences
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        logits = self.logits(output.last_hidden_state[:, -1])
        return gathered_slices(logits, self.tp) if self.slices > 1 else logits, output.past_key_values

    def broadcast_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """The tokens that the first rank of ``tp`` took; on a GPU equal logits need not give equal ones."""
        return self.tp.broadcast(tokens) if self.tp.size > 1 else tokens

    def _read(self, hidden: torch.Tensor, chosen: torch.Tensor, entropy: Entropy) -> tuple[torch.Tensor, torch.Tensor]:
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
        """The logits that tokens are sampled with, f32[n, V], or this rank's slice of them."""
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
    """A backbone with a linear head of one number a token: a critic, or a reward model.

    The backbone may be sliced over the ranks of ``tp``; the head is whole.
    """

    def __init__(self, model: Any, head: torch.Tensor | None, tp: AxisGroup) -> None:
        super().__init__()
        self.base_model, self.tp = model.base_model, tp
        weight = next(self.base_model.parameters())
        width = model.config.get_text_config().hidden_size
        self.score = nn.Linear(width, 1, bias=False, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            self.score.weight.copy_(torch.zeros_like(self.score.weight) if head is None else head)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """A number a token, f32[b, t], of ids i64[b, t] and mask bool[b, t]."""
        numbers: torch.Tensor = self.score(hidden_states(self, ids, mask)).squeeze(-1).float()
        return numbers.clone()  # as above
