"""Schedules against plain Python that moves elements one by one; mistakes put into them are found by the proof."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hfdsl.errors import ProtocolError
from hfdsl.plan.resharding import compile_schedule
from hfdsl.protocols.boxes import whole, without
from hfdsl.protocols.layouts import (
    Box,
    Generation,
    Layout,
    Parameter,
    Replicas,
    Shards,
    Slices,
    Stages,
    Tied,
)
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.resharding import Need, Piece, Route, flaws, routes
from tests.plan.resharding_cases import Case, Element, elements, held
from tests.protocols.layout_cases import Listed


@given(st.data())
def test_every_element_comes_from_the_nearest_rank_that_has_it(data: st.DataObject) -> None:
    case = Case(data)
    assume(case.complete())
    sizes = case.source_mesh.world_size, case.target_mesh.world_size
    on_hosts, of_targets = (data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)) for n in sizes)
    hosts = on_hosts, on_hosts if case.shared else of_targets
    holders: dict[Element, list[int]] = {}
    for rank in range(case.source_mesh.world_size):
        for element in held(case.source, case.parameters, case.source_mesh, rank):
            holders.setdefault(element, []).append(rank)
    for transfer in case.schedule(hosts=hosts).transfers:
        distance = case.distance(transfer.source, transfer.target, hosts)
        for element in elements(transfer.parameter.name, (transfer.box,)):
            assert distance == min(case.distance(holder, transfer.target, hosts) for holder in holders[element])


@given(st.data())
def test_the_traffic_of_a_rank_is_that_of_its_pieces(data: st.DataObject) -> None:
    case = Case(data)
    assume(case.complete())
    schedule = case.schedule()
    for rank, by_source in enumerate(schedule.traffic):
        counts = Counter[int]()
        for piece in schedule.pieces_of(rank):
            counts[piece.source] += piece.bytes
        assert counts == by_source


@given(st.data())
def test_every_rank_gets_its_elements_once_from_an_owner(data: st.DataObject) -> None:
    case = Case(data)
    assume(case.complete())
    schedule = case.schedule()
    size = case.parameters[0].item_bytes
    owned = [held(case.source, case.parameters, case.source_mesh, rank) for rank in range(case.source_mesh.world_size)]
    received: dict[int, list[Element]] = {rank: [] for rank in range(case.target_mesh.world_size)}
    for transfer in schedule.transfers:
        moved = elements(transfer.parameter.name, (transfer.box,))
        assert moved <= owned[transfer.source]
        assert transfer.bytes == len(moved) * size
        received[transfer.target] += moved
    for rank, arrived in received.items():
        needed = held(case.target, case.parameters, case.target_mesh, rank)
        before = needed & owned[case.shared[rank]] if rank in case.shared else set()
        assert Counter(arrived) == Counter(needed - before)
        assert schedule.needed[rank] == len(needed) * size
        assert schedule.received[rank] == len(arrived) * size
        beside = len(owned[case.shared[rank]] - needed) if rank in case.shared else 0
        assert schedule.redundant[rank] == beside * size
        assert schedule.received_by(rank) == tuple(
            transfer for transfer in schedule.transfers if transfer.target == rank
        )
        assert schedule.peak[rank] <= schedule.needed[rank] + schedule.received[rank]
    assert list(dict.fromkeys(share.parameter for bucket in schedule.buckets for share in bucket.shares)) == (
        case.parameters
    )


def test_a_parameter_without_elements_needs_none() -> None:
    weights = [Parameter("empty", (0, 4)), Parameter("weight", (8, 4))]
    schedule = compile_schedule(weights, Replicas().then(Shards("dp")), Mesh(dp=2), Replicas(), Mesh(dp=2))
    assert {transfer.parameter.name for transfer in schedule.transfers} == {"weight"}


@given(st.data())
def test_whole_is_where_every_rank_on_both_sides_holds_everything(data: st.DataObject) -> None:
    """Then one value of the first rank is enough for all; stages and experts are whole on some ranks only."""
    case = Case(data)
    assume(case.complete())
    sides = (case.source, case.source_mesh), (case.target, case.target_mesh)
    holds_all = [
        held(layout, case.parameters, mesh, rank) == case.whole
        for layout, mesh in sides
        for rank in range(mesh.world_size)
    ]
    ordered = all(
        len(layout.boxes(case.parameters[0], mesh, rank)) == 1
        for layout, mesh in sides
        for rank in range(mesh.world_size)
    )
    assume(ordered or not all(holds_all))  # a layout may keep all elements in an order of its own
    assert case.schedule().is_whole == all(holds_all)


def test_a_parameter_without_elements_is_in_nobodys_way() -> None:
    """Nothing of it is sent, so all that is sent may be whole."""
    weights = [Parameter("w", (4,)), Parameter("none", (0, 4))]
    schedule = compile_schedule(weights, Replicas(), Mesh(dp=2), Slices(0, "pp"), Mesh(dp=3))
    assert schedule.is_whole
    assert not compile_schedule(weights, Replicas(), Mesh(dp=2), Slices(0), Mesh(tp=2)).is_whole


@given(st.data())
def test_a_layout_that_lacks_elements_is_refused(data: st.DataObject) -> None:
    case = Case(data)
    if case.complete():
        case.schedule()
        return
    exported, loaded = case.on_all_ranks()
    if loaded - exported or loaded != case.whole:
        with pytest.raises(ProtocolError, match=r"^HF736: 'weight0' "):
            case.schedule()


MISTAKES = ("dropped", "doubled", "shifted", "larger", "other holder", "received again")


@given(st.data(), st.sampled_from(MISTAKES))
def test_every_mistake_in_a_schedule_is_found(data: st.DataObject, mistake: str) -> None:
    case = Case(data)
    assume(case.complete())
    [route] = routes(case.parameters, case.source, case.source_mesh, case.target, case.target_mesh, case.shared)[:1]
    assert list(flaws(route)) == []
    wrong = mistakes(route, mistake)
    assume(wrong)
    assert list(flaws(data.draw(st.sampled_from(wrong)))) != []


def mistakes(route: Route, mistake: str) -> list[Route]:
    """The route with one mistake, in one piece of one need."""
    changed: list[Route] = []
    for i, need in enumerate(route.needs):
        for j, piece in enumerate(need.pieces):
            for pieces_with_mistake in with_mistake(route, need, piece, mistake):
                pieces = (*need.pieces[:j], *pieces_with_mistake, *need.pieces[j + 1 :])
                needs = (*route.needs[:i], replace(need, pieces=pieces), *route.needs[i + 1 :])
                changed.append(replace(route, needs=needs))
    return changed


def with_mistake(route: Route, need: Need, piece: Piece, mistake: str) -> list[tuple[Piece, ...]]:
    (start, stop), *rest = piece.box
    match mistake:
        case "dropped":
            return [()]
        case "doubled":
            return [(piece, piece)]
        case "shifted":
            return [(replace(piece, box=((start + 1, stop + 1), *rest)),)]
        case "larger":
            return [(replace(piece, box=((start, stop + 1), *rest)),)]
        case "other holder":
            others = [holding for holding in route.sources if holding is not piece.holding]
            return [
                (replace(piece, holding=holding),)
                for holding in others
                if not elements("", (piece.box,)) <= elements("", holding.boxes)
            ]
        case "received again":
            others = [holding for holding in route.sources if holding is not need.owned]
            return [
                (replace(piece, holding=holding),)
                for holding in others
                if piece.holding is need.owned and elements("", (piece.box,)) <= elements("", holding.boxes)
            ]
    raise ValueError(mistake)


@given(st.data())
def test_a_shifted_vocabulary_is_found(data: st.DataObject) -> None:
    """Each rank's rows begin a little later than they should: the first rows are nowhere, or the last are outside."""
    size, tp, shift = 12, data.draw(st.sampled_from((2, 3, 4))), data.draw(st.integers(1, 3))
    rows = size // tp
    shifted = Listed(tuple((((rank * rows + shift, (rank + 1) * rows + shift),),) for rank in range(tp)))
    clipped = Listed(tuple((((box[0][0], min(box[0][1], size)),),) for [box] in shifted.by_rank))
    for layout, code in ((shifted, "HF735"), (clipped, "HF736")):
        with pytest.raises(ProtocolError, match=f"^{code}: 'embedding' "):
            compile_schedule([Parameter("embedding", (size,))], layout, Mesh(tp=tp), Replicas(), Mesh())


