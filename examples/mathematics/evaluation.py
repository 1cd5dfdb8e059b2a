"""How many held-out problems a policy solves, in runs that have no verifier among their roles."""

from __future__ import annotations

from functools import cache
from typing import Any

import hfdsl as hf
from examples.mathematics.problems import solved
from hfdsl.rl.batches import Outcome, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome
from hfdsl.rl.workers import Actor

TOKENIZER = "runs/mathematics/model"  # the folder of the model, or its name on the hub


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


@hf.function
def marked(prompts: Prompts, rollout: Rollout) -> Scores:
    """1 for a right answer, 0 for a wrong one."""
    import torch

    width = rollout.response_mask.tensor.shape[1]
    responses = rollout.ids.tensor[:, -width:].masked_fill(~rollout.response_mask.tensor, tokenizer().pad_token_id)
    texts = tokenizer().batch_decode(responses, skip_special_tokens=True)
    return Scores(score=torch.tensor([solved(*pair) for pair in zip(texts, prompts.task.objects, strict=True)]))


@hf.dataflow
def evaluate(prompts: Prompts, actor: Actor) -> tuple[Outcome, Rollout, Scores]:
    """Greedy answers and their marks."""
    rollout = actor.generate(prompts, greedy=True)
    scores = marked(prompts, rollout)
    return outcome(rollout, scores), rollout, scores
