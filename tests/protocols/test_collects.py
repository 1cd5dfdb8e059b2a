"""What a collect is said to do against what it does: real rows on every rank, the real collect, the value compared.

A declared protocol cannot permute rows, miss a chunk or give the ranks of one coordinate different parts, which are the
mistakes that a pair of functions over rank numbers can make: the second half holds every protocol to that.
"""

from __future__ import annotations

from itertools import permutations, product
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import ProtocolError
from hfdsl.protocols.mesh import AXES, Mesh, axis_rank, axis_size
from hfdsl.protocols.placement import (
    LAST,
    At,
    AxisPlacement,
    Partial,
    Replicated,
    Sharded,
    Varying,
    default_leaves,
    faults,
)
from hfdsl.protocols.predefined import PREDEFINED
from hfdsl.protocols.protocol import SYSTEMS, Protocol
from hfdsl.protocols.transfer import collect, dispatch
from tests.nightly import examples

PLACEMENTS: tuple[AxisPlacement, ...] = (
    Replicated(), Sharded(0), Sharded(1), Partial("sum"), Varying(), At(0), At(1), LAST,
)  # fmt: skip  # one line to read
Row = tuple[float, ...]


def meshes(limit: int = 16) -> list[Mesh]:
    """Every mesh of at most ``limit`` ranks, with every generation size."""
    sizes = [s for s in product(range(1, limit + 1), repeat=3) if prod(s) <= limit]
    return [
        Mesh(pp=pp, dp=dp, tp=tp, gen_pp=gen_pp, gen_tp=gen_tp)
        for pp, dp, tp in sizes
        for gen_pp in range(1, pp + 1)
        if pp % gen_pp == 0
        for gen_tp in range(1, tp + 1)
        if tp % gen_tp == 0
    ]


ALL = meshes()


@st.composite
def protocols(draw: st.DrawFn) -> Protocol:
    """A predefined protocol, or one of the user's own that joins."""
    if draw(st.booleans()):
        return draw(st.sampled_from([p for p in PREDEFINED.values() if p.joins]))
    axes = sorted(draw(st.sampled_from(SYSTEMS)))
    split = draw(st.permutations(axes))[: draw(st.integers(0, len(axes)))]
    picks = {axis: draw(st.sampled_from(("join", "first", "last", 0, 1))) for axis in draw(st.permutations(axes))}
    return Protocol("MINE", split=tuple(split), collect=picks)  # type: ignore[arg-type]  # the literals of Pick


def nesting(protocol: Protocol) -> list[str]:
    """The axes as values lie along them: those that dispatch cut, outermost first, then the others."""
    return [*protocol.split, *(axis for axis, _ in protocol.picks if axis not in protocol.split)]


