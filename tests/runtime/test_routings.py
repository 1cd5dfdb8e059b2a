"""What a run and its processes remember of earlier steps: enough for sizes that come again, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.plan.routes import compute_routes
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.messages import SMALL_PAYLOAD_BYTES
from hfdsl.runtime.routings import CACHED_ROUTINGS, Routings
from hfdsl.runtime.running import Running
from tests.runtime import plane_programs as p
from tests.runtime.plane_programs import pool


@hf.dataflow
def shifted(a: p.X, p: p.Worker, q: p.Worker) -> p.X:
    return q.shift(p.shift(a))


class R(hf.Dim):
    """Numbers of a row."""


class Rows(hf.Batch):
    x: f32[p.B, R]


class Wide(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def double(self, a: Rows) -> Rows:
        return Rows(x=a.x.tensor * 2)


@hf.dataflow
def widened(a: Rows, p: Wide) -> Rows:
    return p.double(a)


@pytest.fixture
def running() -> Iterator[Running]:
    deployment = hf.Deployment(p=hf.place(p.Worker, pool=pool(2)), q=hf.place(p.Worker, pool=pool(2)))
    with shifted.compile(deployment).launch() as running:
        yield running


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row count of every call of `compute_routes`; short steps are not measured, since they would route again."""
    rows: list[int] = []

    def counted(plan: Any, table: Any, *rest: Any) -> Any:
        rows.append(next(iter(table.rows.values())))
        return compute_routes(plan, table, *rest)

    monkeypatch.setattr("hfdsl.runtime.routings.compute_routes", counted)
    monkeypatch.setattr(Routings, "_find_short_steps", lambda self: frozenset())
    return rows


def step(running: Running, rows: int) -> None:
    numbers = torch.arange(rows, dtype=torch.float32)
    assert torch.equal(running.step(p.X(x=numbers)).x.tensor, numbers + 2)


def remembered(running: Running) -> list[int]:
    """How many routings the driver remembers, and how many specs every process does."""
    backend = running._processes.backend
    assert isinstance(backend, LocalBackend)
    processes = [executor for group in backend._executors.values() for executor in group]
    return [len(running._runner.routings.cache), *(len(process._specs) for process in processes)]


@pytest.mark.nightly
def test_a_thousand_sizes_are_not_all_remembered(running: Running, routed: list[int]) -> None:
    for rows in range(2, 2002, 2):
        step(running, rows)
    assert len(routed) == 1000
    assert remembered(running) == [CACHED_ROUTINGS] * 5  # a process of each of both groups does one segment


def test_those_that_were_used_last_are_remembered(running: Running, routed: list[int]) -> None:
    first, *others = range(2, 2 * CACHED_ROUTINGS + 4, 2)
    for rows in others:
        step(running, first)
        step(running, rows)
    assert routed == [first, *others]
    step(running, others[0])  # which was not used for longest
    assert routed == [first, *others, others[0]]
    step(running, first)
    assert len(routed) == CACHED_ROUTINGS + 2


def test_inputs_about_as_small_as_travel_with_a_call_are_routed_once(routed: list[int]) -> None:
    """Rows of another length, on either side of the limit, in turn."""
    long = 2 * SMALL_PAYLOAD_BYTES // 4 // 4  # numbers of a row of four that two ranks read
    with widened.compile(hf.Deployment(p=hf.place(Wide, pool=pool(2)))).launch() as running:
        for length in (long, long + 1) * 3:
            assert running.step(Rows(x=torch.ones(4, length))).x.tensor.sum() == 8 * length
    assert routed == [4, 4]
