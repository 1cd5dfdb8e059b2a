"""Syncs by schedule: every rank has its parts, bit for bit, for as many bytes as the planner says."""

from __future__ import annotations

import re
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError, HfWarning, ProtocolError, RoleError, SyncError
from hfdsl.plan.resharding import compile_schedule
from hfdsl.plan.scheduled import WEIGHTS_FOR, ScheduledSync
from hfdsl.protocols.boxes import intersection, total, without
from hfdsl.protocols.layouts import Parameter, Replicas, Slices, rank_boxes
from hfdsl.runtime.weights.exchange import ArrivingWeights
from hfdsl.runtime.weights.held_parts import HeldPart
from hfdsl.runtime.weights.located_parts import located
from hfdsl.runtime.weights.resharding import Parts, exported_parts, joined_parts
from tests.protocols.layout_cases import Listed, composed, cut_lists, layouts, local_tensor, meshes, parameters
from tests.runtime import resharding_programs as p

Mesh = hf.Mesh


# -- without a run


@given(st.data())
def test_parts_are_those_that_frameworks_give_a_rank(data: st.DataObject) -> None:
    parameter = data.draw(parameters())
    shared = data.draw(st.booleans())
    mesh = data.draw(meshes(most=8))
    other_mesh = mesh if shared else data.draw(meshes(most=8))
    source, target = data.draw(cut_lists(parameter, mesh)), data.draw(cut_lists(parameter, other_mesh))
    count = parameter.bytes // parameter.item_bytes
    full = torch.arange(count, dtype=torch.float32).view(parameter.shape).remainder(251)
    exported = [local_tensor(full, source, mesh, rank) for rank in range(mesh.world_size)]
    expected = [local_tensor(full, target, other_mesh, rank) for rank in range(other_mesh.world_size)]
    values = {value for part in expected if part is not None for value in part.flatten().tolist()}
    held = {value for part in exported if part is not None for value in part.flatten().tolist()}
    assume(values == held == set(full.flatten().tolist()))
    schedule = compile_schedule(
        [parameter],
        composed(source),
        mesh,
        composed(target),
        other_mesh,
        {rank: rank for rank in range(mesh.world_size)} if shared else {},
    )
    sync = ScheduledSync(
        state="policy",
        export=0,
        load=1,
        schedule=schedule,
        source_layout=composed(source),
        target_layout=composed(target),
    )
    columns: list[dict[str, Any]] = []
    for rank, part in enumerate(exported):
        weights = {} if part is None else {"weight": part.to(getattr(torch, parameter.dtype))}
        columns.append(dict(exported_parts([sync], rank, weights, "actor.weights")))
    for rank, part in enumerate(expected):
        got = joined_parts(sync, rank, [columns[owner][sync.column(rank)] for owner in schedule.sources[rank]])
        assert got.keys() == (set() if part is None else {"weight"})
        if part is not None:
            assert torch.equal(got["weight"], part.to(getattr(torch, parameter.dtype)))


def test_a_part_in_an_order_of_its_own_that_has_all_elements_is_no_whole_parameter() -> None:
    """As of fused weights that are interleaved by group also where one rank has all groups."""
    parameter, layout = Parameter("qkv", (8,), "float32"), Slices(0, blocks=(4, 4), interleaved=2)
    schedule = compile_schedule([parameter], layout, Mesh(), Replicas(), Mesh(dp=2))
    sync = ScheduledSync(
        state="policy", export=0, load=1, schedule=schedule, source_layout=layout, target_layout=Replicas()
    )
    stored = torch.tensor([0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0])
    columns = dict(exported_parts([sync], 0, {"qkv": stored}, "actor.weights"))
    [parts] = [columns[sync.column(1)]]
    assert torch.equal(joined_parts(sync, 1, [parts])["qkv"], torch.arange(8.0))


def test_of_a_whole_parameter_its_part_is_taken() -> None:
    """As of a role that merges an adapter into whole weights."""
    layout, parameter = p.TENSOR, Parameter("embedding", (12, 4), "float32")
    schedule = compile_schedule([parameter], layout, Mesh(tp=2), layout, Mesh(tp=4))
    sync = ScheduledSync(
        state="policy", export=0, load=1, schedule=schedule, source_layout=layout, target_layout=layout
    )
    full = p.whole(parameter, 0)
    columns = dict(exported_parts([sync], 1, {"embedding": full}, "actor.weights"))
    got = joined_parts(sync, 3, [columns[sync.column(3)]])
    assert torch.equal(got["embedding"], full[9:])


