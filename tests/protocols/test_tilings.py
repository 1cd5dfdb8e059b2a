"""Whether the parts of a layout are all of a parameter, against plain Python that goes through all ranks."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.protocols.cuts import Cut, Layout, Shards, Slices
from hfdsl.protocols.extents import Extent
from hfdsl.protocols.layouts import Only, Parameter, Replicas, Stages
from hfdsl.protocols.mesh import Mesh, axis_size
from hfdsl.protocols.tilings import INDEPENDENT, tiles
from tests.protocols.layout_cases import composed, cut_lists, meshes, parameters


def complete(layout: Layout, parameter: Parameter, mesh: Mesh) -> bool:
    """Whether every element is on some rank, and on none twice."""
    held = set[tuple[int, ...]]()
    for rank in range(mesh.world_size):
        boxes = layout.boxes(parameter, mesh, rank)
        count = Counter(index for box in boxes for index in product(*(range(*ends) for ends in box)))
        if count and max(count.values()) > 1:
            return False
        held |= count.keys()
    return held == set(product(*map(range, parameter.shape)))


@st.composite
def any_cuts(draw: st.DrawFn, parameter: Parameter, mesh: Mesh) -> list[Cut]:
    """Cuts that are complete, or that lack ranks, or that depend on each other."""
    cuts = draw(cut_lists(parameter, mesh))
    if draw(st.booleans()):
        axis = draw(st.sampled_from(("pp", "dp", "tp", "gen_tp", "micro_dp")))
        at = tuple(range(axis_size(mesh, axis)))[draw(st.integers(0, 1)) :]
        cuts.insert(draw(st.integers(0, len(cuts))), Only(axis=axis, at=at))
    return cuts


@given(st.data())
def test_what_tiles_is_complete(data: st.DataObject) -> None:
    mesh, parameter = data.draw(meshes()), data.draw(parameters())
    cuts = data.draw(any_cuts(parameter, mesh))
    axes = [axis for cut in cuts for axis in cut.axes]
    independent = len(set(axes)) == len(axes) and any(family.issuperset(axes) for family in INDEPENDENT)
    layout = composed(cuts)
    assert tiles(layout, parameter, mesh) is (independent and complete(layout, parameter, mesh))


def test_cuts_that_depend_on_each_other_are_left_to_the_ranks() -> None:
    layout, head = Stages(2).then(Only(axis="pp", at=(0,))), Parameter("lm_head.weight", (8, 4))
    assert not complete(layout, head, Mesh(pp=2))
    assert not tiles(layout, head, Mesh(pp=2))


def test_a_cut_of_a_users_own_is_left_to_the_ranks() -> None:
    class Halves(Slices): ...

    assert not tiles(Halves(0), Parameter("weight", (8,)), Mesh(tp=2))
    assert tiles(Replicas(), Parameter("scalar", ()), Mesh(tp=2))
    assert tiles(Shards("tp"), Parameter("empty", (0,)), Mesh(tp=2))


def test_the_work_is_the_sum_of_the_axes_and_not_their_product(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[type]()

    def counted(original: object, kind: type) -> object:
        def cut(self: Cut, parameter: Parameter, part: Extent, index: int, count: int) -> object:
            calls[kind] += 1
            return original(self, parameter, part, index, count)  # type: ignore[operator]  # a method

        return cut

    for kind in (Slices, Shards):
        monkeypatch.setattr(kind, "cut", counted(kind.cut, kind))
    layout = Slices(0).then(Shards("dp"))
    assert tiles(layout, Parameter("weight", (8192, 8192)), Mesh(dp=128, tp=8))
    assert calls == {Slices: 8, Shards: 128}
