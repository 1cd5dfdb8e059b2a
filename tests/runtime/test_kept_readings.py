"""Launches that a sync keeps for its digests on a GPU: they read what pieces hold now, wherever and whatever these are.

The kernel is simulated on the host: it reads the addresses of a launch's table, as the GPU does.
"""

from __future__ import annotations

import ctypes
import gc
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef

import hfdsl as hf
from benchmarks.digest_costs import NoKernel, as_on_a_gpu
from benchmarks.gpu.models import SIZES
from hfdsl.errors import SyncError
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, Slices
from hfdsl.runtime import digests
from hfdsl.runtime.digests import BegunDigests, DeviceSums, DigestLayouts, Digests
from hfdsl.runtime.ray.rank_process import RankProcess
from hfdsl.runtime.verification import arriving_digests, digest_stream
from hfdsl.runtime.verification.digest_stream import DigestsBeside, GroupToRead, PiecesToRead
from hfdsl.runtime.verification.leaving_digests import LeavingDigests
from hfdsl.runtime.verification.rank_digests import RankDigests
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights import exchange
from hfdsl.runtime.weights.held_boxes import HeldBoxes, located_pieces
from hfdsl.runtime.weights.held_parts import ComputedPart, HeldPart
from tests.runtime import resharding_programs as p
from tests.runtime.operations import Operations
from tests.runtime.test_exchange import launched


class HostKernel:
    """The kernel's sums over host memory; ``tables`` are those of all launches, which stay to be compared."""

    def __init__(self) -> None:
        self.tables: list[torch.Tensor] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, fields: torch.Tensor, count: int, tiles: int, totals: torch.Tensor, **constants: Any) -> None:
        self.tables.append(fields)
        for part, (_, words, of_rows, of_columns, rows, columns) in enumerate(fields.tolist()):
            factors = _words(of_rows, rows)[:, None] + _words(of_columns, columns)
            totals[part] += int((_words(words, rows * columns).reshape(rows, columns) * factors).sum())


def _words(address: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))


@contextmanager
def simulated() -> Iterator[HostKernel]:
    kernel = HostKernel()
    with as_on_a_gpu(kernel):
        yield kernel


def on_host(parts: Any, dtypes: Mapping[str, str]) -> Digests:
    """The digests of parts that the host reads itself."""
    begun = BegunDigests(dtypes)
    begun._on_devices = DeviceSums()
    begun.add(parts)
    return begun.digests()


# -- one side's pieces from sync to sync


REPLICAS = Replicas()


@dataclass(frozen=True)
class Held:
    """What a rank holds in a sync, and all else that its digests depend on."""

    pieces: dict[str, HeldPart]
    dtypes: Mapping[str, str] | None = None
    layout: Layout = REPLICAS

    @property
    def places(self) -> HeldBoxes:
        parameters = tuple(Parameter(name, (8, 16), "int64") for name in "xyz")
        return HeldBoxes(self.layout, hf.Mesh(tp=2), parameters, Replicas(), lambda rank: {})

    def parts(self) -> list[tuple[str, HeldPart]]:
        return list(located_pieces(self.pieces, self.places, 1))

    def read(self, layouts: DigestLayouts) -> Digests:
        begun = DigestsBeside(PiecesToRead(self.pieces, (self.places,)), self.dtypes, layouts)
        if begun.begin_again():
            begun.read_after(0, None)
        else:
            begun.read(lambda: [GroupToRead(0, self.parts(), beside=False)], [None])
        return begun.values().digests()


MEMORY = torch.arange(400, dtype=torch.int64) * 2**50 // 7
ELSEWHERE = MEMORY.flip(0)
TABLE = MEMORY[:64].view(4, 16)
BASE = Held({"x": HeldPart(TABLE, (0, 0)), "y": HeldPart(MEMORY[64:128].view(4, 16), (4, 0))})


def with_x(part: HeldPart) -> Held:
    return Held(BASE.pieces | {"x": part})


def negated(first: int, last: int) -> list[tuple[int, torch.Tensor]]:
    return [(row, -TABLE[row : row + 1]) for row in range(first, last)]


