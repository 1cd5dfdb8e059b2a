"""Tiny models and prompts that the tests of the ready-made roles share."""

from __future__ import annotations

from typing import Any

import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Pairs, Prompts, Sequences

VOCABULARY, PAD, END, PROMPT, RESPONSE = 16, 0, 1, 5, 6

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "pad_token_id": PAD,
    "eos_token_id": END,
}
MODEL = w.ModelConfig(config=LLAMA, end_tokens=(END, 2, 3))  # so many, that responses end at unlike lengths
FIXED = w.BatchingConfig(rows=2)
TRAINING = w.TrainingConfig(w.OptimizerConfig(learning_rate=1e-2))
GENERATION = w.GenerationConfig(RESPONSE)
ACTOR = w.ActorConfig(MODEL, GENERATION, TRAINING, FIXED)
CRITIC = w.CriticConfig(MODEL, TRAINING, FIXED)
REFERENCE = w.ReferenceConfig(MODEL, batching=FIXED)
VERIFIER = w.VerifierConfig(function=f"{__name__}:share_of_sevens")


def share_of_sevens(response: list[int], task: dict[str, Any]) -> float:
    return response.count(7) / len(response)


def prompts(rows: int, seed: int = 0) -> Prompts:
    """Prompts of unlike lengths, left-padded."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (rows, PROMPT), generator=draw)
    lengths = torch.randint(1, PROMPT + 1, (rows, 1), generator=draw)
    mask = torch.arange(PROMPT) >= PROMPT - lengths
    return Prompts(ids=ids * mask, mask=mask, task=[{"row": row} for row in range(rows)])


CLASSES: dict[str, type[hf.Worker]] = {
    "actor": w.Actor,
    "critic": w.Critic,
    "reference": w.Reference,
    "reward": w.Verifier,
    "sampler": w.Sampler,
    "scorer": w.RewardModel,
}


def deployment(dp: int = 1, **configs: Any) -> hf.Deployment:
    """The named roles, all on one pool."""
    pool = hf.ResourcePool([dp], use_gpu=False)
    return hf.Deployment(**{name: hf.place(CLASSES[name], config, pool=pool) for name, config in configs.items()})


def pairs(rows: int, seed: int = 0) -> Pairs:
    """Pairs of responses: the better one is of sevens, the other one of any tokens; both end in tokens of their own."""
    repeated = prompts(rows // 2, seed)
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (rows, RESPONSE), generator=draw)
    ids[::2] = 7
    lengths = torch.randint(1, RESPONSE + 1, (rows, 1), generator=draw)
    mask = torch.arange(RESPONSE) < lengths
    return Pairs(
        ids=torch.cat([repeated.ids.tensor.repeat_interleave(2, 0), ids * mask], 1),
        mask=torch.cat([repeated.mask.tensor.repeat_interleave(2, 0), mask], 1),
        response_mask=mask,
        preference=torch.tensor([1.0, -1.0]).repeat(rows // 2),
    )


def demonstrations(rows: int, seed: int = 0) -> Sequences:
    """Prompts whose response counts on from their last token."""
    batch = prompts(rows, seed)
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, RESPONSE + 1, (rows, 1), generator=draw)
    ids = (batch.ids.tensor[:, -1:] + torch.arange(1, RESPONSE + 1)) % (VOCABULARY - 2) + 2
    mask = torch.arange(RESPONSE) < lengths
    ids = torch.where(torch.arange(RESPONSE) == lengths - 1, END, ids) * mask
    return Sequences(
        ids=torch.cat([batch.ids.tensor, ids], 1), mask=torch.cat([batch.mask.tensor, mask], 1), response_mask=mask
    )
