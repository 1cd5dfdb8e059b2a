# mypy: disable-error-code="empty-body"
"""CUDA IPC is refused exactly where it is known not to reach a reader."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, ResourcePool, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B]


class Maker(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def make(self, rows: Rows) -> Rows: ...


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def read(self, rows: Rows) -> Rows: ...


def everywhere(group: Any, rows: Any) -> Any:
    return ([rows] * group.world_size,), {}


class ByFunctions(hf.Worker):
    @register({"dispatch_fn": everywhere, "collect_fn": lambda group, outputs: outputs[0]})
    def read(self, rows: Rows) -> Rows: ...


@hf.dataflow
def program(rows: Rows, maker: Maker, reader: Reader) -> Rows:
    return reader.read(maker.make(rows))


@hf.dataflow
def by_functions(rows: Rows, maker: Maker, reader: ByFunctions) -> Rows:
    return reader.read(maker.make(rows))


POOL = ResourcePool([4, 4], name="pool")
FIRST, SECOND = POOL.split([4, 4])
WITHIN, ACROSS = POOL.split([2, 6])
APART = ResourcePool([4], name="apart")
CPUS = ResourcePool([4], use_gpu=False, name="cpus")


@pytest.mark.parametrize(
    ("maker", "reader", "why"),
    [
        (POOL, POOL, None),
        (FIRST, SECOND, "it is on other nodes, and CUDA IPC only works between processes of one node"),
        (WITHIN, ACROSS, None),  # they share a node
        (FIRST, APART, None),  # nobody knows where another pool will lie
        (FIRST, CPUS, "its pool 'cpus' has no GPUs"),
    ],
)
def test_a_reader_is_out_of_reach_only_where_that_is_known(
    maker: ResourcePool, reader: ResourcePool, why: str | None
) -> None:
    def messages(flow: Any, role: type[hf.Worker]) -> list[str]:
        places = hf.Deployment(
            maker=hf.place(Maker, pool=maker, transport="cuda ipc"), reader=hf.place(role, pool=reader)
        )
        return [finding.message for finding in flow.check(places, dims={B: 24}) if finding.code == "HF524"]

    expected = [f"role 'maker' sends by CUDA IPC, which does not reach 'reader': {why}"] if why else []
    assert messages(program, Reader) == expected
    assert messages(by_functions, ByFunctions) == [], "a pair of functions gets it in the driver"


def test_of_several_readers_the_first_out_of_reach_is_reported() -> None:
    @hf.dataflow
    def twice(rows: Rows, maker: Maker, first: Reader, second: Reader) -> None:
        rows_made = maker.make(rows)
        first.read(rows_made)
        second.read(rows_made)

    reader = hf.place(Reader, pool=CPUS)
    places = hf.Deployment(maker=hf.place(Maker, pool=FIRST, transport="cuda ipc"), first=reader, second=reader)
    [finding] = [finding for finding in twice.check(places, dims={B: 24}) if finding.code == "HF524"]
    assert "does not reach 'first'" in finding.message


def test_a_sender_without_gpus_is_reported_alone() -> None:
    places = hf.Deployment(maker=hf.place(Maker, pool=CPUS, transport="cuda ipc"), reader=hf.place(Reader, pool=CPUS))
    [finding] = [finding for finding in program.check(places, dims={B: 24}) if finding.code == "HF524"]
    assert finding.message.endswith("but pool 'cpus' has none")


def test_who_reads_something_else_need_not_be_reached() -> None:
    @hf.dataflow
    def beside(rows: Rows, maker: Maker, reader: Reader) -> tuple[Rows, Rows]:
        return maker.make(rows), reader.read(rows)

    places = hf.Deployment(maker=hf.place(Maker, pool=FIRST, transport="cuda ipc"), reader=hf.place(Reader, pool=CPUS))
    assert "HF524" in program.check(places, dims={B: 24}).codes
    assert "HF524" not in beside.check(places, dims={B: 24}).codes


@pytest.mark.parametrize(("late", "decides"), [("wait", False), ("drop", True), ("refill", True)])
def test_rows_of_a_queue_that_decides_wait_in_the_object_store(late: Any, decides: bool) -> None:
    @hf.dataflow
    def queued(rows: Rows, maker: Maker, reader: Reader) -> Rows:
        return reader.read(hf.queue(maker.make(rows), lag=2, late=late))

    reader = hf.place(Reader, pool=APART)
    places = hf.Deployment(maker=hf.place(Maker, pool=FIRST, transport="cuda ipc"), reader=reader)
    messages = [finding.message for finding in queued.check(places, dims={B: 24}) if finding.code == "HF524"]
    why = "it reads from a dynamic queue, whose rows wait in the object store"
    assert messages == [f"role 'maker' sends by CUDA IPC, which does not reach 'reader': {why}"] * decides
    anyhow = hf.Deployment(maker=hf.place(Maker, pool=FIRST), reader=reader)
    transports = {edge.transport for edge in queued.compile(anyhow, dims={B: 24}).edges}
    assert ("cuda ipc" in transports) != decides, "as the plan says"