def test_boxes_without_elements_are_no_part_of_a_tensor() -> None:
    parameter = Parameter("weight", (2, 4), "float32")
    layout = Listed(((((0, 2), (0, 3)), ((2, 2), (3, 4))), (((0, 2), (3, 4)),), (((1, 1), (0, 4)),)))
    schedule = compile_schedule([parameter], Replicas(), Mesh(), layout, Mesh(tp=3))
    sync = ScheduledSync(
        state="policy", export=0, load=1, schedule=schedule, source_layout=Replicas(), target_layout=layout
    )
    full = torch.arange(8.0).view(2, 4)
    columns = dict(exported_parts([sync], 0, {"weight": full}, "actor.weights"))
    for rank, expected in ((0, {"weight": full[:, :3]}), (1, {"weight": full[:, 3:]}), (2, {})):
        got = joined_parts(sync, rank, [columns[sync.column(rank)]] if expected else [])
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], part) for name, part in expected.items())


def test_boxes_that_are_no_tensor_are_no_place_for_weights() -> None:
    """As of a layout that says something else in a process than where it was proved."""
    parameter, corners = Parameter("weight", (4, 4), "float32"), Listed(((((0, 2), (0, 2)), ((2, 4), (2, 4))),))
    schedule, full = compile_schedule([parameter], Replicas(), Mesh(), Replicas(), Mesh()), torch.ones(4, 4)
    sync = ScheduledSync(
        state="policy", export=0, load=1, schedule=schedule, source_layout=corners, target_layout=corners
    )
    parts: Parts = {"weight": {((0, 2), (0, 4)): full[:2], ((2, 4), (0, 4)): full[2:]}}
    for use in (
        lambda: dict(exported_parts([sync], 0, {"weight": full}, "actor.weights")),
        lambda: joined_parts(sync, 0, [parts]),
        lambda: list(located({"weight": HeldPart(full)}, corners, [parameter], Mesh(), 0)),
        lambda: ArrivingWeights(sync, 0, {}, "engine.load").load(None, dict, in_place=False),
    ):
        with pytest.raises(
            ProtocolError, match=r"^HF735: 'weight' \(4, 4\) on rank 0 \(.*\): its boxes \[0:2, 0:2\], "
        ):
            use()


@given(st.data())
def test_two_ranks_have_the_same_part_or_different_elements(data: st.DataObject) -> None:
    """So that digests add up, whatever ranks share."""
    mesh = data.draw(meshes(most=8))
    parameter, layout = data.draw(
        st.one_of(
            st.just((p.PARAMETERS[1], p.LAYOUTS["shared heads"])),
            parameters().flatmap(lambda drawn: layouts(drawn, mesh).map(lambda layout: (drawn, layout))),
        )
    )
    try:
        held = [rank_boxes(layout, parameter, mesh, rank) for rank in range(mesh.world_size)]
    except ProtocolError:  # a mesh that does not divide the heads
        assume(False)
        return
    full = torch.arange(torch.Size(parameter.shape).numel()).view(parameter.shape)
    places = set[Any]()
    for rank, boxes in enumerate(held):
        if boxes:
            parts = held_part(full, boxes)
            pieces = [piece for _, piece in located({parameter.name: HeldPart(parts)}, layout, [parameter], mesh, rank)]
            assert total(piece.box for piece in pieces) == total(boxes)
            assert not without(boxes, [piece.box for piece in pieces])
            assert all(torch.equal(piece.tensor, full[tuple(slice(*pair) for pair in piece.box)]) for piece in pieces)
            places |= {piece.box for piece in pieces}
    assert all(intersection(one, other) is None for one, other in combinations(places, 2))


def held_part(full: torch.Tensor, boxes: Any) -> torch.Tensor:
    """The local tensor of a rank with these boxes."""
    for dim, ranges in enumerate(zip(*boxes, strict=True)):
        full = torch.cat([full.narrow(dim, start, stop - start) for start, stop in dict.fromkeys(ranges)], dim)
    return full


# -- runs


def launched(
    source: str, mesh: Mesh, target: str, other: Mesh, *, shared: bool = False, backend: Any = "local", **roles: Any
) -> Any:
    pools = [hf.ResourcePool([size.world_size], use_gpu=False) for size in (mesh, other)]
    actor, fails = roles.get("actor", p.Trainer), roles.get("fails", -1)
    deployment = hf.Deployment(
        actor=hf.place(actor, p.LAYOUTS[source], pool=pools[0], mesh=mesh),
        engine=hf.place(roles.get("engine", p.Engine), p.LAYOUTS[target], fails, pool=pools[not shared], mesh=other),
    )
    return roles.get("flow", p.synced).compile(deployment).launch(backend)


