"""The models that benchmarks train and sample: Llamas with random weights."""

from __future__ import annotations

from typing import Any

PAD, END = 0, 1


def llama(
    hidden: int, layers: int, vocabulary: int, positions: int, inner: int | None = None, *, share: int = 2
) -> dict[str, Any]:
    """The configuration of a Llama: heads of 128 (32 where it is narrow), ``share`` to each head of keys and values."""
    heads = hidden // (128 if hidden >= 1024 else 32)
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner or hidden * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // share),
        "max_position_embeddings": positions,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": END,
    }
