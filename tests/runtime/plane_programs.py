"""Programs for the data plane: roles with state, roles that take time, roles that keep what they are given."""

from __future__ import annotations

import math
import time
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class X(hf.Batch):
    x: f32[B]


class Drawn(hf.Batch):
    x: f32[B]
    draws: f32[B]
    name: hf.Obj[str, B]


class Sum(hf.Batch):
    total: hf.Metric[float, Literal["sum"]]


EVERYWHERE = hf.Protocol("EVERYWHERE", collect={"rank": "first"})


class Counter(hf.Worker):
    """Counts its calls: the first caller sees the lower number."""

    def __init__(self) -> None:
        self.calls = 0

    @register(Dispatch.DP_PROTO, pad="cycle")
    def tick(self, a: X) -> X:
        self.calls += 1
        return X(x=torch.full_like(a.x.tensor, self.calls))


class Worker(hf.Worker):
    def __init__(self) -> None:
        self.last = torch.zeros(1)

    @register(Dispatch.DP_PROTO)
    def positive(self, a: X) -> hf.bool_[B]:
        return hf.bool_(a.x.tensor > 0)

    @register(Dispatch.DP_PROTO)
    def make(self, a: X) -> Drawn:
        """Numbers drawn by row, and one that every rank draws for itself."""
        draws = hf.current_call().uniforms(1)[:, 0]
        return Drawn(
            x=a.x.tensor * 1.1, draws=draws + torch.rand(()), name=[f"{x:.2f}" for x in a.x.tensor[:].tolist()]
        )

    @register(Dispatch.DP_PROTO)
    def mix(self, a: Drawn) -> Drawn:
        return Drawn(
            x=a.x.tensor / 3 + a.draws.tensor, draws=a.draws.tensor.sin(), name=[n + "'" for n in a.name.objects]
        )

    @register(Dispatch.DP_PROTO)
    def total(self, x: f32[B], draws: f32[B]) -> Sum:
        return Sum(total=float((x.tensor * draws.tensor).sum()))

    @register(Dispatch.DP_PROTO)
    def shift(self, a: X) -> X:
        return X(x=a.x.tensor + 1)

    @register(Dispatch.DP_PROTO, pad="cycle")
    def spread(self, a: X) -> X:
        return X(x=a.x.tensor + 1)

    @register(Dispatch.DP_PROTO)
    def both(self, a: X, b: X) -> X:
        return X(x=a.x.tensor + b.x.tensor)

    @register(Dispatch.DP_PROTO)
    def hold(self, a: X) -> X:
        self.last = a.x.tensor
        return X(x=a.x.tensor.clone())

    @register(EVERYWHERE)
    def shift_all(self, a: X) -> X:
        return self.shift(a)

    @register(EVERYWHERE)
    def hold_all(self, a: X) -> X:
        return self.hold(a)

    @register(Dispatch.ONE_TO_ALL)
    def held(self) -> float:
        return float(self.last.sum())

    @register(Dispatch.ONE_TO_ALL)
    def large(self) -> int:
        return 2**70 + self.rank

    @register(Dispatch.ONE_TO_ALL)
    def share(self) -> float:
        return math.inf if self.rank else 0.1

    @register(Dispatch.ONE_TO_ALL)
    def first(self) -> bool:
        return self.rank == 0

    @register(Dispatch.DP_PROTO)
    def work(self, a: X) -> X:
        time.sleep(0.05)
        return X(x=a.x.tensor + 1)

    @register(EVERYWHERE)
    def judged(self, a: X) -> hf.bool_[B]:
        """Rank 0 has the value, and waits for a peer that has failed."""
        if self.rank == 1:
            raise ValueError("no judgement")
        self.axis("dp").barrier()
        return hf.bool_(a.x.tensor > 0)


@hf.dataflow
def counted(a: X, judge: Worker, counter: Counter) -> tuple[X, X, X]:
    """The second call waits for a filter; the third, which does not, comes after it nevertheless."""
    first = counter.tick(a)
    some = hf.filter(a, judge.positive(a))
    return first, hf.fill(counter.tick(some), 2), counter.tick(a)


@hf.dataflow
def mixed(a: X, p: Worker, q: Worker) -> tuple[Drawn, Sum, Sum, Sum]:
    rows = p.make(a)
    first, second = hf.minibatches(q.mix(rows), 2)
    again = p.mix(p.mix(rows))
    return again, q.total(first.x, first.draws), q.total(second.x, second.draws), p.total(again.x, rows.draws)


@hf.dataflow
def turns(a: X, p: Worker, q: Worker) -> tuple[X, X, X, X]:
    """Four calls that need nothing of each other."""
    return p.work(a), q.work(a), p.work(a), q.work(a)


@hf.dataflow
def keeps(a: X, p: Worker, q: Worker) -> tuple[X, hf.PerRank[float], X]:
    shifted, before = p.shift(a), q.held()
    return shifted, before, q.hold(shifted)


@hf.dataflow
def keeps_all(a: X, p: Worker, q: Worker) -> tuple[X, hf.PerRank[float], X]:
    """Every rank is handed the very value that is returned."""
    shifted, before = p.shift_all(a), q.held()
    return shifted, before, q.hold_all(shifted)


@hf.dataflow
def small_results(p: Worker) -> tuple[hf.PerRank[int], hf.PerRank[float], hf.PerRank[bool]]:
    return p.large(), p.share(), p.first()


@hf.dataflow
def sifted(a: X, p: Worker, q: Worker) -> X:
    """A filter in the middle: what went before it is taken by then, but for the rows that it keeps."""
    some = hf.filter(p.shift(a), q.positive(q.shift(p.shift(a))))
    return q.spread(p.spread(some))


@hf.dataflow
def neighbors(a: X, p: Worker, q: Worker, r: Worker) -> tuple[X, X]:
    first = p.shift(a)
    second = p.shift(first)
    return q.both(first, second), r.shift(second)


@hf.dataflow
def judges(a: X, p: Worker) -> X:
    return hf.filter(a, p.judged(a))


def xs(*values: float) -> X:
    return X(x=torch.tensor(values))


def pool(*sizes: int) -> hf.ResourcePool:
    return hf.ResourcePool(list(sizes), use_gpu=False)