def check(running: Any) -> None:
    """Two steps give every rank its parts, and move what the schedule says."""
    (sync,) = (step.sync for step in running.plan.steps if step.sync is not None)
    for _ in range(2):
        assert all(running.step())
    received, sent = Counter[int](), Counter[int]()
    for transfer in running.timeline.transfers:
        if WEIGHTS_FOR in transfer.name:
            received[transfer.target[1]] += transfer.bytes
            sent[transfer.source[1]] += transfer.bytes
    assert [received[rank] for rank in range(len(sync.schedule.received))] == list(sync.schedule.received)
    planned = [
        sum(transfer.bytes for transfer in sync.schedule.transfers if transfer.source == rank)
        for rank in range(sync.schedule.source_mesh.world_size)
    ]
    assert [sent[rank] for rank in range(len(planned))] == planned


@pytest.mark.parametrize(
    ("source", "mesh", "target", "other", "shared"),
    [
        ("tensor", Mesh(tp=2), "replicas", Mesh(dp=2), False),
        ("tensor", Mesh(tp=4), "tensor", Mesh(tp=2), False),
        ("sharded", Mesh(dp=2, tp=2), "tensor", Mesh(dp=2, tp=4), False),
        ("sharded", Mesh(dp=4, tp=2), "replicas", Mesh(), False),
        ("replicas", Mesh(dp=2), "sharded", Mesh(dp=2, tp=2), False),
        ("tensor", Mesh(tp=4, gen_tp=2), "generation", Mesh(tp=4, gen_tp=2), True),
        ("tensor", Mesh(dp=2, tp=4, gen_tp=1), "generation", Mesh(dp=2, tp=4, gen_tp=1), True),
        ("sharded", Mesh(dp=2, tp=2), "replicas", Mesh(dp=2, tp=2), True),
        ("stages", Mesh(pp=2), "replicas", Mesh(dp=2), False),
        ("stages", Mesh(pp=2), "replicas", Mesh(dp=2), True),
        ("replicas", Mesh(dp=2), "stages", Mesh(pp=2), False),
        ("experts", Mesh(tp=2), "replicas", Mesh(), False),
        ("experts", Mesh(tp=2), "stages", Mesh(pp=2), True),
    ],
    ids=str,
)
def test_ranks_get_their_parts_for_the_planned_bytes(
    source: str, mesh: Mesh, target: str, other: Mesh, shared: bool
) -> None:
    with launched(source, mesh, target, other, shared=shared) as running:
        check(running)


def test_in_place_a_rank_receives_the_rest_of_its_generation_slice() -> None:
    """(d_g - 1)/(t p) M, of what is sliced at all."""
    mesh = Mesh(tp=4, gen_tp=2)
    with launched("tensor", mesh, "generation", mesh, shared=True) as running:
        sliced = sum(parameter.bytes for parameter in p.PARAMETERS if parameter.name != "norm")
        (sync,) = (step.sync for step in running.plan.steps if step.sync is not None)
        assert sync.schedule.received == (sliced // 4,) * 4
        check(running)


@pytest.mark.nightly
@pytest.mark.parametrize("shared", [False, True])
def test_the_same_between_processes(ray_cluster: Any, shared: bool) -> None:
    mesh = Mesh(dp=2, tp=2, gen_tp=1)
    other_mesh = mesh if shared else Mesh(tp=2)
    with launched("sharded", mesh, "generation", other_mesh, shared=shared, backend="ray") as running:
        check(running)


@pytest.mark.parametrize(("source", "mesh"), [("sharded", Mesh(dp=2, tp=2)), ("shared heads", Mesh(tp=4))], ids=str)
def test_digests_are_those_of_parts(source: str, mesh: Mesh) -> None:
    with launched(source, mesh, "tensor", Mesh(tp=4)) as running:
        with running.verifying("policy"):
            running.step()
        (compared,) = running.verify("policy").compared
        assert (compared.source, compared.target) == ("actor", "engine")


def test_a_rank_that_exports_other_parts_is_named() -> None:
    with (
        launched("tensor", Mesh(tp=2), "replicas", Mesh(), actor=p.Wrong) as running,
        pytest.raises(SyncError) as error,
    ):
        running.step()
    assert (error.value.code, error.value.role, error.value.parameter, error.value.ranks) == (
        "HF773",
        "actor",
        "qkv",
        (1,),
    )
    assert "'qkv' of shape (7, 4), but its layout says (8, 4) of (16, 4) on rank 1" in error.value.message


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (["qkv"], "a value of type list instead of a dict of tensors by name"),
        ({"qkv": torch.ones(8, 4), "norm": "first"}, "'norm' of type str instead of a tensor"),
    ],
)
def test_what_is_no_dict_of_tensors_is_named(returned: Any, problem: str) -> None:
    class Other(p.Trainer):
        @hf.register(hf.Dispatch.ONE_TO_ALL)
        @hf.exports("policy", layout=p.declared)
        def weights(self) -> dict[str, Any]:
            values: dict[str, Any] = returned
            return values

    with (
        launched("tensor", Mesh(tp=2), "replicas", Mesh(), actor=Other) as running,
        pytest.raises(SyncError, match=f"^HF773: 'actor.weights' returned {problem} on rank 0"),
    ):
        running.step()