def local(value: list[Row], protocol: Protocol, mesh: Mesh, left: dict[str, AxisPlacement], rank: int) -> list[Row]:
    """What ``rank`` holds of a value that lies so; rows of -1 where nothing is said of them."""
    for axis in nesting(protocol):
        size, at, placement = axis_size(mesh, axis), axis_rank(mesh, axis, rank), left[axis]
        if size == 1:
            continue
        match placement:
            case Sharded(0):
                share = len(value) // size
                value = value[at * share : (at + 1) * share]
            case Sharded():
                value = [row[at * len(row) // size : (at + 1) * len(row) // size] for row in value]
            case Partial():
                value = [tuple(x * (0.25 if at else 1 - 0.25 * (size - 1)) for x in row) for row in value]
            case Varying():
                value = [tuple(-1.0 - at for _ in row) for row in value]
            case At(index) if at != (index if index >= 0 else size + index):
                value = [tuple(-1.0 for _ in row) for row in value]
            case _:
                pass
    return value


def collected(protocol: Protocol, mesh: Mesh, left: dict[str, AxisPlacement]) -> tuple[list[Row], Any]:
    rows = prod(axis_size(mesh, axis) for axis, _ in protocol.picks)
    value = [tuple(float(16 * row + column + 1) for column in range(16)) for row in range(rows)]
    outputs = [local(value, protocol, mesh, left, rank) for rank in range(mesh.world_size)]
    return value, collect(protocol, mesh, outputs)


@settings(max_examples=examples(600))
@given(protocols(), st.sampled_from(ALL), st.permutations(AXES), st.data())
def test_a_fault_is_found_exactly_where_the_value_is_changed(
    protocol: Protocol, shape: Mesh, order: list[str], data: st.DataObject
) -> None:
    mesh = Mesh(pp=shape.pp, dp=shape.dp, tp=shape.tp, gen_pp=shape.gen_pp, gen_tp=shape.gen_tp, order=tuple(order))
    declared = {axis: data.draw(st.sampled_from(PLACEMENTS)) for axis, _ in protocol.picks if data.draw(st.booleans())}
    if any(isinstance(pick, int) and pick >= axis_size(mesh, axis) for axis, pick in protocol.picks):
        with pytest.raises(ProtocolError, match="HF404"):
            protocol.collected(mesh)
        return
    value, got = collected(protocol, mesh, {**default_leaves(protocol), **declared})
    wrong = faults(protocol, mesh, declared)
    assert (got == value) is (not wrong), wrong
    assert set(wrong.values()) <= {"HF403", "HF404", "HF405", "HF419"}


@pytest.mark.parametrize("mesh", ALL[:: len(ALL) // 40], ids=str)
def test_a_declared_protocol_neither_permutes_nor_misses_a_chunk(mesh: Mesh) -> None:
    declared = [
        Protocol("MINE", split=split, collect={axis: "join" if axis in split else "first" for axis in system})
        for system in SYSTEMS
        for n in range(len(system) + 1)
        for split in permutations(sorted(system), n)
    ]
    for order in (("pp", "dp", "tp"), ("tp", "pp", "dp"), ("dp", "tp", "pp")):
        laid = Mesh(pp=mesh.pp, dp=mesh.dp, tp=mesh.tp, gen_pp=mesh.gen_pp, gen_tp=mesh.gen_tp, order=order)
        for protocol in (*PREDEFINED.values(), *declared):
            chunks = protocol.chunk_of(laid)
            assert set(chunks) == set(range(protocol.chunk_count(laid)))
            seen: dict[tuple[int, ...], int] = {}
            for rank, chunk in enumerate(chunks):  # the ranks of one coordinate get one part
                assert seen.setdefault(tuple(axis_rank(laid, a, rank) for a in protocol.split), chunk) == chunk
            if protocol.splits and protocol.joins:
                rows = list(range(2 * protocol.chunk_count(laid)))
                [placed], _, _ = dispatch(protocol, laid, (rows,), {})
                assert collect(protocol, laid, placed) == rows


def test_a_rank_that_is_not_there_holds_nothing() -> None:
    picked = Protocol("PICKED", collect={"pp": "last", "dp": "first", "tp": 1})
    assert faults(picked, Mesh(tp=2), {"tp": At(3)}) == {"tp": "HF404"}
    assert faults(picked, Mesh(tp=2), {"tp": At(-1)}) == {}


def test_how_a_body_leaves_its_output_is_declared_with_the_method() -> None:
    with pytest.raises(ProtocolError, match=r"HF409: 3D_ALL_MICRO_DP has no axis 'gen_tq'; did you mean 'gen_tp'\?"):
        hf.register(hf.Dispatch.THREE_D_ALL_MICRO_DP, leaves={"gen_tq": hf.Partial("sum")})
    with pytest.raises(ProtocolError, match=r"HF409: DP_PROTO has no axis 'dp'; there are: rank"):
        hf.register(hf.Dispatch.DP_PROTO, leaves={"dp": hf.Replicated()})
    with pytest.raises(ProtocolError, match=r"HF409: leaves takes a placement for axis 'tp', such as .*; got 'sum'"):
        hf.register(hf.Dispatch.THREE_D_PROTO, leaves={"tp": "sum"})  # type: ignore[dict-item]
    with pytest.raises(ProtocolError, match=r"HF409: leaves takes a dict of mesh axes and placements"):
        hf.register(hf.Dispatch.THREE_D_PROTO, leaves=hf.Varying())  # type: ignore[call-overload]
    pair: Any = {"dispatch_fn": print, "collect_fn": print}
    with pytest.raises(ProtocolError, match=r"HF409: leaves is for a protocol declared on mesh axes; print is two"):
        hf.register(pair, leaves={"tp": hf.At(0)})