CORNERS = ((0, 2), (0, 2)), ((2, 4), (2, 4))
BENT = ((0, 2), (0, 2)), ((0, 2), (2, 4)), ((2, 4), (0, 2))


@pytest.mark.parametrize(
    ("boxes", "problem"),
    [
        (CORNERS, "its boxes [0:2, 0:2], [2:4, 2:4] are 2 of the 4 combinations"),
        (BENT, "its boxes [0:2, 0:2], [0:2, 2:4], [2:4, 0:2] are 3 of the 4 combinations"),
    ],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_boxes_that_are_no_tensor_are_refused(boxes: tuple[Box, ...], problem: str, side: str) -> None:
    weight = Parameter("weight", (4, 4))
    rest = tuple(without([whole(weight.shape)], boxes))
    layouts = (Listed((boxes, rest)), Replicas()) if side == "source" else (Replicas(), Listed((boxes, rest)))
    [route] = routes([weight], layouts[0], Mesh(tp=2), layouts[1], Mesh(tp=2))
    [flaw, *_] = list(flaws(route))
    assert (flaw.code, flaw.side, flaw.ranks) == ("HF735", side, (0,))
    assert flaw.message.startswith(f"'weight' (4, 4): {problem}")
    with pytest.raises(ProtocolError, match=r"^HF735: 'weight'"):
        compile_schedule([weight], layouts[0], Mesh(tp=2), layouts[1], Mesh(tp=2))


def test_generation_in_place_is_an_all_gather() -> None:
    layout, mesh = Stages(4).then(Slices(0)), Mesh(pp=2, dp=2, tp=4, gen_pp=1, gen_tp=2)
    weights = [Parameter(f"layers.{i}.weight", (8, 4)) for i in range(4)]
    same = {rank: rank for rank in range(mesh.world_size)}
    schedule = compile_schedule(weights, layout, mesh, Generation(layout), mesh, same)
    groups = {
        tuple(mesh.rank(pp=pp, dp=dp, tp=tp) for pp in range(2) for tp in (first, first + 1))
        for dp in range(2)
        for first in (0, 2)
    }
    assert set(schedule.gather_groups) == groups
    assert set(schedule.redundant) == {0}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Slices(0), Slices(1)),
        (Shards("tp"), Slices(0, blocks=(4, 4))),
        (Slices(0), Slices(0, "gen_tp", blocks=(4, 4), interleaved=4)),
    ],
)
def test_what_does_not_fold_is_no_gather(source: Layout, target: Layout) -> None:
    mesh = Mesh(tp=4, gen_tp=2)
    same = {rank: rank for rank in range(4)}
    assert compile_schedule([Parameter("w", (8, 8))], source, mesh, target, mesh, same).gather_groups == ()


