"""The six protocols against an oracle that walks coordinates, on every small mesh and every numbering of its ranks."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given

from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.protocols import PREDEFINED, Mesh, Protocol
from hfdsl.testing.strategies.protocols import protocols
from tests.protocols.test_mesh import meshes

# -- the oracle: section "Transfer protocols" of the design, read aloud ------------------------------------------------


def oracle_chunks(name: str, mesh: Mesh) -> list[int]:
    at = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
    match name:
        case "ONE_TO_ALL" | "THREE_D_PP_ONLY":
            return [0] * mesh.world_size
        case "DP_PROTO" | "ALL_TO_ALL":
            return list(range(mesh.world_size))
        case "THREE_D_PROTO":
            return [c.dp for c in at]
    tp_fold, pp_fold = mesh.tp // mesh.gen_tp_size, mesh.pp // mesh.gen_pp_size
    return [c.dp * tp_fold * pp_fold + (c.pp % pp_fold) * tp_fold + c.tp % tp_fold for c in at]


def oracle_collected(name: str, mesh: Mesh) -> list[int]:
    if name in ("ONE_TO_ALL", "DP_PROTO", "ALL_TO_ALL"):
        return list(range(mesh.world_size))
    if name == "THREE_D_PROTO":
        return [mesh.rank(pp=mesh.pp - 1, dp=dp, tp=0) for dp in range(mesh.dp)]
    if name == "THREE_D_PP_ONLY":
        return [mesh.rank(pp=pp, dp=0, tp=0) for pp in range(mesh.pp)]
    # A replica is what the fold leaves over; its last stage and first tensor rank are the far and near end.
    tp_fold, pp_fold = mesh.tp // mesh.gen_tp_size, mesh.pp // mesh.gen_pp_size
    return [
        mesh.rank(dp=dp, pp=(mesh.gen_pp_size - 1) * pp_fold + pp, tp=tp)
        for dp, pp, tp in product(range(mesh.dp), range(pp_fold), range(tp_fold))
    ]


@pytest.mark.parametrize("name", PREDEFINED)
@given(mesh=meshes())
def test_the_table_agrees_with_the_oracle(name: str, mesh: Mesh) -> None:
    protocol = PREDEFINED[name]
    assert list(protocol.chunk_of(mesh)) == oracle_chunks(name, mesh)
    assert list(protocol.collected(mesh)) == oracle_collected(name, mesh)
    assert protocol.chunk_count(mesh) == max(oracle_chunks(name, mesh)) + 1


@pytest.mark.parametrize("name", ["DP_PROTO", "THREE_D_PROTO", "THREE_D_ALL_MICRO_DP"])
@given(mesh=meshes())
def test_every_chunk_reaches_somebody_and_is_collected_once_in_order(name: str, mesh: Mesh) -> None:
    protocol = PREDEFINED[name]
    chunks = protocol.chunk_of(mesh)
    assert set(chunks) == set(range(protocol.chunk_count(mesh)))
    assert [chunks[rank] for rank in protocol.collected(mesh)] == list(range(protocol.chunk_count(mesh)))


@pytest.mark.parametrize("name", ["THREE_D_PROTO", "THREE_D_ALL_MICRO_DP", "THREE_D_PP_ONLY"])
@given(mesh=meshes())
def test_the_numbering_of_ranks_does_not_matter(name: str, mesh: Mesh) -> None:
    protocol = PREDEFINED[name]
    plain = Mesh(pp=mesh.pp, dp=mesh.dp, tp=mesh.tp, gen_pp=mesh.gen_pp, gen_tp=mesh.gen_tp)
    by_place = {mesh.coordinates(rank): chunk for rank, chunk in enumerate(protocol.chunk_of(mesh))}
    assert by_place == {plain.coordinates(rank): chunk for rank, chunk in enumerate(protocol.chunk_of(plain))}
    collected = [mesh.coordinates(rank) for rank in protocol.collected(mesh)]
    assert collected == [plain.coordinates(rank) for rank in protocol.collected(plain)]


def test_kinds() -> None:
    assert {name for name, p in PREDEFINED.items() if p.joins} == {"DP_PROTO", "THREE_D_PROTO", "THREE_D_ALL_MICRO_DP"}
    assert {name for name, p in PREDEFINED.items() if p.splits} == {"DP_PROTO", "THREE_D_PROTO", "THREE_D_ALL_MICRO_DP"}


# -- declared by users -------------------------------------------------------------------------------------------------


def test_equal_declarations_are_equal_values() -> None:
    protocol = Protocol("P", split=("dp",), collect={"dp": "join", "pp": "last", "tp": 0})
    equal = Protocol("P", split=("dp",), collect=(("dp", "join"), ("pp", "last"), ("tp", 0)))
    assert protocol == equal
    assert hash(protocol) == hash(equal)
    listed = Protocol("P", split=["dp"], collect={"dp": "join", "pp": "last", "tp": 0})  # type: ignore[arg-type]
    assert listed == protocol
    assert hash(listed) == hash(protocol)
    assert str(protocol) == "P"


def test_one_axis_to_split_over_may_be_written_alone() -> None:
    alone: Any = "rank"
    assert Protocol("P", split=alone) == Protocol("P", split=("rank",))


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_protocol_needs_a_name(name: Any) -> None:
    with pytest.raises(DefinitionError, match=r"HF111: a protocol needs a name, got"):
        Protocol(name)


@pytest.mark.parametrize(("gives", "takes"), [("all", "whole"), ("whole", "per_stage"), ("all", "all")])
def test_arguments_and_results_have_a_kind(gives: Any, takes: Any) -> None:
    with pytest.raises(DefinitionError, match=rf"HF112: .*got gives='{gives}', takes='{takes}'"):
        Protocol("P", gives=gives, takes=takes)


def test_joined_axes_nest_as_they_were_cut() -> None:
    mesh = Mesh(dp=2, tp=2)
    minor_dp = Protocol("MINOR_DP", split=("tp", "dp"), collect={"dp": "join", "tp": "join", "pp": "last"})
    assert minor_dp.chunk_of(mesh) == (0, 2, 1, 3)
    assert minor_dp.collected(mesh) == (0, 2, 1, 3)


@given(protocol=protocols(lawful=False), mesh=meshes())
def test_what_is_collected_is_counted_without_a_look_at_each_rank(protocol: Protocol, mesh: Mesh) -> None:
    try:
        ranks = protocol.collected(mesh)
    except ProtocolError:
        with pytest.raises(ProtocolError, match="HF404"):
            protocol.collected_count(mesh)
    else:
        assert protocol.collected_count(mesh) == len(ranks)


def test_the_ranks_of_a_wide_mesh_are_counted_at_once() -> None:
    wide = Mesh(pp=10**9, dp=3, tp=10**12, gen_tp=10**6)
    assert PREDEFINED["DP_PROTO"].collected_count(wide) == wide.world_size
    assert PREDEFINED["THREE_D_PROTO"].collected_count(wide) == 3


@pytest.mark.parametrize(
    ("collect", "code"),
    [
        ({"dp": "join", "tp": "first"}, "HF409"),
        ({"dp": "join", "pp": "first", "gen_tp": "first"}, "HF409"),
        ({"dp": "joined", "pp": "first", "tp": "first"}, "HF112"),
        ({"dp": "join", "pp": -1, "tp": "first"}, "HF112"),
        ({"dp": "join", "pp": True, "tp": "first"}, "HF112"),
        ("dp", "HF112: protocol 'BAD': collect= takes a dict such as .*, got 'dp'"),
        (None, "HF112: .* got None"),
        (("dp", "tp"), "HF112: "),
        ({3: "join"}, "HF112: "),
    ],
)
def test_a_collect_without_meaning_is_refused(collect: dict[str, object], code: str) -> None:
    with pytest.raises((DefinitionError, ProtocolError), match=code):
        Protocol("BAD", split=("dp",), collect=collect)  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [None, 2, [["dp"]], {"dp": 1}])
def test_a_split_without_axes_is_refused(split: Any) -> None:
    with pytest.raises(ProtocolError, match=r"HF409: protocol 'BAD': split= takes a tuple of axes, such as .*, got "):
        Protocol("BAD", split=split)


def test_splitting_over_an_axis_of_another_system_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"HF409"):
        Protocol("BAD", split=("micro_dp",), collect={"dp": "join", "pp": "first", "tp": "first"})


def test_a_pick_beyond_the_axis_is_found_on_the_mesh() -> None:
    protocol = Protocol("THIRD", collect={"pp": 2, "dp": "first", "tp": "first"})
    assert protocol.collected(Mesh(pp=3)) == (2,)
    with pytest.raises(ProtocolError, match=r"HF404.*collects pp=2.*0\.\.1"):
        protocol.collected(Mesh(pp=2))