CHANGES = {
    "address": with_x(HeldPart(ELSEWHERE[:64].view(4, 16), (0, 0))),
    "offset": with_x(HeldPart(TABLE, (2, 0))),
    "no offset": with_x(HeldPart(TABLE)),
    "shape": with_x(HeldPart(TABLE[:3], (0, 0))),
    "strides": with_x(HeldPart(MEMORY.as_strided((4, 16), (32, 1)), (0, 0))),
    "dtype": with_x(HeldPart(TABLE.view(torch.float64), (0, 0))),
    "computed": with_x(ComputedPart(((0, 4), (0, 16)), torch.int64, torch.device("cpu"), negated)),
    "empty": with_x(HeldPart(TABLE[:0], (0, 0))),
    "names": Held({"y": BASE.pieces["x"], "x": BASE.pieces["y"]}),
    "order": Held(dict(reversed(BASE.pieces.items()))),
    "another weight": Held(BASE.pieces | {"z": HeldPart(ELSEWHERE[:16])}),
    "a weight fewer": Held({"x": BASE.pieces["x"]}),
    "dtypes": Held(BASE.pieces, {"x": "int32"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_the_last_sync_is_read_as_it_is(change: str) -> None:
    layouts = DigestLayouts()
    with simulated():
        for held in (BASE, BASE, CHANGES[change], CHANGES[change], BASE):
            assert held.read(layouts) == on_host(held.parts(), held.dtypes or {})


def test_pieces_have_the_places_of_the_layout_of_this_sync() -> None:
    layouts, pieces = DigestLayouts(), {"x": HeldPart(MEMORY[:64].view(4, 16)), "y": HeldPart(TABLE)}
    with simulated():
        for layout in (Slices(0), Slices(0), Replicas(), Slices(0)):
            held = Held(pieces, layout=layout)
            assert held.read(layouts) == on_host(held.parts(), {})
            assert {digest.box[0] for digest in held.read(layouts)} == {(4, 8) if layout == Slices(0) else (0, 4)}


def test_the_same_memory_has_the_same_tables_and_its_values_of_now() -> None:
    layouts, memory = DigestLayouts(), MEMORY[:64].clone()
    held = Held({"x": HeldPart(memory.view(4, 16))})
    with simulated() as kernel:
        for _ in range(3):
            memory += 1
            other_tensor = Held({"x": HeldPart(memory.view(4, 16))})
            assert other_tensor.read(layouts) == on_host(held.parts(), {})
    [first, *others] = kernel.tables
    assert len(others) == 2
    assert all(table is first for table in others)


def test_all_launches_of_the_next_sync_share_totals_that_are_cleared_once() -> None:
    groups = [GroupToRead(number, [(name, part)], True) for number, (name, part) in enumerate(BASE.pieces.items())]
    layouts, to_read = DigestLayouts(), PiecesToRead(BASE.pieces, ())
    with as_on_a_gpu(NoKernel()):
        DigestsBeside(to_read, layouts=layouts).read(lambda: groups, [None, None])
        again, operations = DigestsBeside(to_read, layouts=layouts), Operations()
        with operations:
            assert again.begin_again()
            for number in range(2):
                again.read_after(number, None)
    assert operations.names == ["aten.zero_.default"]


def test_the_digests_of_the_next_sync_are_in_the_order_of_the_parts() -> None:
    """Tiles have two shapes, so a group takes two launches, each of some of its parts."""
    shapes = [(2, 4), (1, 16), (1, 4), (2, 16), (3, 4), (1, 16)]
    pieces = {f"w{i}": HeldPart(MEMORY[32 * i :][: prod(shape)].view(shape)) for i, shape in enumerate(shapes)}
    groups = [GroupToRead(0, [*pieces.items()][:5], True), GroupToRead(1, [*pieces.items()][5:], False)]
    layouts, to_read = DigestLayouts(), PiecesToRead(pieces, ())
    with simulated() as kernel:
        DigestsBeside(to_read, layouts=layouts).read(lambda: groups, [None, None])
        again = DigestsBeside(to_read, layouts=layouts)
        assert again.begin_again()
        for number in range(2):
            again.read_after(number, None)
        assert again.values().digests() == on_host(pieces.items(), {})
    assert len(kernel.tables) == 2 * 3


def test_all_memory_of_digests_is_allocated_on_their_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream may still use it when it is freed, so nobody else may get it."""
    inside, elsewhere = [False], list[str]()

    @contextmanager
    def within(begun: Any) -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    monkeypatch.setattr(DigestsBeside, "_within", within)
    monkeypatch.setattr(Operations, "note", lambda self, name: None if inside[0] else elsewhere.append(name))
    layouts, to_read = DigestLayouts(), PiecesToRead(BASE.pieces, ())
    with as_on_a_gpu(NoKernel()):
        for again in (False, True):
            begun = DigestsBeside(to_read, layouts=layouts)
            with Operations():
                assert begun.begin_again() == again
                begun.read_after(0, None)
                if not again:
                    begun.read(lambda: [GroupToRead(0, list(BASE.pieces.items()), beside=False)], [None])
                begun.values()
    assert elsewhere == []


def test_parts_of_one_weight_are_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [("x", HeldPart(TABLE[:2], (0, 0))), ("x", HeldPart(TABLE[2:], (2, 0)))]
    layouts, right, lay_out = DigestLayouts(), on_host(halves, {}), mock.Mock(side_effect=digests._part_layout)
    monkeypatch.setattr(digests, "_part_layout", lay_out)
    for _ in range(2):
        begun = BegunDigests(layouts=layouts)
        begun.add(halves)
        assert begun.digests() == right
    assert lay_out.call_count == len(halves)


def test_a_sync_in_inference_mode_may_come_before_another_one() -> None:
    layouts = DigestLayouts()
    with simulated():
        for mode in (True, False, True):
            with torch.inference_mode(mode):
                assert BASE.read(layouts) == on_host(BASE.parts(), {})


def test_nothing_that_a_role_held_is_kept() -> None:
    layouts, memory = DigestLayouts(), MEMORY.clone()
    with simulated():
        Held({"x": HeldPart(memory[:64].view(4, 16))}).read(layouts)
    assert layouts.reading is not None
    storage = StorageWeakRef(memory.untyped_storage())
    del memory
    gc.collect()
    assert storage.expired()


# -- when weights are read


@pytest.mark.parametrize("size", ["1.3B", "7B"])
def test_one_launch_reads_all_weights_of_a_model(size: str) -> None:
    weights = SIZES[size].parameters()
    with as_on_a_gpu(NoKernel()):
        held = [torch.empty(each.shape, dtype=torch.bfloat16, device="meta") for each in weights]
        read = BegunDigests().add((each.name, HeldPart(tensor)) for each, tensor in zip(weights, held, strict=True))
    assert read is not None
    assert [len(launch.indices) for launch in read.launches] == [len(weights)]


class NotingKernel(HostKernel):
    """Notes its launches among what a host submits."""

    def __init__(self, submitted: list[str]) -> None:
        super().__init__()
        self.submitted = submitted

    def _launch(self, *arguments: Any, **constants: Any) -> None:
        self.submitted.append("reads")
        super()._launch(*arguments, **constants)


def test_the_next_sync_reads_each_bucket_right_after_its_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts, pieces = DigestLayouts(), {f"w{i}": HeldPart(MEMORY[8 * i : 8 * i + 8]) for i in range(3)}
    monkeypatch.setattr(arriving_digests, "READS", 3)
    first = ["writes w0", "writes w1", "writes w2", "all written", "reads", "reads", "reads"]
    later = ["writes w0", "reads", "writes w1", "reads", "writes w2", "reads", "all written"]
    for order in (first, later, later):
        submitted: list[str] = []
        with as_on_a_gpu(NotingKernel(submitted)):
            arriving = digests_of_arriving(3 * 64, pieces, layouts)
            for name in pieces:
                submitted.append(f"writes {name}")
                arriving.note_write(frozenset([name]), 64)
            submitted.append("all written")
            arriving.end(pieces)
            values = arriving.values()
        assert submitted == order
        assert values is not None
        assert values.digests() == on_host(pieces.items(), {})


def test_what_is_written_once_more_than_in_the_last_sync_is_read_as_it_is_in_the_end() -> None:
    layouts, memory = DigestLayouts(), MEMORY[:8].clone()
    with simulated():
        for times in (1, 1, 2, 2, 1):
            arriving = digests_of_arriving(times * 64, {"x": HeldPart(memory)}, layouts)
            for _ in range(times):
                memory += 1
                arriving.note_write(frozenset(["x"]), 64)
            arriving.end({"x": memory})
            values = arriving.values()
            assert values is not None
            assert values.digests() == on_host([("x", HeldPart(memory))], {})


def test_the_next_exchange_is_submitted_after_the_reading_of_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts, process, rank, submitted = DigestLayouts(), RankProcess.__new__(RankProcess), RankDigests(), list[str]()
    process._failed, process._broadcasts = None, deque()
    process._executor = cast(Any, SimpleNamespace(synced_digests=rank))
    monkeypatch.setattr(exchange, "send_all", lambda exchanges: submitted.append("sends"))
    with as_on_a_gpu(NotingKernel(submitted)):
        for order in (["sends", "reads"], ["reads", "sends"], ["reads", "sends"]):
            submitted.clear()
            leaving = LeavingDigests(BASE.pieces, BASE.places, 1, {}, layouts, beside=True)
            rank._leaving.append((VerifiedSync("policy", "actor", "sampler"), 1, leaving))
            process._exchanges = {(0, 1): []}
            [report] = process.broadcast()
            assert submitted == order
            assert report[-1] == [digest.value for digest in on_host(BASE.parts(), {})]


@given(st.data())
def test_nothing_is_read_before_its_last_write_in_any_sync(data: st.DataObject) -> None:
    """Pieces share memory, move, and come in other orders; syncs keep the groups of the ones before."""
    layouts, now, memories = DigestLayouts(), [0], [torch.zeros(60, dtype=torch.int64) for _ in range(2)]
    spans = data.draw(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), min_size=1, max_size=4))
    orders = st.lists(st.integers(0, len(spans) - 1), min_size=1, max_size=12)
    choices = data.draw(st.lists(orders, min_size=1, max_size=2))

    @contextmanager
    def once(begun: Any, after: int) -> Iterator[None]:
        now[0] = after
        yield

    with simulated() as kernel, pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest_stream.DigestsBeside, "_once", once)
        read = _reads(kernel, patch, now)
        for _ in range(4):
            memory, order = data.draw(st.sampled_from(memories)), data.draw(st.sampled_from(choices))
            pieces = {f"w{i}": HeldPart(memory[start : start + size]) for i, (start, size) in enumerate(spans)}
            clock, written = [0], [0] * 60
            patch.setattr(arriving_digests, "moment", lambda clock=clock: clock[0])
            arriving = digests_of_arriving(8 * sum(spans[i][1] for i in order), pieces, layouts)
            read.clear()
            for i in order:
                clock[0] += 1
                start, size = spans[i]
                memory[start : start + size] += clock[0]
                written[start : start + size] = [clock[0]] * size
                arriving.note_write(frozenset([f"w{i}"]), 8 * size)
            arriving.end(pieces)
            values = arriving.values()
            assert values is not None
            assert sorted(values.digests(), key=_name) == sorted(on_host(pieces.items(), {}), key=_name)
            counted = read[-len(spans) :]  # those before them are dropped
            assert sorted(place for place, _ in counted) == sorted((memory[i:].data_ptr(), n) for i, n in spans)
            for (address, size), after in counted:
                start = (address - memory.data_ptr()) // 8
                assert after >= max(written[start : start + size])


def digests_of_arriving(
    size: int, pieces: Mapping[str, HeldPart], layouts: DigestLayouts
) -> arriving_digests.ArrivingDigests:
    kinds = [(name, *piece.kind) for name, piece in pieces.items()]
    places = HeldBoxes(Replicas(), hf.Mesh(), (), Replicas(), lambda rank: {})
    return arriving_digests.ArrivingDigests(size, pieces, kinds, places, 0, layouts)


def _name(digest: Any) -> str:
    return str(digest.name)


def _reads(kernel: HostKernel, patch: pytest.MonkeyPatch, now: list[int]) -> list[tuple[tuple[int, int], int]]:
    """Each address and number of words that is read, and the moment after which it is."""
    reads, launch = list[tuple[tuple[int, int], int]](), kernel._launch

    def noted(fields: torch.Tensor, *others: Any, **constants: Any) -> None:
        for _, address, _, _, rows, columns in fields.tolist():
            reads.append(((address, rows * columns), now[0]))
        launch(fields, *others, **constants)

    patch.setattr(kernel, "_launch", noted)
    return reads


# -- runs


def moved(worker: Any) -> None:
    worker.table = {name: part.clone() for name, part in worker.table.items()}


@pytest.mark.parametrize("role", ["actor", "engine"])
def test_weights_that_move_between_verified_steps_are_compared_where_they_are(role: str) -> None:
    with simulated() as kernel, launched(p.Written, fails=4) as running:
        tables = [0]
        for step in range(4):
            if step == 2:
                running._processes.backend.of_workers(role, moved)
            with running.verifying("policy"):
                assert all(running.step())
            tables.append(len({id(table) for table in kernel.tables}))
        new = [after - before for before, after in pairwise(tables)]
        assert new[0] > new[2] > new[1] == new[3] == 0
        with pytest.raises(SyncError, match=r"'engine' holds other values of '\w+'.* on ranks? 0"), running.verifying():
            running.step()
