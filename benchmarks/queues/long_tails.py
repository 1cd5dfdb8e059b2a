"""Responses whose lengths have a long tail, though random weights sample them; and a reward that takes no time.

The length of a row is drawn from its prompt and its place in the batch, so it is the same with any lag. It is
lognormal, with the 99th percentile at ``max_tokens``, where the longest 1% end; the first token of a prompt is the
99th percentile over the median. Rows leave vLLM's batch one by one, as rows do that end by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from hfdsl import Dispatch, register
from hfdsl.rl.batches import Prompts, Scores, Sequences
from hfdsl.rl.engines.handle import ENGINES
from hfdsl.rl.engines.vllm_engine import VllmEngine
from hfdsl.rl.workers import Actor, ActorConfig, InFlightSampler, Reward, Sampler, SamplerConfig
from hfdsl.rl.workers.layouts import state_parameters
from hfdsl.runtime.queues.durations import P99


class LongTails(VllmEngine):
    """vLLM with a length of its own for each row."""

    def rules(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Any]:
        """As vLLM's own, with the drawn lengths."""
        rules = super().rules(prompts, seeds)
        for row, (rule, prompt) in enumerate(zip(rules, prompts, strict=True)):
            rule.max_tokens = drawn_length(self.start.max_tokens, prompt, row)
        return rules


def drawn_length(most: int, prompt: Sequence[int], row: int) -> int:
    """The length of a row.

    >>> from statistics import median
    >>> lengths = [drawn_length(500, [10, 7], row) for row in range(5000)]
    >>> 45 < median(lengths) < 55, 0.98 < sum(length < 500 for length in lengths) / 5000 < 1.0
    (True, True)
    """
    tail = prompt[0]
    length = Random(f"{prompt} {row}").lognormvariate(math.log(most / tail), math.log(tail) / P99)
    return min(most, max(1, round(length)))


class LongTailSampler(Sampler):
    """A sampler with that engine."""

    state_parameters = staticmethod(state_parameters)  # stated again, since the constructor is another one

    def __init__(self, config: SamplerConfig) -> None:
        ENGINES["vllm"] = f"{LongTails.__module__}:{LongTails.__name__}"
        super().__init__(config)


class InFlightLongTails(InFlightSampler):
    """A sampler with that engine, which takes weights in flight."""

    state_parameters = staticmethod(state_parameters)

    def __init__(self, config: SamplerConfig) -> None:
        ENGINES["vllm"] = f"{LongTails.__module__}:{LongTails.__name__}"
        super().__init__(config)


class LongTailActor(Actor):
    """An actor that, without a sampler, samples with that engine."""

    state_parameters = staticmethod(state_parameters)

    def __init__(self, config: ActorConfig) -> None:
        ENGINES["vllm"] = f"{LongTails.__module__}:{LongTails.__name__}"
        super().__init__(config)


class EvenTokens(Reward):
    """The share of tokens that are even."""

    @register(Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, sequences: Sequences) -> Scores:
        """The score of every response."""
        mask = sequences.response_mask.tensor
        even = sequences.ids.tensor[:, -mask.shape[1] :] % 2 == 0
        return Scores(score=(even & mask).sum(1) / mask.sum(1).clamp(min=1))


def prompts_of(rows: int, width: int, tail: int, vocabulary: int, step: int) -> Prompts:
    """Random prompts whose responses have this tail."""
    import torch

    ids = torch.randint(2, vocabulary, (rows, width), generator=torch.Generator().manual_seed(step))
    ids[:, 0] = tail
    return Prompts(ids=ids, mask=torch.ones_like(ids).bool(), task=[{} for _ in range(rows)])
