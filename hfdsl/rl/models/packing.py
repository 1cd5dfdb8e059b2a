"""Packing: sequences one after another in a single row, without padding, and attention that keeps them apart.

Dim letters: b rows, t tokens with padding, n tokens without, H hidden.

An example
----------
Two rows with a border between prompt and response, and the row that the model sees::

             prompt     response          packed        a b c f g h
    row 0    . a b  |  c . .              position      0 1 2 0 1 2
    row 1    . . f  |  g h .              starts        0     3     6

A padded pass has 12 tokens, the packed one 6. Attention is called once with all six and the starts (``cu_seqlens``),
and no token attends across a start: ``f`` sees nothing of ``a b c``. Everything else in such a model works token by
token.

The state of ``b`` predicts the token ``c``, and that of ``f`` predicts ``g``: always the state before it. This needs a
token in the column before the border, so ``packed`` includes that column even if a prompt is empty: otherwise the state
before ``g`` would be that of ``c``, in another row.

Why the numbers are those of the padded pass: padding is masked from attention, so no real token depends on it;
positions count real tokens in both passes; and the results of padding are discarded.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from hfdsl.errors import ResourceError
from hfdsl.rl.workers.obstacles import attention_problem

try:
    from torch.nn.attention import varlen
except ImportError:  # before torch 2.10
    KERNEL: Any = None
else:
    KERNEL = varlen.varlen_attn

ATTENTION: Final = "hfdsl_packed"
"""The name of the attention below in transformers."""

KERNEL_OPTIONS: Final = frozenset(inspect.signature(KERNEL).parameters) if KERNEL is not None else frozenset()
"""The parameters of torch's kernel; windows came with torch 2.11, groups of heads as a parameter with 2.12."""

KERNEL_DTYPES: Final = (torch.bfloat16, torch.float16)
MAX_HEAD_WIDTH: Final = 256
"""The widest heads of torch's kernel."""


def packing_obstacle(model: Any) -> str | None:
    """Why the sequences of a model cannot be packed; None if they can."""
    name, config = type(model).__name__, model.config.get_text_config()
    attention = str(model.config._attn_implementation)
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if not (getattr(model, "_supports_attention_backend", False) and model._supports_sdpa):
        return f"{name} implements its own attention"
    if (problem := attention_problem(attention)) is not None:
        return problem
    if kinds:
        return f"{name} has layers of {', '.join(sorted(kinds))}, which see across sequences"
    return None


def allow_packing(model: Any) -> None:
    """Give a model an attention that takes packed sequences.

    Raises:
        ResourceError: HF812 for a model that cannot take them.
    """
    obstacle = packing_obstacle(model)
    if obstacle is not None:
        raise ResourceError("HF812", f"packing=true cannot be used here: {obstacle}; packing=false can")
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(ATTENTION)


@dataclass(frozen=True, slots=True)
class Packed:
    """The places of the real tokens in padded rows."""

    real: torch.Tensor
    """Whether a token is packed, bool[b, t]."""

    positions: torch.Tensor
    """The position of each packed token in its sequence, i64[1, n]."""

    starts: torch.Tensor
    """The starts of the sequences, and the number of all tokens: i32[b + 1]."""

    longest: int
    """The length of the longest sequence."""

    def index(self) -> torch.Tensor:
        """The index of each token among the packed ones, i64[b, t]; at padding, that of the last token before it."""
        return self.real.flatten().cumsum(0).view(self.real.shape) - 1


def packed(mask: torch.Tensor, length: int = 0) -> Packed:
    """The tokens of a mask bool[b, t]; with a ``length``, also the column before the last ``length`` ones.

    >>> rows = packed(torch.tensor([[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]).bool(), length=2)
    >>> rows.positions.tolist(), rows.starts.tolist(), rows.longest
    ([[0, 1, 2, 0, 1, 2]], [0, 3, 6], 3)
    """
    real = mask.clone()
    if length:
        real[:, -length - 1] = True
    lengths = real.sum(1)
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    positions = (real.long().cumsum(1) - 1)[real][None]
    return Packed(real, positions, starts, int(lengths.max()))


def packed_states(model: Any, ids: torch.Tensor, rows: Packed) -> torch.Tensor:
    """The backbone's last hidden states of the real tokens, [n, H]."""
    output = model.base_model(
        input_ids=ids[rows.real][None],
        position_ids=rows.positions,
        use_cache=False,
        cu_seq_lens_q=rows.starts,
        cu_seq_lens_k=rows.starts,
        max_length_q=rows.longest,
        max_length_k=rows.longest,
    )
    states: torch.Tensor = output.last_hidden_state
    return states[0]


def packed_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over packed sequences [1, heads, n, width], as transformers calls it; over padded ones, SDPA."""
    if cu_seq_lens_q is None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return output
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    query, key, value = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))
    widest = max(query.shape[-1], value.shape[-1])
    has_kernel = "window_size" in KERNEL_OPTIONS and kind == "cuda" and dtype in KERNEL_DTYPES
    if has_kernel and widest <= MAX_HEAD_WIDTH and not dropout:
        return _by_kernel(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window)[None], None
    return _sequence_by_sequence(query, key, value, cu_seq_lens_q, dropout, scaling, sliding_window)[None], None


def _by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention by torch's flash kernel: [n, heads, width]."""
    groups = {"enable_gqa": query.shape[1] != key.shape[1]} if "enable_gqa" in KERNEL_OPTIONS else {}
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    attended: torch.Tensor = KERNEL(
        query, key, value, starts, starts, longest, longest, scale=scaling, window_size=window, **groups
    )
    return attended


def _sequence_by_sequence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention one sequence at a time, where torch has no kernel, as on a CPU or in float32: [n, heads, width]."""
    options = {"dropout_p": dropout, "scale": scaling, "enable_gqa": query.shape[1] != key.shape[1]}
    batched = [states.transpose(0, 1)[None] for states in (query, key, value)]
    if torch.compiler.is_compiling():  # splitting needs lengths, which a compiled graph does not know
        return _attended(batched, _mask(starts, query.shape[0], sliding_window), options)
    lengths = starts.diff().tolist()
    sequences = zip(*(states.split(lengths, 2) for states in batched), strict=True)
    return torch.cat(
        [
            _attended(sequence, _mask(starts[:1], length, sliding_window), options)
            for sequence, length in zip(sequences, lengths, strict=True)
        ]
    )


def _attended(states: Sequence[torch.Tensor], mask: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    query, key, value = states
    return scaled_dot_product_attention(query, key, value, mask, **options)[0].transpose(0, 1)


def _mask(starts: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """The tokens that each attends to: those before it in its sequence and its window; bool[length, length]."""
    token = torch.arange(length, device=starts.device)
    sequence = torch.searchsorted(starts, token, right=True, out_int32=True)
    behind = token[:, None] - token
    mask = (behind >= 0) & (sequence[:, None] == sequence)
    return mask if window is None else mask & (behind < window)


def _packed_mask(*arguments: Any, **options: Any) -> torch.Tensor | None:
    """The mask of SDPA; none for packed sequences, which come without one."""
    if options.get("attention_mask") is None:
        return None
    mask: torch.Tensor | None = sdpa_mask(*arguments, **options)
    return mask


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, _packed_mask)