def test_nothing_that_moves_is_no_gather() -> None:
    mesh, same = Mesh(tp=2), {0: 0, 1: 1}
    schedule = compile_schedule([Parameter("w", (8,))], Slices(0), mesh, Slices(0), mesh, same)
    assert (sum(schedule.received), schedule.gather_groups) == (0, ())


@dataclass(frozen=True)
class OwnSlices(Layout):
    """Slices by a function of one's own, apart from some names."""

    whole: tuple[str, ...] = ()

    def boxes(self, parameter: Parameter, mesh: Mesh, rank: int) -> tuple[Box, ...]:
        if parameter.name in self.whole:
            return (whole(parameter.shape),)
        return Slices(0).boxes(parameter, mesh, rank)


def test_parameters_with_equal_boxes_share_a_route_whatever_gives_them() -> None:
    """So that proofs and schedules of users' layouts take no time for each layer."""
    weights = [Parameter(f"layers.{i}.w", (8, 4)) for i in range(6)]
    own = OwnSlices(whole=("layers.1.w", "layers.4.w"))
    groups = routes(weights, own, Mesh(tp=2), OwnSlices(), Mesh(tp=4))
    assert [[int(each.name[7]) for each in route.parameters] for route in groups] == [[0, 2, 3, 5], [1, 4]]
    assert [route.needs[0].pieces[0].holding.ranks for route in groups] == [(0,), (0, 1)]


def test_owners_take_turns_and_the_nearest_come_first() -> None:
    weights = [Parameter(name, (8,)) for name in "abcd"]
    to_one = compile_schedule(weights, Slices(0), Mesh(dp=4, tp=2), Replicas(), Mesh())
    assert Counter(transfer.source for transfer in to_one.transfers) == dict.fromkeys(range(8), 1)
    near = compile_schedule(weights, Slices(0), Mesh(dp=2, tp=2), Replicas(), Mesh(dp=2), hosts=((0, 0, 1, 1), (1, 0)))
    assert {(transfer.target, transfer.source) for transfer in near.transfers} == {(0, 2), (0, 3), (1, 0), (1, 1)}


def test_a_tied_parameter_goes_once() -> None:
    weights = [Parameter("embed", (8,)), Parameter("head", (8,))]
    tied = Tied(Replicas(), {"head": "embed"})
    names = [
        transfer.parameter.name for transfer in compile_schedule(weights, Slices(0), Mesh(), tied, Mesh()).transfers
    ]
    assert names == ["embed"]
