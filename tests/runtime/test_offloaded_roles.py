"""A role knows when it is constructed whether it has to give its GPU's memory back."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.protocols.worker import current_rank


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Model(hf.Worker):
    def __init__(self) -> None:
        context = current_rank.get()
        assert context is not None
        self.offloads = context.offloads

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("weights")
    def apply(self, rows: Rows) -> Rows:
        return rows

    def offload(self, part: str) -> None: ...

    def onload(self, part: str) -> None: ...


@hf.dataflow
def applied(rows: Rows, first: Model, second: Model) -> Rows:
    return second.apply(first.apply(rows))


@pytest.mark.parametrize("offload", [True, False])
def test_a_worker_knows_whether_a_plan_offloads_it(offload: bool) -> None:
    pool = hf.ResourcePool([1])
    deployment = hf.Deployment(
        first=hf.place(Model, pool=pool, offload=offload), second=hf.place(Model, pool=pool, offload=False)
    )
    with applied.compile(deployment, {B: 2}).launch("local") as running:
        backend: Any = running._processes.backend
        known = [backend.of_workers(role, lambda worker: worker.offloads) for role in ("first", "second")]
    assert known == [[offload], [False]]
