"""Digests that are taken beside an exchange: the verdict of those that are asked for, without asking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import SyncError
from hfdsl.protocols.layouts import Replicas
from hfdsl.runtime.verification import arriving_digests
from hfdsl.runtime.verification.comparison import compare
from hfdsl.runtime.verification.digest_report import DigestReport
from hfdsl.runtime.verification.driver_reports import DriverReports
from hfdsl.runtime.weights import exchange, messages
from hfdsl.runtime.weights.held_boxes import HeldBoxes
from hfdsl.runtime.weights.held_parts import HeldPart
from hfdsl.runtime.weights.messages import BufferedMessage
from tests.runtime import resharding_programs as p
from tests.runtime.test_exchange import launched
from tests.runtime.test_verification import SYNC, layouts, of, weights

# -- the comparison


def reporting(rank: int, exported: bool, key: str, parts: Any, values: list[int]) -> DigestReport:
    return DigestReport(sync=SYNC, rank=rank, exported=exported, key=key, parts=parts, values=values)


def reported(source: list[Any], target: list[Any], known: DriverReports) -> bool:
    """What both sides report, as it comes over the wire."""
    reports = []
    for exported, ranks in ((True, source), (False, target)):
        for rank, digests in enumerate(ranks):
            parts = tuple((digest.name, digest.box, digest.dtype) for digest in digests)
            report = reporting(rank, exported, f"{exported} {rank}", parts, [digest.value for digest in digests])
            reports.append(DigestReport.from_wire(report.to_wire()))
    known.replace(reports)
    assert known.complete(SYNC, len(source), len(target))
    assert known.digests(SYNC, exported=True) == source
    return known.agree(SYNC)


def same(source: list[Any], target: list[Any]) -> bool:
    try:
        compare(SYNC, source, target)
    except SyncError:
        return False
    return True


@given(st.data())
def test_reports_have_the_verdict_of_the_digests(data: st.DataObject) -> None:
    weight = data.draw(weights())
    source, target = data.draw(layouts(weight)), data.draw(layouts(weight))
    assert reported(of(source), of(target), DriverReports())
    for side in (source, target):
        rank = data.draw(st.integers(0, len(side) - 1))
        name, piece = side[rank][0]
        spoiled = piece.tensor.clone()
        spoiled.view(-1)[data.draw(st.integers(0, spoiled.numel() - 1))] = data.draw(st.integers(-3, 3))
        side[rank] = [(name, HeldPart(spoiled, piece.offset))]
        assert reported(of(source), of(target), DriverReports()) == same(of(source), of(target))


def test_names_come_once_and_reports_count_for_one_step() -> None:
    reports, source = DriverReports(), of([[("x", HeldPart(torch.ones(3)))]])
    assert reported(source, source, reports)
    values = [source[0][0].value]
    reports.replace([reporting(0, exported, f"{exported} 0", None, values) for exported in (True, False)])
    assert reports.complete(SYNC, 1, 1)
    assert reports.agree(SYNC)
    assert not reports.complete(SYNC, 2, 1)
    reports.replace([reporting(0, True, "True 0", None, values)])
    assert not reports.complete(SYNC, 1, 1)
    reports.replace([reporting(0, exported, "of a rank that was replaced", None, values) for exported in (True, False)])
    assert not reports.complete(SYNC, 1, 1)
    renamed = of([[("y", HeldPart(torch.ones(3)))]])
    assert not reported(source, renamed, DriverReports())


# -- what is read when

ANYWHERE = HeldBoxes(Replicas(), hf.Mesh(), (), Replicas(), lambda rank: {})


class Reads:
    """In place of a stream: what was to be read after which moment."""

    def __init__(self, to_read: Any, layouts: Any = None) -> None:
        self.after: dict[str, int] = {}
        self.beside: set[str] = set()

    def begin_again(self) -> bool:
        return False

    def read_after(self, number: int, after: Any) -> None: ...

    def has_read(self, writes: Any) -> bool:
        return False

    def read(self, groups: Any, moments: Any, writes: Any) -> None:
        for after, parts, beside in groups():
            self.after |= {name: moments[after] for name, _ in parts}
            self.beside |= {name for name, _ in parts} if beside else set()


@given(st.data())
def test_nothing_is_read_before_its_memory_was_written_last(data: st.DataObject) -> None:
    """Whatever pieces share memory: the oracle marks every byte with the number of its last write."""
    memory, written, clock = torch.zeros(60), [0] * 60, [0]
    spans = data.draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), min_size=1, max_size=6))
    pieces = {f"w{i}": HeldPart(memory[start : start + size]) for i, (start, size) in enumerate(spans)}
    order = data.draw(st.lists(st.sampled_from(sorted(pieces)), min_size=1, max_size=30))
    total = sum(4 * pieces[name].tensor.numel() for name in order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arriving_digests, "moment", lambda: clock[0])
        patch.setattr(arriving_digests, "DigestsBeside", Reads)
        arriving = arriving_digests.ArrivingDigests(total, pieces, [], ANYWHERE, 0)
        for name in order:
            clock[0] += 1
            start, size = spans[int(name[1:])]
            written[start : start + size] = [clock[0]] * size
            arriving.note_write(frozenset([name]), 4 * size)
        arriving.end(pieces)
    reads: Any = arriving._beside
    assert reads.after.keys() == pieces.keys()
    assert reads.beside == {name for name, after in reads.after.items() if after < max(reads.after.values())}
    for name, (start, size) in zip(pieces, spans, strict=True):
        assert reads.after[name] >= max(written[start : start + size])
    assert len(set(reads.after.values())) <= arriving_digests.READS + 1


# -- runs


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No digests but those of the dtypes, before the first step, are asked for."""
    from hfdsl.runtime.local import LocalBackend

    calls, digests = list[Any](), LocalBackend.digests

    def once(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        assert len(calls) == 1
        return digests(*arguments, **named)

    monkeypatch.setattr(LocalBackend, "digests", once)


@pytest.mark.parametrize("engine", [p.Holding, p.Written, p.Moved, p.Dropped, p.Elsewhere])
@pytest.mark.usefixtures("unasked")
def test_a_step_has_its_verdict_without_a_call(engine: type[p.Engine]) -> None:
    with launched(engine, fails=-1 if engine is p.Holding else 2) as running:
        for _ in range(2):
            with running.verifying("policy"):
                assert all(running.step())
        if engine is not p.Holding:
            holds = rf"'engine' holds {'no' if engine is p.Dropped else 'other values of'} '\w+'.* on ranks? 0"
            with pytest.raises(SyncError, match=holds) as raised, running.verifying():
                running.step()
            assert raised.value.version == 3
        assert not running._processes.verifying


@pytest.mark.usefixtures("unasked")
def test_what_arrives_spoiled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = messages.pack

    def spoiling(message: BufferedMessage, held: Any) -> None:
        pack(message, held)
        if message.message.target == 1:
            message.packed[0] ^= 1

    with launched(p.Holding) as running:
        with running.verifying():
            running.step()
        monkeypatch.setattr(exchange, "pack", spoiling)
        with pytest.raises(SyncError, match="HF771") as raised, running.verifying():
            running.step()
        assert 1 in raised.value.ranks


def test_a_copy_is_asked_for_what_it_is_now() -> None:
    with launched(p.Holding) as running, running.verifying():
        running.step()
        running.step()
        held = running._processes.backend
        held.of_workers("engine", lambda worker: worker.table["norm"].add_(1))
        with pytest.raises(SyncError, match="'norm'"):
            running.verify("policy")


class Whole(p.Engine):
    """Loads slices, and keeps whole parameters: others' parts, too, unless it ``fails`` to get them."""

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return self.table

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=lambda mesh, layout, fails=-1: layout)
    def load(self, weights: dict[str, Any]) -> None:
        step = hf.current_call().step
        known = 0 if step == self.fails else step
        self.table = {parameter.name: p.whole(parameter, known) for parameter in p.PARAMETERS}
        for parameter in p.PARAMETERS:
            for box in self.layout.boxes(parameter, self.mesh, self.rank):
                place = tuple(slice(*extent) for extent in box)
                self.table[parameter.name][place] = p.whole(parameter, step)[place]


