"""Layouts against the tensors that torch makes with chunk, split and cat."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hfdsl.errors import ProtocolError
from hfdsl.protocols.boxes import difference, intersection, overlap, total, without
from hfdsl.protocols.layouts import (
    Box,
    ByName,
    Experts,
    Generation,
    Layout,
    Only,
    Parameter,
    Replicas,
    Shards,
    Slices,
    Stages,
    Tied,
    holdings,
)
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.resharding import tensor_problem
from tests.protocols.layout_cases import composed, cut_lists, layouts, local_tensor, meshes, parameters


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(start, stop) for start, stop in box)))


def boxes(dims: int) -> st.SearchStrategy[Box]:
    side = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda ends: (min(ends), max(ends) + 1))
    return st.tuples(*[side] * dims)


@given(st.integers(0, 3).flatmap(lambda dims: st.tuples(boxes(dims), boxes(dims), boxes(dims))))
def test_the_algebra_of_boxes_is_that_of_their_elements(three: tuple[Box, Box, Box]) -> None:
    box, second, third = three
    common = intersection(box, second)
    assert (set() if common is None else elements(common)) == elements(box) & elements(second)
    if common is not None:
        rest = difference(box, common)
        assert set().union(*map(elements, rest)) == elements(box) - elements(second)
        assert overlap(rest) is None
    remaining = without([box], [second, third])
    assert set().union(*map(elements, remaining)) == elements(box) - elements(second) - elements(third)
    assert total(remaining) == len(set().union(*map(elements, remaining)))
    assert (overlap([box, second]) is None) == elements(box).isdisjoint(elements(second))


@given(st.data())
def test_boxes_in_order_are_the_local_tensor(data: st.DataObject) -> None:
    mesh, parameter = data.draw(meshes()), data.draw(parameters())
    cuts = data.draw(cut_lists(parameter, mesh))
    whole = torch.arange(torch.Size(parameter.shape).numel()).reshape(parameter.shape)
    for rank in range(mesh.world_size):
        local = local_tensor(whole, cuts, mesh, rank)
        held = composed(cuts).boxes(parameter, mesh, rank)
        if local is None:
            assert held == ()
        else:
            # one dim has several ranges at most, or each dim's are in order: rows of ranges, joined dim by dim
            dims = range(len(parameter.shape))
            ranges = [list(dict.fromkeys(box[dim] for box in held)) for dim in dims]
            indices = [torch.cat([torch.arange(*part) for part in parts]) for parts in ranges]
            assert torch.equal(whole[torch.meshgrid(*indices, indexing="ij")], local)
            assert held == tuple(product(*ranges))


@st.composite
def combinations(draw: st.DrawFn, dims: int) -> list[Box]:
    """Combinations of ranges, of which one may be missing."""
    ranges = [draw(st.permutations([(0, 2), (2, 3), (4, 6)]))[: draw(st.integers(1, 3))] for _ in range(dims)]
    listed: list[Box] = draw(st.permutations(list(product(*ranges))))
    return listed[draw(st.integers(0, len(listed) > 1)) :]


@given(
    st.integers(0, 3).flatmap(lambda dims: st.one_of(st.lists(boxes(dims), min_size=1, max_size=6), combinations(dims)))
)
@example([((0, 2), (0, 2)), ((2, 4), (2, 4))])  # they touch at a corner
@example([((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (0, 2))])  # an L
@example([((2, 4), (1, 2)), ((0, 1), (1, 2)), ((2, 4), (5, 6)), ((0, 1), (5, 6))])
@example([((0, 2), (0, 4)), ((2, 4), (0, 2)), ((2, 4), (2, 4))])  # all of a tensor, but cut where not all are
def test_boxes_are_a_tensor_if_they_fill_it(listed: list[Box]) -> None:
    assume(overlap(listed) is None)
    counts: Counter[tuple[int, ...]] = Counter()
    for box in listed:
        ranges = [list(dict.fromkeys(each[dim] for each in listed)) for dim in range(len(box))]
        begins = [
            sum(stop - start for start, stop in before[: before.index(own)])
            for before, own in zip(ranges, box, strict=True)
        ]
        counts.update(elements(tuple((begin, begin + b - a) for begin, (a, b) in zip(begins, box, strict=True))))
    shape = [sum(b - a for a, b in {each[dim] for each in listed}) for dim in range(len(listed[0]))]
    filled = all(counts[place] == 1 for place in product(*map(range, shape)))
    assert (tensor_problem(listed) is None) == filled


@given(st.data())
def test_holdings_are_the_boxes_of_all_ranks(data: st.DataObject) -> None:
    mesh, parameter = data.draw(meshes()), data.draw(parameters())
    layout: Layout = data.draw(layouts(parameter, mesh))
    by_rank = {rank: layout.boxes(parameter, mesh, rank) for rank in range(mesh.world_size)}
    held = holdings(layout, parameter, mesh)
    assert {rank: holding.boxes for holding in held for rank in holding.ranks} == {
        rank: part for rank, part in by_rank.items() if part
    }
    assert len({holding.boxes for holding in held}) == len(held)
    assert all(list(holding.ranks) == sorted(holding.ranks) for holding in held)


@given(meshes())
def test_a_training_slice_lies_in_the_generation_slice(mesh: Mesh) -> None:
    weight, layout = Parameter("layers.5.weight", (24, 12)), Stages(12).then(Slices(0))
    for rank in range(mesh.world_size):
        held, needed = layout.boxes(weight, mesh, rank), Generation(layout).boxes(weight, mesh, rank)
        assert without(held, needed) == ()


def test_stages_hold_consecutive_layers() -> None:
    names = [
        "model.embed_tokens.weight",
        *(f"model.layers.{i}.bias" for i in range(5)),
        "norm.weight",
        "lm_head.weight",
    ]
    stages = Stages(5, counts=(2, 3), ends=("lm_head*",))
    held = [[name for name in names if stages.boxes(Parameter(name, (2,)), Mesh(pp=2), rank)] for rank in range(2)]
    assert held == [[*names[:3], "lm_head.weight"], names[3:]]


def test_experts_and_names() -> None:
    layout = Experts(4, ("dp", "tp")).then(ByName({"*.w1": Slices(1)}))
    mesh = Mesh(dp=2, tp=2)
    assert [layout.boxes(Parameter("experts.3.w2", (4, 4)), mesh, rank) for rank in (0, 3)] == [(), (((0, 4), (0, 4)),)]
    assert layout.boxes(Parameter("mlp.w1", (4, 4)), mesh, 1) == (((0, 4), (2, 4)),)


def test_slices_of_nothing_are_empty() -> None:
    """As of a rank with pad rows alone, and of a parameter without elements."""
    assert [Slices(0).boxes(Parameter("weight", (0, 4)), Mesh(tp=2), rank) for rank in range(2)] == [(), ()]
    layout, mesh = Slices(0, padding=8).then(Slices(0, "dp", units=4)), Mesh(dp=2, tp=2)
    parts = [layout.boxes(Parameter("embedding", (4,)), mesh, rank) for rank in range(4)]
    assert parts == [(((0, 2),),), (), (((2, 4),),), ()]


def test_a_tied_parameter_lies_as_the_stored_one() -> None:
    layout = Tied(ByName({"embed": Slices(0)}), {"head": "embed"})
    assert layout.boxes(Parameter("head", (4,)), Mesh(tp=2), 1) == (((2, 4),),)
    assert (layout.stored_as("head"), layout.then(Shards()).stored_as("head")) == ("embed", "embed")
    by_name = ByName({"norm": Replicas(), "head": layout}, otherwise=Tied(Replicas(), {"norm": "bias", "b": "bias"}))
    assert [by_name.stored_as(name) for name in ("norm", "head", "b")] == ["norm", "embed", "bias"]


@pytest.mark.parametrize(
    ("layout", "shape", "mesh", "problem"),
    [
        (Slices(0, units=8), (1024, 64), Mesh(tp=3), "tp = 3 does not divide the 8 heads along dim 0"),
        (Slices(1), (4, 10), Mesh(tp=4), "tp = 4 does not divide the 10 elements along dim 1"),
        (Slices(0), (101, 8), Mesh(tp=2), "tp = 2 .*; set padding= if the dim is padded, like that of a vocabulary"),
        (Slices(0, blocks=(5, 5)), (10,), Mesh(tp=2), "tp = 2 does not divide the 5 elements along dim 0$"),
        (Slices(0, padding=8), (50,), Mesh(tp=3), "tp = 3 does not divide the 56 elements along dim 0, with padding=8"),
        (Slices(2), (4, 4), Mesh(tp=2), r"Slices cuts dim 2, and its shape is \(4, 4\)"),
        (Slices(0, blocks=(4, 2)), (8,), Mesh(tp=2), r"blocks \(4, 2\) add up to 6, and dim 0 has 8"),
        (Slices(0, units=3), (8,), Mesh(tp=2), "3 units do not divide the 8 elements of dim 0"),
        (Slices(0, interleaved=3), (6,), Mesh(tp=2), "tp = 2 does not divide its 3 interleaved groups"),
        (Slices(0, units=2, shared=True), (6,), Mesh(tp=3), "tp = 3 does not divide the 2 heads along dim 0"),
        (Slices(0, ("dp", "tp")), (6,), Mesh(dp=2, tp=2), r"dp\*tp = 4 does not divide the 6 elements"),
        (Shards("dp"), (), Mesh(dp=2), r"Shards cuts dim 0, and its shape is \(\)"),
        (Stages(5), (4,), Mesh(pp=2), "pp = 2 does not divide the 5 layers; set counts"),
        (Stages(4, counts=(1, 2)), (4,), Mesh(pp=2), r"counts \(1, 2\) are not of 4 layers in 2 stages"),
        (Stages(3, counts=(1, 2)), (4,), Mesh(pp=2), "its number is too high for a layout of 3 layers, counted from 0"),
        (Experts(4), (4,), Mesh(tp=3), "tp = 3 does not divide the 4 experts"),
        (Experts(1), (4,), Mesh(tp=1), "its number is too high for a layout of 1 experts, counted from 0"),
        (Experts(2, ("dp", "tp")), (4,), Mesh(dp=2, tp=2), r"dp\*tp = 4 does not divide the 2 experts"),
    ],
)
def test_a_cut_that_is_not_possible(layout: Layout, shape: tuple[int, ...], mesh: Mesh, problem: str) -> None:
    parameter = Parameter("layers.3.experts.1.weight", shape)
    with pytest.raises(ProtocolError, match=f"^HF734: 'layers.3.experts.1.weight' .* cannot be cut: {problem}"):
        layout.boxes(parameter, mesh, 0)


@pytest.mark.parametrize("layout", [Stages(4, number=r"layers\.(\w)"), Experts(4, "pp", number=r"layers\.(\w)")])
def test_a_number_in_a_name_that_is_none(layout: Layout) -> None:
    with pytest.raises(ProtocolError, match=r"^HF739: number='.*' finds 'x' in 'layers.x.bias', which is no number"):
        layout.boxes(Parameter("layers.x.bias", (4,)), Mesh(pp=2), 0)


def test_a_number_is_in_the_group_that_matches() -> None:
    either = Stages(4, number=r"layers\.(\d)|blocks\.(\d)")
    boxes = [either.boxes(Parameter(f"{name}.3.bias", (4,)), Mesh(pp=2), 1) for name in ("layers", "blocks")]
    assert boxes == [(((0, 4),),)] * 2


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "problem"),
    [
        ("w", (4, -1), "float32", r"the sizes of 'w' must be whole numbers, 0 or more, got \(4, -1\)"),
        ("w", 4, "float32", "the shape of 'w' must be a tuple of sizes, got 4"),
        ("w", (4,), "float31", "the dtype of 'w' must be one of"),
        ("w", (4,), ["float32"], "the dtype of 'w' must be one of"),
        (4, (4,), "float32", "the name of a parameter must be a string, got 4"),
    ],
)
def test_a_parameter_that_is_none(name: Any, shape: Any, dtype: Any, problem: str) -> None:
    with pytest.raises(ProtocolError, match=f"^HF739: .*{problem}"):
        Parameter(name, shape, dtype)


def test_an_axis_that_no_mesh_has() -> None:
    with pytest.raises(ProtocolError, match=r"HF739: Only cuts over an axis of pp, .* got 'ep'"):
        Replicas().then(Only(axis="ep", at=(0,))).boxes(Parameter("w", (4,)), Mesh(), 0)


@pytest.mark.parametrize(
    ("layout", "arguments", "problem"),
    [
        (Slices, {"dim": -1}, "dim= counts dims from 0, got -1"),
        (Slices, {"dim": 1.0}, "dim= counts dims from 0, got 1.0"),
        (Slices, {"axis": ["dp", "tp"]}, "axis= is an axis, such as \"tp\", or a tuple of several, got ['dp', 'tp']"),
        (Slices, {"axis": ()}, "axis= is an axis"),
        (Slices, {"axis": ("tp", "tp")}, "axis= is an axis"),
        (Slices, {"blocks": [4, 4]}, "blocks= is a tuple of sizes, such as (8, 4, 4), got [4, 4]"),
        (Slices, {"blocks": (12, -4)}, "blocks= is a tuple of sizes"),
        (Slices, {"blocks": 8}, "blocks= is a tuple of sizes"),
        (Slices, {"interleaved": 0}, "interleaved= is a number of at least 1, got 0"),
        (Slices, {"interleaved": True}, "interleaved= is a number"),
        (Slices, {"padding": -4}, "padding= is a number of at least 1, got -4"),
        (Slices, {"padding": None}, "padding= is a number of at least 1, got None"),
        (Slices, {"units": 2.5}, "units= is a number of heads, or one for each block, got 2.5"),
        (Slices, {"units": 0}, "units= is a number of heads"),
        (Slices, {"blocks": (4, 4), "units": (1, 1, 1)}, "units= is a number of heads, or one for each block"),
        (Slices, {"blocks": (6, 4), "padding": 4}, "padding= is for a dim without blocks="),
        (Shards, {"dim": -1}, "dim= counts dims from 0, got -1"),
        (Shards, {"axis": 0}, "axis= is an axis"),
        (Stages, {"layers": 0}, "layers= is a number of at least 1, got 0"),
        (Stages, {"layers": 5, "counts": [3, 2]}, "counts= is a tuple of layers by stage, such as (6, 5), got [3, 2]"),
        (Stages, {"layers": 5, "counts": (6, -1)}, "counts= is a tuple of layers by stage"),
        (
            Stages,
            {"layers": 5, "first": "*embed*"},
            'first= is a tuple of patterns, such as ("*embed*",), got \'*embed*',
        ),
        (Stages, {"layers": 5, "ends": [None]}, "ends= is a tuple of patterns"),
        (Stages, {"layers": 5, "number": r"layers\.\d+"}, "number= is a regular expression with a group"),
        (Stages, {"layers": 5, "number": r"layers\.(\d+"}, "number= is no regular expression: missing )"),
        (Stages, {"layers": 4, "axis": "ep"}, "axis= is one of pp, dp, tp, gen_pp, gen_tp, micro_dp, rank, got 'ep'"),
        (Stages, {"layers": 4, "axis": ("pp", "dp")}, "axis= is one of pp, dp, tp"),
        (Experts, {"count": 4, "axis": None}, 'axis= is an axis, such as "tp", or a tuple of several, got None'),
        (Experts, {"count": 4, "axis": "ep"}, "axis= is one of pp, dp, tp, gen_pp, gen_tp, micro_dp, rank, or several"),
        (Experts, {"count": 4, "axis": ("tp", ["dp"])}, "axis= is an axis"),
        (Experts, {"count": 0}, "count= is a number of at least 1, got 0"),
        (Experts, {"count": 4, "number": None}, "number= is a regular expression with a group"),
        (ByName, {"layouts": [Replicas()]}, "takes a dict of layouts by pattern"),
        (ByName, {"layouts": {"a": "tp"}}, "takes layouts of this module, such as Slices(0), got 'tp'"),
        (ByName, {"layouts": {}, "otherwise": None}, "takes layouts of this module, such as Slices(0), got None"),
        (Tied, {"layout": None, "names": {}}, "takes layouts of this module, such as Slices(0), got None"),
        (Tied, {"layout": Replicas(), "names": ["head"]}, "names= is a dict from a name to the stored one"),
        (Tied, {"layout": Replicas(), "names": {"a": "b", "b": "c"}}, "'a' is tied to 'b', which is not stored itself"),
        (
            Tied,
            {"layout": Replicas(), "names": {"a": 1}},
            "names= is a dict from a name to the stored one, got {'a': 1}",
        ),
        (Generation, {"layout": Slices}, "takes layouts of this module"),
    ],
    ids=str,
)
def test_arguments_without_a_meaning(layout: Any, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProtocolError, match=rf"^HF739: {layout.__name__}: {re.escape(problem)}"):
        layout(**arguments)


def test_a_generation_layout_is_its_own() -> None:
    mesh, weight = Mesh(dp=2, tp=4, gen_tp=2), Parameter("weight", (8, 8))
    for layout in (Slices(0), Shards("dp"), Shards(("dp", "tp")), Slices(0).then(Shards("dp", 1))):
        once, twice = Generation(layout), Generation(Generation(layout))
        assert [once.boxes(weight, mesh, rank) for rank in range(8)] == [
            twice.boxes(weight, mesh, rank) for rank in range(8)
        ]


def test_a_layout_is_continued_by_layouts() -> None:
    with pytest.raises(ProtocolError, match=r"^HF739: Composed: takes layouts of this module, such as Slices"):
        Slices(0).then("dp")  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [0, [0], (-1,), ("0",)])
def test_coordinates_that_are_none(at: Any) -> None:
    with pytest.raises(ProtocolError, match=r"^HF739: Only: at= is a tuple of coordinates, such as \(0,\), got "):
        Only(axis="pp", at=at)
