"""An engine of a few lines: token i of a response is the prompt's last token, plus the weight, plus i."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Sequence
from unittest import mock

import torch
from transformers import LlamaConfig

from hfdsl.rl.engines import handle as handles
from hfdsl.rl.engines.handle import EngineHandle
from hfdsl.rl.engines.interface import Completion, EngineStart, WakePart
from hfdsl.rl.workers.config import GenerationConfig

VOCABULARY, HANG, DIE, RAISE = 100, 90, 91, 92
"""What a prompt may begin with to make the engine misbehave."""


class FakeEngine:
    def __init__(self, start: EngineStart) -> None:
        self.start, self.weight = start, 0
        self.states: list[str] = []

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        for first in (prompt[0] for prompt in prompts):
            if first == HANG:
                time.sleep(600)
            if first == DIE:
                print("something went wrong below", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if first == RAISE:
                raise LookupError("no such token")
        if self.states:
            raise RuntimeError(f"called after {self.states}")
        return [self._completion(prompt, 0 if seeds is None else seeds[i] % 7) for i, prompt in enumerate(prompts)]

    def _completion(self, prompt: Sequence[int], shift: int) -> Completion:
        tokens: list[int] = []
        while len(tokens) < self.start.max_tokens and (not tokens or tokens[-1] not in self.start.end_tokens):
            tokens.append((prompt[-1] + self.weight + shift + len(tokens)) % VOCABULARY)
        return Completion(tokens, [-float(token) for token in tokens])

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if weight.isnan().any():
                raise ValueError(f"{name} is no weight")
            self.weight = int(weight.sum())

    def sleep(self) -> None:
        self.states = ["asleep"]

    def wake(self, part: WakePart) -> None:
        self.states = [] if part == "cache" else ["awake without a cache"]

    def close(self) -> None:
        pass


class Refusing(FakeEngine):
    def __init__(self, start: EngineStart) -> None:
        raise ValueError("a head width of 24 is not supported")


def start(adapter: type = FakeEngine, cache_bytes: int = 0) -> EngineStart:
    """What a process starts with to be such an engine."""
    return EngineStart(
        engine="fake",
        adapter=f"{adapter.__module__}:{adapter.__name__}",
        folder="",
        dtype="float32",
        max_length=16,
        cache_bytes=cache_bytes,
        weight_bytes=0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        max_tokens=3,
        end_tokens=(50,),
    )


def handle(*, version: str = "0.32.0", tp: int = 1) -> EngineHandle:
    """A role's handle of the fake engine, as if vLLM of a version were installed and it were that."""
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    generation = GenerationConfig(3, engine="vllm", cache_tokens=16, engine_deadline=60)
    adapters = {"vllm": f"{FakeEngine.__module__}:{FakeEngine.__name__}"}
    with (
        mock.patch.object(handles, "ADAPTERS", adapters),
        mock.patch.object(handles, "installed_version", return_value=version),
    ):
        return EngineHandle(config, {"model.weight": (1,)}, generation, "float32", (50,), 0, tp)
