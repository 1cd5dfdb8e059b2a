"""Collectives: who the peers are, what is reduced, and what a group of one does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import ProtocolError
from hfdsl.protocols.collectives import (
    AxisGroup,
    SoleRank,
    peers,
    record_collective,
    recorded_collectives,
    reduce_in_order,
    refuse_without_peers,
    without_peers,
)
from hfdsl.protocols.mesh import AXES, GENERATION_AXES, Mesh, axis_rank, axis_size
from tests.protocols.test_mesh import meshes

T = TypeVar("T")


class Heard(AxisGroup):
    """A group whose other ranks say what is written down."""

    def __init__(self, others: Sequence[object]) -> None:
        self.size, self.rank, self.others, self.calls = len(others) + 1, 0, others, 0

    def all_gather(self, value: T) -> list[T]:
        self.calls += 1
        return [value, *self.others]  # type: ignore[list-item]


@pytest.mark.parametrize("axes", [AXES, GENERATION_AXES], ids=["training", "generation"])
@given(mesh=meshes(most=3))
def test_peers_differ_along_one_axis_only_and_see_each_other(axes: tuple[str, ...], mesh: Mesh) -> None:
    for axis in axes:
        for rank in range(mesh.world_size):
            group = peers(mesh, rank, axis)
            assert [axis_rank(mesh, axis, peer) for peer in group] == list(range(axis_size(mesh, axis)))
            assert rank in group
            assert all(peers(mesh, peer, axis) == group for peer in group)
            for name in set(axes) - {axis}:
                assert len({axis_rank(mesh, name, peer) for peer in group}) == 1


@given(meshes(most=3))
def test_the_world_is_every_rank_in_order(mesh: Mesh) -> None:
    assert peers(mesh, mesh.world_size - 1, "world") == tuple(range(mesh.world_size))


def test_an_unknown_axis_is_named_with_those_there_are() -> None:
    with pytest.raises(ProtocolError, match=r"HF409: the mesh .* has no axis 'ep'; there are pp, dp, tp and world$"):
        peers(Mesh(dp=2), 0, "ep")


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5))
def test_reductions_of_numbers_and_tensors_agree_with_python(values: list[int]) -> None:
    expected = {"sum": sum(values), "mean": sum(values) / len(values), "max": max(values), "min": min(values)}
    columns = [torch.tensor([float(value), -float(value)]) for value in values]
    opposite = {"sum": -sum(values), "mean": -sum(values) / len(values), "max": -min(values), "min": -max(values)}
    for op, number in expected.items():
        assert reduce_in_order(values, op) == number
        assert reduce_in_order(columns, op).tolist() == pytest.approx([number, opposite[op]])


def test_the_first_rank_of_equal_ones_gives_the_value() -> None:
    # 0.0 and -0.0 compare equal and differ in their bits: every rank must keep the same one.
    for op in ("max", "min"):
        assert str(reduce_in_order([0.0, -0.0], op)) == "0.0"
        assert str(reduce_in_order([-0.0, 0.0], op)) == "-0.0"


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"HF424: no reduction 'prod' over ranks"):
        reduce_in_order([1, 2], "prod")


def test_broadcast_and_barrier_are_one_gathering_each() -> None:
    group = Heard([20, 30])
    assert group.broadcast(10) == 10
    assert group.broadcast(10, source=2) == 30
    assert group.all_reduce(10) == 60
    assert group.all_reduce(10, "max") == 30
    group.barrier()
    assert group.calls == 5


def test_a_rank_alone_gets_a_copy_of_its_tensor() -> None:
    column = torch.zeros(2)
    [gathered] = SoleRank().all_gather(column)
    gathered += 1
    assert column.tolist() == [0, 0]
    assert SoleRank().all_gather("text") == ["text"]
    assert (SoleRank().size, SoleRank().rank) == (1, 0)


class Connected:
    """What connects ranks; only who it is matters here."""

    def group(self, ranks: tuple[int, ...], rank: int) -> SoleRank:
        return SoleRank()


def test_results_of_collectives_are_recorded_unchanged() -> None:
    here, peer = (connected := Connected(), 0), (connected, 1)
    assert record_collective(here, "reduced", 1) == 1, "nobody records"
    column = torch.zeros(1)
    with recorded_collectives(here) as heard, recorded_collectives(peer) as by_peer:
        assert record_collective(here, "reduced", column) is column
        record_collective(peer, "gathered", [column, "text"])
        record_collective(here, "reduced", 5)
    column += 1
    assert [how for how, _ in heard] == ["reduced", "reduced"]
    assert heard[0][1].tolist() == [0], "a later change of the tensor is not seen"
    assert heard[1][1] == 5
    [(how, (first, second))] = by_peer
    assert (how, first.tolist(), second) == ("gathered", [0], "text")
    record_collective(here, "reduced", 1)
    assert len(heard) == 2


def test_a_call_of_rank_zero_alone_has_no_peers() -> None:
    here, peer = (connected := Connected(), 0), (connected, 1)
    with without_peers(here, "critic.save"), ThreadPoolExecutor(1) as thread:
        for refused in (partial(refuse_without_peers, here), thread.submit(refuse_without_peers, here).result):
            with pytest.raises(ProtocolError, match=r"HF410: 'critic\.save' runs on rank 0 alone"):
                refused()
        refuse_without_peers(peer)
    refuse_without_peers(here)
