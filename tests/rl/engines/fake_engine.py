"""An engine of a few lines: token i of a response is the prompt's last token, plus the weight and the adapter, plus i.

Its process imports this module and little else, so that it starts soon.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from operator import itemgetter
from pathlib import Path
from zlib import crc32

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is documented there

from hfdsl.rl.engines.interface import Completion, EngineStart, LoadPart, Stepped, WakePart
from hfdsl.rl.engines.places import PlaceWriter, WeightPlace
from hfdsl.rl.engines.weights import Weights

VOCABULARY, HANG, DIE, RAISE, DIFFER = 100, 90, 91, 92, 93
"""What a prompt may begin with to make the engine misbehave; of one in parts, the process with the last part."""


@dataclass
class Row:
    """A row that is sampled step by step; ``first`` is its first token less what is loaded."""

    first: int
    tokens: list[int] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)

    def completion(self) -> Completion:
        return Completion(self.tokens, [-float(token) for token in self.tokens], tuple(self.loaded))


class FakeEngine:
    copies = True

    def __init__(self, start: EngineStart, folder: Path) -> None:
        self.start = start
        self.loaded: dict[LoadPart, int] = {}
        json.loads((folder / "config.json").read_text("utf-8"))
        self.calls, self.parts = 0, start.rendezvous
        self.is_last = self.parts is None or self.parts.rank == self.parts.size - 1
        if self.parts is not None:
            self.store = TCPStore(self.parts.address, self.parts.port, is_master=False)
        self.meet()

    def meet(self) -> None:
        """Wait for the processes with the other parts, forever where one is gone, as a collective does."""
        if self.parts is not None:
            self.calls += 1
            self.store.add(f"call {self.calls}", 1)
            while self.store.add(f"call {self.calls}", 0) < self.parts.size:
                time.sleep(0.02)
        self.states: list[str] = []
        self.begun: dict[int, list[Row]] = {}  # calls in steps

    def begin(self, call: int, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> None:
        shifts = [0] * len(prompts) if seeds is None else [seed % 7 for seed in seeds]
        self.begun[call] = [Row(prompt[-1] + shift) for prompt, shift in zip(prompts, shifts, strict=True)]

    def step(self, most: int) -> Stepped:
        steps, ended = 0, dict[int, list[Completion]]()
        while self.begun and not ended and steps < most:
            steps += 1
            for row in (row for rows in self.begun.values() for row in rows if not self._has_ended(row)):
                row.tokens.append((row.first + sum(self.loaded.values()) + len(row.tokens)) % VOCABULARY)
                if row.first == DIE:
                    os.kill(os.getpid(), signal.SIGKILL)
            ended_calls = [call for call, rows in self.begun.items() if all(map(self._has_ended, rows))]
            ended = {call: [row.completion() for row in self.begun.pop(call)] for call in ended_calls}
        return Stepped(steps, ended)

    def _has_ended(self, row: Row) -> bool:
        return len(row.tokens) == self.start.max_tokens or row.tokens[-1:] == list(self.start.end_tokens)

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        for first in (prompt[0] for prompt in prompts if self.is_last):
            if first == HANG:
                time.sleep(600)
            if first == DIE:
                print("something went wrong below", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if first == RAISE:
                raise LookupError("no such token")
            if first == DIFFER:
                seeds = [3] * len(prompts)
        self.meet()
        if self.states:
            raise RuntimeError(f"called after {self.states}")
        return [self._completion(prompt, 0 if seeds is None else seeds[i] % 7) for i, prompt in enumerate(prompts)]

    def _completion(self, prompt: Sequence[int], shift: int) -> Completion:
        tokens: list[int] = []
        while len(tokens) < self.start.max_tokens and (not tokens or tokens[-1] not in self.start.end_tokens):
            tokens.append((prompt[-1] + sum(self.loaded.values()) + shift + len(tokens)) % VOCABULARY)
        return Completion(tokens, [-float(token) for token in tokens])

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        if part == "weights":
            self.loaded = {}
        for name, weight in chain.from_iterable(batches):
            if weight.isnan().any():
                raise ValueError(f"{name} is no weight")
            self.loaded[part] = int(weight.sum())
        for rows in self.begun.values():
            for row in rows:
                row.loaded.append(len(row.tokens))

    def sleep(self, keep_weights: bool) -> None:
        self.states = ["asleep"]
        if not keep_weights:
            self.loaded = {"weights": 77, "adapter": 7}  # whatever is in the memory that it gets again

    def wake(self, part: WakePart) -> None:
        self.states = [] if part == "cache" else ["awake without a cache"]

    def close(self) -> None:
        pass


class Keeping(FakeEngine):
    """It reads weights only when it samples."""

    copies = False

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        self.kept = [weight for _, weight in chain.from_iterable(batches)]

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        self.loaded["weights"] = int(sum(weight.sum() for weight in self.kept))
        return super().generate(prompts, seeds)


class Reading(FakeEngine):
    """Its tokens depend on every bit of the weights, rounded to its dtype."""

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        dtype = getattr(torch, self.start.dtype)
        self.loaded[part] = checksum({name: weight.to(dtype) for name, weight in chain.from_iterable(batches)})


class Sharing(FakeEngine):
    """Its weights are parts of one tensor, which it shares; its tokens depend on every bit that it finds there.

    It caches what it found until others are loaded or written, as vLLM's prefix cache does.
    """

    def __init__(self, start: EngineStart, folder: Path) -> None:
        super().__init__(start, folder)
        sizes = [prod(shape) for shape in start.shapes.values()]
        self.all = torch.full((sum(sizes),), torch.nan, dtype=getattr(torch, start.dtype))
        parts = zip(start.shapes.items(), self.all.split(sizes), strict=True)
        self.memory = {name: part.view(shape) for (name, shape), part in parts}

    def share(self) -> Mapping[str, torch.Tensor] | None:
        return self.memory

    def forget(self) -> None:
        self.loaded = {}

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        self.loaded = {}
        for name, weight in chain.from_iterable(batches):
            self.memory[name].copy_(weight)

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        if not self.loaded:
            self.loaded["weights"] = checksum(self.memory)
        return super().generate(prompts, seeds)

    def sleep(self, keep_weights: bool) -> None:
        super().sleep(keep_weights)
        self.loaded = {}
        if not keep_weights:
            self.all.fill_(torch.nan)


class Stuck(Sharing):
    """It cannot drop its cache."""

    def forget(self) -> None:
        raise RuntimeError("the cache is in use")


class Secret(Sharing):
    """Its memory is of a kind that cannot be shared."""

    def share(self) -> Mapping[str, torch.Tensor] | None:
        raise RuntimeError("invalid argument")


class Narrowing(Sharing):
    """Its weights have fewer bits than those that it is given."""

    def share(self) -> Mapping[str, torch.Tensor] | None:
        return {name: part.bfloat16() for name, part in self.memory.items()}


def checksum(weights: Mapping[str, torch.Tensor]) -> int:
    """A number in which every bit of the weights counts."""
    digest = 0
    for name, weight in sorted(weights.items(), key=itemgetter(0)):
        digest = crc32(weight.contiguous().view(torch.uint8).numpy().tobytes(), crc32(name.encode(), digest))
    return digest


class Writing(FakeEngine):
    """It writes weights into parameters of its own, of which it reports every bit: two of 2 x 2, one of 2 of 4 rows."""

    def __init__(self, start: EngineStart, folder: Path) -> None:
        super().__init__(start, folder)
        self.replace_parameters()

    def replace_parameters(self) -> None:
        """Have other parameters, without values."""
        square = {name: WeightPlace(torch.zeros(2, 2)) for name in "ab"}
        self.writer = PlaceWriter({**square, "rows": WeightPlace(torch.zeros(2), first=1)})

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        if part == "weights":
            self.writer.write(batches)
        else:
            super().load(batches, part)

    def parameters(self) -> dict[str, list[object]]:
        """The values of its parameters."""
        return {name: place.target.tolist() for name, place in self.writer.places.items()}

    def sleep(self, keep_weights: bool) -> None:
        super().sleep(keep_weights)
        if not keep_weights:
            for place in self.writer.places.values():
                place.target.fill_(77)


class Refusing(FakeEngine):
    def __init__(self, start: EngineStart, folder: Path) -> None:
        raise ValueError("a head width of 24 is not supported")


class Slow(FakeEngine):
    def __init__(self, start: EngineStart, folder: Path) -> None:
        time.sleep(600)