def test_a_whole_parameter_where_a_slice_is_declared_is_compared_as_a_whole() -> None:
    """It has more than its layout says, which is right if all of it is; ``check_layouts`` is for the layout."""
    with launched(Whole, fails=1) as running:
        with running.verifying("policy"):
            running.step()
        assert running.verify("policy").compared == (SYNC,)
        with pytest.raises(SyncError, match=r"'engine' holds other values of '\w+' of 'policy' on ranks 0, 1"):  # noqa: SIM117  # the block raises as it ends
            with running.verifying("policy"):
                running.step()


@hf.dataflow
def unsynced(engine: p.Holding) -> hf.PerRank[bool]:
    return engine.same()


def test_weights_of_processes_that_a_launch_has_not_linked_are_verified(ray_cluster: Any) -> None:
    """Without links the weights go through the object store, so no exchange follows to take digests in."""
    train, roll = hf.ResourcePool([2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)
    deployment = hf.Deployment(
        actor=hf.place(p.Trainer, p.TENSOR, pool=train, mesh=hf.Mesh(tp=2)),
        engine=hf.place(p.Holding, p.TENSOR, -1, pool=roll),
    )
    with unsynced.compile(deployment).launch("ray") as launched:
        running = launched.also(p.synced.compile(deployment))
        for _ in range(2):
            with running.verifying():
                running.step()
            reported = running._processes.syncs.reported
            assert reported is not None
            assert len(reported.digests(SYNC, exported=True)) == 2
            verified = running.verify("policy")
            assert verified.compared == (SYNC,), verified.skipped


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [p.Holding, p.Written])
def test_the_same_between_processes(ray_cluster: Any, engine: type[p.Engine]) -> None:
    with launched(engine, fails=-1 if engine is p.Holding else 3, backend="ray") as running:
        with running.verifying():
            running.step()
        running._processes.backend.digests = None  # asked for no more
        running.step()
        with running.verifying():
            assert all(running.step())
        if engine is p.Written:
            with pytest.raises(SyncError, match="on rank 0"), running.verifying():
                running.step()
