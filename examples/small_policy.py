"""The model of the demo: a small decoder from a transformers config, with log-probs, sampling and imitation.

Dim letters: B rows, P prompt tokens, R response tokens, T = P + R, V vocabulary.
Every forward pass takes ``MICRO_BATCH`` rows, so that a row's numbers do not depend on how a batch is split over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spelling import EOS, PAD, PROMPT, RESPONSE, VOCABULARY, Problem, demonstrations, prompts

MICRO_BATCH = 64


def build(checkpoint: str | None = None, seed: int = 0) -> Any:
    """The decoder, with the weights of a checkpoint or new ones."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=PROMPT + RESPONSE,
        bos_token_id=None,
        pad_token_id=PAD,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    if checkpoint is not None:
        if not Path(checkpoint).exists():
            raise FileNotFoundError(f"no policy at {checkpoint}: `make demo` leaves its warm-up there")
        model.load_state_dict(torch.load(checkpoint, weights_only=True))
    return model


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Positions from the first token that is no padding, i64[B, T]."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def micro_batches(rows: int) -> Iterator[slice]:
    """Runs of ``MICRO_BATCH`` rows."""
    return (slice(start, start + MICRO_BATCH) for start in range(0, rows, MICRO_BATCH))


def response_log_probs(model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int) -> torch.Tensor:
    """Log-probs of the last ``length`` tokens, ids i64[B, T], mask bool[B, T] -> f32[B, R]; of one micro-batch."""
    output = model(
        input_ids=ids,
        attention_mask=mask.long(),
        position_ids=positions(mask),
        use_cache=False,
        logits_to_keep=length + 1,
    )
    log_probs_brv = output.logits[:, :-1].log_softmax(dim=-1)
    chosen: torch.Tensor = log_probs_brv.gather(-1, ids[:, -length:, None]).squeeze(-1)
    return chosen


@torch.no_grad()  # not inference_mode: what is generated here is trained on
def generate(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, uniforms: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Responses to one micro-batch of prompts: ids i64[B, R], mask bool[B, R], log-probs f32[B, R].

    Token r of a row is sampled with its ``uniforms`` f32[B, R]; without them the likeliest token is taken.
    """
    cache, step_ids, step_positions = None, ids, positions(mask)
    alive = torch.ones(len(ids), dtype=torch.bool)
    tokens, alives, log_probs = [], [], []
    for r in range(RESPONSE):
        output = model(
            input_ids=step_ids,
            attention_mask=mask.long(),
            position_ids=step_positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache, log_probs_bv = output.past_key_values, output.logits[:, -1].log_softmax(dim=-1)
        token = log_probs_bv.argmax(dim=-1) if uniforms is None else sample(log_probs_bv, uniforms[:, r])
        token = token.where(alive, PAD)
        tokens.append(token)
        alives.append(alive)
        log_probs.append(log_probs_bv.gather(-1, token[:, None]).squeeze(-1))
        mask = torch.cat([mask, alive[:, None]], dim=1)
        alive = alive & (token != EOS)
        step_ids, step_positions = token[:, None], step_positions[:, -1:] + 1
    return torch.stack(tokens, 1), torch.stack(alives, 1), torch.stack(log_probs, 1)


def sample(log_probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token a row by inverting the cumulative distribution, f32[B, V], f32[B] -> i64[B]."""
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    target = uniforms.double()[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=VOCABULARY - 1)


def imitate(
    model: Any, problems: Iterator[Problem], steps: int, slips: float, batch: int = 64, learning_rate: float = 2e-3
) -> Iterator[float]:
    """Supervised warm-up on demonstrations; gives the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
    for _ in range(steps):
        rows = [next(problems) for _ in range(batch)]
        (prompt_ids, prompt_mask), (answer_ids, answer_mask) = prompts(rows), demonstrations(rows, slips)
        ids, mask = torch.cat([prompt_ids, answer_ids], 1), torch.cat([prompt_mask, answer_mask], 1)
        log_probs = response_log_probs(model, ids, mask, RESPONSE)
        loss = -(log_probs * answer_mask).sum() / answer_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield float(loss.detach())