def test_weights_that_nobody_states_are_warned_of_once() -> None:
    unstated = "HF731: 'actor.weights' returned 'mean' and 1 more, which no role states as a parameter of 'policy'"
    with launched("tensor", Mesh(tp=2), "replicas", Mesh(), actor=p.Buffered) as running:
        with pytest.warns(HfWarning, match=unstated):
            running.step()
        assert all(running.step())  # a second warning would be an error here
    with launched("replicas", Mesh(dp=2), "replicas", Mesh(), actor=p.Buffered) as running:
        running.step()  # whole: all of it is sent


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("source", ["replicas", "tensor"])
def test_a_copy_does_not_learn_with_what_it_is_a_copy_of(source: str, shared: bool) -> None:
    """Also where one value goes to the same process: the trainer returns the tensors that it trains in place."""
    with launched(source, Mesh(tp=2), "replicas", Mesh(dp=2), shared=shared, flow=p.learned) as running:
        assert all(running.step())
        assert all(running.step())


@pytest.mark.parametrize("shared", [False, True])
def test_whole_weights_arrive_in_the_dtype_that_the_engine_states(shared: bool) -> None:
    with launched("replicas", Mesh(dp=2), "replicas", Mesh(dp=2), shared=shared, engine=p.Halved) as running:
        assert all(running.step())
        with running.verifying("policy"):
            assert all(running.step())


@pytest.mark.parametrize("layout", ["replicas", "tensor"])
def test_integers_are_no_weights_of_a_floating_dtype(layout: str) -> None:
    """A sync converts between floating dtypes (HF733); quantized weights need their scales."""
    for mesh, source in ((Mesh(tp=2), "tensor"), (Mesh(dp=2), "sharded")):
        with (
            launched(source, mesh, layout, Mesh(tp=2), actor=p.Quantized) as running,
            pytest.raises(
                SyncError, match=r"^HF773: 'actor.weights' returned 'down' in int8 instead of bfloat16, on r"
            ),
        ):
            running.step()
    with (
        launched("tensor", Mesh(tp=2), layout, Mesh(tp=2), engine=p.Integers) as running,
        pytest.raises(SyncError, match=r"^HF774: 'engine.load' loads into 'down' in int8 instead of bfloat16, on rank"),
    ):
        running.step()


@pytest.mark.parametrize(
    ("actor", "layout", "problem"),
    [
        (p.Unknown, "replicas", None),
        (p.Lacking, "replicas", "'actor.weights' returned no 'norm' on rank 0"),
        (p.Unknown, "tensor", "returned 'embedding' of shape (6, 4) instead of all of it, (12, 4), on rank 0"),
    ],
)
def test_weights_that_go_as_one_value_are_all_and_whole(actor: type[p.Trainer], layout: str, problem: str) -> None:
    with launched(layout, Mesh(tp=2), "replicas", Mesh(dp=2), actor=actor) as running:
        assert [step.sync for step in running.plan.steps] == [None] * len(running.plan.steps)
        if problem is None:
            assert all(running.step())
            return
        with pytest.raises(SyncError) as error:
            running.step()
    assert (error.value.code, error.value.role, error.value.ranks) == ("HF773", "actor", (0,))
    assert problem in error.value.message


def test_pad_rows_are_no_part_of_what_a_rank_exports() -> None:
    parameter, layout = Parameter("embedding", (10, 4), "float32"), Slices(0, padding=4)
    schedule = compile_schedule([parameter], layout, Mesh(tp=2), Replicas(), Mesh())
    sync = ScheduledSync(
        state="policy", export=0, load=1, schedule=schedule, source_layout=layout, target_layout=Replicas()
    )
    says = r"'embedding' of shape \(6, 4\), but its layout says \(4, 4\) of \(10, 4\) without pad rows, on rank 1"
    with pytest.raises(SyncError, match=says):
        dict(exported_parts([sync], 1, {"embedding": torch.zeros(6, 4)}, "actor.weights"))
    assert dict(exported_parts([sync], 1, {"embedding": torch.zeros(4, 4)}, "actor.weights"))


@pytest.mark.parametrize("layout", ["replicas", "tensor"])
def test_a_load_that_fails_on_one_rank_ends_the_run(layout: str) -> None:
    """Nobody samples from weights of two versions."""
    with launched("tensor", Mesh(tp=2), layout, Mesh(dp=2, tp=2), fails=1) as running:
        assert all(running.step())
        with pytest.raises(RoleError, match="no memory") as raised:
            running.step()
        assert re.findall(r'File ".*/(\w+)\.py"', raised.value.message) == ["resharding_programs"]  # not of hfdsl
        with pytest.raises(HfError, match="HF808"):
            running.step()
        with pytest.raises(HfError, match="HF808"):
            running.verify("policy")
