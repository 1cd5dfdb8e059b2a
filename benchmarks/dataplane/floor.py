"""The physical floor of the chain: plain processes, shared memory, one byte through a pipe as a signal. No Ray.

What crosses is copied once into shared memory that was mapped before, and read where it lies. Nothing can go wrong here
without the program hanging, and nothing grows or moves: it is a bound, and no way to build.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.dataplane.columns import Chain, bodies

Columns = dict[str, Any]


class Region:
    """Columns of one rank in shared memory, one after the other."""

    def __init__(self, chain: Chain, names: Sequence[str], rows: int) -> None:
        self.columns: dict[str, torch.Tensor] = {}
        sizes = {name: rows * chain.columns[name][0] * chain.columns[name][1].itemsize for name in names}
        memory, at = mmap.mmap(-1, max(1, sum(sizes.values()))), 0
        for name, size in sizes.items():
            width, dtype = chain.columns[name]
            flat = torch.frombuffer(memory, dtype=dtype, count=rows * width, offset=at)
            self.columns[name], at = flat.view(rows, width), at + size

    def fill(self, columns: Columns) -> None:
        """Copy these columns in."""
        for name, column in self.columns.items():
            column.copy_(columns[name])


class Signal:
    """One byte a signal, from one process to another."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def give(self, count: int = 1) -> None:
        """Signal so many times."""
        os.write(self._write, b"x" * count)

    def wait(self, count: int = 1) -> None:
        """Wait for so many."""
        while count:
            count -= len(os.read(self._read, count))


class Floor:
    """The chain's processes for one batch size. They are forked: build this before Ray and before torch has threads."""

    def __init__(self, chain: Chain, rows: int, ranks: int, colocated: bool, touch: bool = False) -> None:
        share = rows // ranks
        self._ranks, self._colocated = ranks, colocated
        self._prompts = [Region(chain, ["prompts"], share) for _ in range(ranks)]
        self._rollouts = [Region(chain, () if colocated else chain.crossing(), share) for _ in range(ranks)]
        self._advantages = [Region(chain, () if colocated else ("advantages",), share) for _ in range(ranks)]
        self._digests = torch.frombuffer(mmap.mmap(-1, 16 * ranks), dtype=torch.int64).view(ranks, 2)
        self._begin, self._rollout, self._advantage = ([Signal() for _ in range(ranks)] for _ in range(3))
        self._done = Signal()
        self._chain, self._touch = chain, touch
        context = multiprocessing.get_context("fork")
        works = (self._all,) if colocated else (self._actor, self._critic)
        self._processes = [context.Process(target=w, args=(r,), daemon=True) for w in works for r in range(ranks)]
        for process in self._processes:
            process.start()

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [process.pid for process in self._processes if process.pid]

    def _all(self, rank: int) -> None:
        torch.set_num_threads(1)
        body = bodies(self._chain, self._touch)
        while True:
            self._begin[rank].wait()
            columns: Columns = dict(self._prompts[rank].columns)
            for role in ("generate", "reference", "estimate", "score", "advantage"):
                columns |= body[role](columns)
            for place, role in enumerate(("update_critic", "update_actor")):
                self._digests[rank, place] = body[role](columns)["digest"]
            self._done.give()

    def _actor(self, rank: int) -> None:
        torch.set_num_threads(1)
        body = bodies(self._chain, self._touch)
        while True:
            self._begin[rank].wait()
            columns: Columns = body["generate"](self._prompts[rank].columns)
            self._rollouts[rank].fill(columns)
            self._rollout[rank].give()
            columns = columns | body["reference"](columns)
            self._advantage[rank].wait()
            self._digests[rank, 1] = body["update_actor"](columns | self._advantages[rank].columns)["digest"]
            self._done.give()

    def _critic(self, rank: int) -> None:
        torch.set_num_threads(1)
        body = bodies(self._chain, self._touch)
        while True:
            self._rollout[rank].wait()
            columns: Columns = dict(self._rollouts[rank].columns)
            for role in ("estimate", "score", "advantage"):
                columns |= body[role](columns)
            self._advantages[rank].fill(columns)
            self._advantage[rank].give()
            self._digests[rank, 0] = body["update_critic"](columns)["digest"]
            self._done.give()

    def prepare(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The batch as ``step`` takes it."""
        return batch.chunk(self._ranks)

    def step(self, shards: tuple[torch.Tensor, ...]) -> tuple[int, int]:
        """One step: the two digests."""
        for region, begin, shard in zip(self._prompts, self._begin, shards, strict=True):
            region.fill({"prompts": shard})
            begin.give()
        self._done.wait(len(self._processes))
        critic, actor = self._digests.sum(0).tolist()
        return critic, actor

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
