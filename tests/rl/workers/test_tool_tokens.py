"""A conversation as one response: the tokens that a tool wrote are read, and not learned."""

from __future__ import annotations

import pytest
import torch

from hfdsl.rl.batches import ActorMetrics, Experience, Sequences
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor, ActorConfig, GenerationConfig, ModelConfig

LLAMA = {
    "model_type": "llama",
    "vocab_size": 15,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
SAMPLED = torch.tensor([[True, True, False, False, True]]).expand(4, 5)


def updated(at_the_tool: float, tool_tokens: int = 5) -> tuple[ActorMetrics, torch.Tensor]:
    """An update, and the log-probs before it, with these numbers and tokens where the tool wrote."""
    actor = Actor(ActorConfig(ModelConfig(config=LLAMA), GenerationConfig(max_tokens=5)))
    draw = torch.Generator().manual_seed(0)
    ids, advantage = torch.randint(3, 15, (4, 8), generator=draw), torch.randn(4, 5, generator=draw)
    ids[:, 5:7] = tool_tokens
    mask = torch.ones_like(ids, dtype=torch.bool)
    sequences = Sequences(ids=ids, mask=mask, response_mask=SAMPLED)
    log_probs = actor.log_probs(sequences).ref_log_probs.tensor
    experience = Experience(
        ids=ids,
        mask=mask,
        response_mask=SAMPLED,
        log_probs=log_probs.where(SAMPLED, torch.tensor(at_the_tool)),
        advantage=advantage.where(SAMPLED, torch.tensor(at_the_tool)),
    )
    return actor.update(experience, loss=Clip(0.2)), log_probs


def test_numbers_at_the_tokens_of_a_tool_never_matter() -> None:
    (plain, log_probs), (other, _) = updated(0.0), updated(-7.0)
    assert plain.tokens.value == 12
    assert plain.loss.value == other.loss.value
    assert plain.grad_norm.value == other.grad_norm.value > 0
    assert log_probs[~SAMPLED].tolist() == [0.0] * 8


def test_the_policy_reads_the_tokens_of_a_tool() -> None:
    (_, five), (_, six) = updated(0.0, 5), updated(0.0, 6)
    assert five[:, :2].equal(six[:, :2])
    assert five[:, 4].tolist() != pytest.approx(six[:, 4].tolist())
