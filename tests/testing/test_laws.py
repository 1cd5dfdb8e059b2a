"""The laws: every predefined protocol keeps them, and of broken ones each finds exactly its own."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.protocols import PREDEFINED, Functions, Mesh
from hfdsl.protocols.mesh import AXES
from hfdsl.protocols.placement import faults
from hfdsl.protocols.split import join, rows_of, split
from hfdsl.testing import LAWS, BrokenLaws, check_laws, lawful
from hfdsl.testing.laws.check import applying, meshes_up_to
from hfdsl.testing.laws.subject import subject_of
from tests.nightly import examples

Cut = Callable[[Any, Any], list[Any]]


@pytest.mark.nightly_besides("DP_PROTO", "THREE_D_PROTO")
@pytest.mark.parametrize("name", PREDEFINED)
def test_every_predefined_protocol_is_lawful(name: str) -> None:
    check_laws(hf.Dispatch[name])


def pair(cut: Cut, collect: Callable[..., Any]) -> Functions:
    """A dispatch function that cuts every argument in the same way, and a collect function."""

    def dispatch_fn(group: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple(cut(group, value) for value in args), {name: cut(group, kwargs[name]) for name in kwargs}

    return Functions(dispatch_fn, collect)


def by_dp(group: Any, value: Any) -> list[Any]:
    """Part i to every rank whose data-parallel coordinate is i."""
    parts = split(value, group.mesh.dp)
    return [parts[group.mesh.coordinates(rank).dp] for rank in range(group.world_size)]


def first_of_dp(group: Any, outputs: Any) -> Any:
    """The outputs of the last stage, first tensor rank, by data-parallel coordinate."""
    mesh = group.mesh
    return join([outputs[mesh.rank(pp=mesh.pp - 1, dp=dp)] for dp in range(mesh.dp)])


def test_a_pair_that_does_what_a_predefined_protocol_does_is_lawful() -> None:
    check_laws(pair(by_dp, first_of_dp))
    check_laws(pair(by_dp, first_of_dp), like="3D_PROTO")


# -- protocols that break one law each


def only_first_replica(group: Any, value: Any) -> list[Any]:
    parts = by_dp(group, value)
    return [part if group.mesh.coordinates(rank).tp == 0 else part[:0] for rank, part in enumerate(parts)]


def mirrored_replicas(group: Any, value: Any) -> list[Any]:
    def mirrored(part: Any) -> Any:
        return join([part[i : i + 1] for i in reversed(range(rows_of(part)))])

    parts = by_dp(group, value)
    return [part if group.mesh.coordinates(rank).tp == 0 else mirrored(part) for rank, part in enumerate(parts)]


def rows_sorted(falling: bool) -> Callable[..., Any]:
    def collect(group: Any, outputs: Any) -> Any:
        got = first_of_dp(group, outputs)
        return sorted(got, reverse=falling) if isinstance(got, list) else got

    return collect


def by_dp_and_tp(group: Any, value: Any) -> list[Any]:
    """Part dp * tp_size + tp: rows are split over both axes."""
    mesh, parts = group.mesh, split(value, group.mesh.dp * group.mesh.tp)
    at = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
    return [parts[c.dp * mesh.tp + c.tp] for c in at]


def last_stage_in_rank_order(group: Any, outputs: Any) -> Any:
    """The bug of the tutorial: ranks do not rise with the parts where tp is numbered before dp."""
    return join([output for rank, output in enumerate(outputs) if group.mesh.coordinates(rank).pp == group.mesh.pp - 1])


def with_a_halo(group: Any, value: Any) -> list[Any]:
    """Every part but the first begins with the last row of the part before."""
    parts = split(value, group.mesh.dp)
    haloed = [parts[0], *(join([a[-1:], b]) for a, b in pairwise(parts))]
    return [haloed[group.mesh.coordinates(rank).dp] for rank in range(group.world_size)]


def without_the_halo(group: Any, outputs: Any) -> Any:
    mesh = group.mesh
    parts = [outputs[mesh.rank(pp=mesh.pp - 1, dp=dp)] for dp in range(mesh.dp)]
    return join([parts[0], *(part[rows_of(part) - rows_of(parts[0]) :] for part in parts[1:])])


def padded(group: Any, value: Any) -> list[Any]:
    parts = split(value, group.mesh.dp, pad="repeat_last")
    return [parts[group.mesh.coordinates(rank).dp] for rank in range(group.world_size)]


def growing(group: Any, value: Any) -> list[Any]:
    parts = by_dp(group, value)
    if isinstance(value, list):
        value += value[-1:]
    return parts


def first_stage(group: Any, outputs: Any) -> Any:
    return join([outputs[group.mesh.rank(dp=dp)] for dp in range(group.mesh.dp)])


class Answers(list[Any]):
    """A list of the user's own."""


def own_list(group: Any, outputs: Any) -> Any:
    got = first_of_dp(group, outputs)
    return Answers(got) if isinstance(got, list) else got


def wider(group: Any, outputs: Any) -> Any:
    got = first_of_dp(group, outputs)
    return got.long() if isinstance(got, torch.Tensor) else got


def in_turn() -> Functions:
    """Every call begins with the next rank, and collect knows with which."""
    calls = 0

    def dispatch_fn(group: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1

        def cut(value: Any) -> list[Any]:
            parts = split(value, group.world_size)
            return [parts[(rank + calls) % group.world_size] for rank in range(group.world_size)]

        return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}

    def collect(group: Any, outputs: Any) -> Any:
        return join([outputs[(part - calls) % group.world_size] for part in range(group.world_size)])

    return Functions(dispatch_fn, collect)


def rest_to_the_first(group: Any, value: Any) -> list[Any]:
    """Equal parts, and the rows that remain behind those of rank 0: rows keep their order only where none remain."""
    size, rest = divmod(rows_of(value), group.world_size)
    parts = [value[rank * size : (rank + 1) * size] for rank in range(group.world_size)]
    return [join([parts[0], value[-rest:]]), *parts[1:]] if rest else parts


def rest_to_the_firsts(group: Any, value: Any) -> list[Any]:
    """One of the rows that remain to each of the first ranks, in order."""
    size, rest = divmod(rows_of(value), group.world_size)
    edges = [rank * size + min(rank, rest) for rank in range(group.world_size + 1)]
    return [value[start:stop] for start, stop in pairwise(edges)]


def everyone(group: Any, outputs: Any) -> Any:
    return join(list(outputs))


def test_uneven_rows_that_come_back_in_another_order_are_found() -> None:
    check_laws(pair(rest_to_the_firsts, everyone))
    with pytest.raises(BrokenLaws) as raised:
        check_laws(pair(rest_to_the_first, everyone))
    assert [broken.law.id for broken in raised.value.broken] == ["L3", "L4"]
    assert str(raised.value.broken[0].case) == "3 rows in a list on hf.Mesh(dp=2)"


LIKE_3D = {"like": "3D_PROTO"}

MUTANTS: dict[str, tuple[Functions, dict[str, Any]]] = {
    "L1": (pair(only_first_replica, first_of_dp), {}),
    "L2": (pair(mirrored_replicas, first_of_dp), {}),
    "L3": (pair(by_dp, rows_sorted(falling=True)), {}),
    "L4": (pair(by_dp, rows_sorted(falling=False)), {}),
    "L5": (pair(by_dp_and_tp, last_stage_in_rank_order), {}),
    "L6": (pair(with_a_halo, without_the_halo), {}),
    "L7": (pair(padded, first_of_dp), {}),
    "L8": (pair(growing, first_of_dp), {}),
    "L9": (pair(by_dp, first_stage), LIKE_3D),
    "L10": (pair(by_dp, own_list), {}),
    "L11": (pair(by_dp, wider), {}),
    "L12": (in_turn(), {}),
}


def without_the_last_row(group: Any, value: Any) -> list[Any]:
    parts = by_dp(group, value)
    last = group.mesh.dp - 1
    return [part[:-1] if group.mesh.coordinates(rank).dp == last else part for rank, part in enumerate(parts)]


def test_a_dispatch_that_loses_rows_breaks_coverage() -> None:
    lossy = pair(without_the_last_row, first_of_dp)
    with pytest.raises(BrokenLaws, match=r"L1 coverage: every row reaches a rank.*\n +no rank receives row \d"):
        check_laws(lossy, only="coverage", meshes=[Mesh(dp=1)])
    check_laws(lossy, only="partition")


def test_every_law_has_a_protocol_that_breaks_it_alone() -> None:
    assert [law.id for law in LAWS] == list(MUTANTS)


@pytest.mark.sampled
@pytest.mark.parametrize("law", MUTANTS)
def test_a_protocol_that_breaks_one_law_is_found_by_that_law_alone(law: str) -> None:
    protocol, options = MUTANTS[law]
    with pytest.raises(BrokenLaws) as raised:
        check_laws(protocol, **options, max_examples=examples(400))
    assert [broken.law.id for broken in raised.value.broken] == [law], str(raised.value)


# -- what users see


TOLD = """\
the pair dispatch_fn, last_stage_in_rank_order breaks 1 of the 11 laws that apply to it

L5 order: the numbering of ranks does not change what the caller receives
  each rank returns 9000 - 7 * row; in the usual order the caller gets 9000 8993 8986 8979
  case                     4 rows in a list on hf.Mesh(dp=2, tp=2, order=('pp', 'tp', 'dp'))
  rank 0 (pp=0 dp=0 tp=0)  receives 0
  rank 1 (pp=0 dp=1 tp=0)  receives 2
  rank 2 (pp=0 dp=0 tp=1)  receives 1
  rank 3 (pp=0 dp=1 tp=1)  receives 3
  the caller               gets 9000 8986 8993 8979
  again                    check_laws(..., only="L5", meshes=[hf.Mesh(dp=2, tp=2, order=('pp', 'tp', 'dp'))], \
containers="list")"""


def test_a_broken_law_is_reported_with_its_smallest_case() -> None:
    with pytest.raises(BrokenLaws) as raised:
        check_laws(pair(by_dp_and_tp, last_stage_in_rank_order))
    assert str(raised.value) == TOLD


def again(error: BrokenLaws) -> list[str]:
    """The calls that a failure lists."""
    return re.findall(r"^  again +(.*)$", str(error), re.MULTILINE)


def test_the_call_that_is_reported_shows_the_same_broken_law() -> None:
    protocol = pair(by_dp_and_tp, last_stage_in_rank_order)
    with pytest.raises(BrokenLaws) as raised:
        check_laws(protocol, like="3D_PROTO", seed=3, containers=["tensor"])
    for call, broken in zip(again(raised.value), raised.value.broken, strict=True):
        assert call.startswith("check_laws(..., like='3D_PROTO', seed=3, only=")
        assert call.endswith('containers="tensor")')
        with pytest.raises(BrokenLaws) as repeated:
            eval(call.replace("...", "protocol"), {"protocol": protocol, "check_laws": check_laws, "hf": hf})
        assert repeated.value.broken == (broken,)


def test_the_call_that_is_reported_of_a_declared_protocol_can_be_pasted_as_it_is() -> None:
    copies = hf.Protocol("COPIES", split=("dp",), collect={"dp": "join", "tp": "join", "pp": "last"})
    with pytest.raises(BrokenLaws) as raised:
        check_laws(copies, only=["L3", "L4"])
    for call in again(raised.value):
        with pytest.raises(BrokenLaws, match="COPIES breaks 1 of the 1 laws"):
            eval(call, {"check_laws": check_laws, "hf": hf})


def test_a_failure_can_be_sent_to_another_process() -> None:
    with pytest.raises(BrokenLaws) as raised:
        check_laws(pair(by_dp_and_tp, last_stage_in_rank_order))
    sent = pickle.loads(pickle.dumps(raised.value))
    assert (str(sent), sent.broken) == (str(raised.value), raised.value.broken)
    assert sent.broken[0].law is raised.value.broken[0].law


def test_meshes_are_those_that_are_given() -> None:
    protocol = pair(by_dp_and_tp, last_stage_in_rank_order)
    check_laws(protocol, only="order", meshes=[Mesh(dp=2, tp=2)])
    check_laws(protocol, only=("L1", "order"), meshes=(mesh for mesh in [Mesh(pp=2, dp=2, tp=2)]))


def test_an_error_in_a_protocol_is_reported_with_its_place() -> None:
    def lost(group: Any, outputs: Any) -> Any:
        return outputs[group.world_size]

    with pytest.raises(BrokenLaws, match=r"raised IndexError: list index out of range \(test_laws\.py:\d+ in lost\)"):
        check_laws(pair(by_dp, lost), only="L3", max_examples=5)


def test_every_broken_law_of_a_protocol_is_reported() -> None:
    every_rank = hf.Protocol("COPIES", split=("dp",), collect={"dp": "join", "tp": "join", "pp": "last"})
    with pytest.raises(BrokenLaws) as raised:
        check_laws(every_rank)
    assert {broken.law.name for broken in raised.value.broken} == {"round_trip", "row_map", "padding"}
    assert all(broken.case.mesh.world_size == 2 for broken in raised.value.broken)
    assert str(raised.value).startswith("COPIES breaks 3 of the 12 laws that apply to it\n\nL3 round trip: ")


PICKS: tuple[Any, ...] = ("join", "first", "last")


@pytest.mark.parametrize("split", [(), ("dp",), ("tp", "dp"), ("pp", "dp"), ("pp", "dp", "tp")])
@pytest.mark.parametrize("pick", [(a, b, c) for a in PICKS for b in PICKS for c in PICKS], ids="-".join)
def test_the_round_trip_breaks_where_the_checker_says_that_a_collect_changes_the_value(
    split: tuple[str, ...], pick: tuple[Any, ...]
) -> None:
    """Two ways to the same answer: the table of legal collects, of a body that leaves alike what it was given alike."""
    protocol = hf.Protocol("MINE", split=split, collect=dict(zip(("pp", "dp", "tp"), pick, strict=True)))
    mesh = Mesh(pp=2, dp=2, tp=2)
    leaves = {axis: hf.Sharded() if axis in split else hf.Replicated() for axis, _ in protocol.picks}
    try:
        check_laws(protocol, only="L3", meshes=[mesh], max_examples=3)
        broken = False
    except BrokenLaws:
        broken = True
    assert broken is bool(faults(protocol, mesh, leaves))


def test_a_coordinate_that_small_meshes_lack_is_looked_for_on_others() -> None:
    third = hf.Protocol("THIRD", split=("dp",), collect={"dp": "join", "pp": "last", "tp": 2})
    check_laws(third, max_examples=20)
    with pytest.raises(
        DefinitionError, match="HF922: check_laws would compare nothing: no mesh has the coordinates that THIRD picks"
    ):
        check_laws(third, meshes=[Mesh(tp=2)])


def test_a_protocol_may_be_made_for_some_containers_alone() -> None:
    def lists(group: Any, outputs: Any) -> Any:
        mesh = group.mesh
        return [row for dp in range(mesh.dp) for row in outputs[mesh.rank(pp=mesh.pp - 1, dp=dp)] + []]

    check_laws(pair(by_dp, lists), containers="list")
    with pytest.raises(BrokenLaws) as raised:
        check_laws(pair(by_dp, lists), containers=["tensor", "list"])
    assert {broken.case.kind.name for broken in raised.value.broken} == {"tensor"}
    with pytest.raises(
        DefinitionError, match=r"HF921: check_laws: no container is called 'tensors'; did you mean 'tensor'\?"
    ):
        check_laws(pair(by_dp, lists), containers="tensors")


def test_arguments_that_are_no_protocol_or_law_are_reported() -> None:
    with pytest.raises(ProtocolError, match="HF412: no protocol is called '3D_PROT'; did you mean '3D_PROTO'"):
        check_laws("3D_PROT")
    with pytest.raises(DefinitionError, match=r"HF112: the protocol .* needs a callable 'collect_fn'; it has none"):
        check_laws({"dispatch_fn": print})
    with pytest.raises(DefinitionError, match=r"HF921: check_laws: no law is called 'orders'; did you mean 'order'\?"):
        check_laws("DP_PROTO", only="orders")
    with pytest.raises(
        DefinitionError, match="HF921: check_laws: like= is for a pair of functions; DP_PROTO is declared"
    ):
        check_laws("DP_PROTO", like="3D_PROTO")


# -- one pytest test a law


@lawful("3D_PROTO", max_examples=40)
class TestThreeD:
    def test_of_its_own(self) -> None: ...


@lawful(pair(by_dp, first_of_dp), like="3D_PROTO", only=("order", "L3"), max_examples=40)
class TestPair: ...


@lawful(pair(by_dp_and_tp, last_stage_in_rank_order), max_examples=100)
class Wrong: ...


def of_laws(cls: type) -> Iterator[str]:
    return (name for name in vars(cls) if re.match(r"test_l\d+_", name))


def test_a_lawful_class_has_a_test_for_every_law_that_applies() -> None:
    assert list(of_laws(TestThreeD)) == [f"test_{law.id.lower()}_{law.name}" for law in LAWS]
    assert list(of_laws(TestPair)) == ["test_l3_round_trip", "test_l5_order"]
    failed = []
    for name in of_laws(Wrong):
        try:
            getattr(Wrong(), name)()
        except BrokenLaws:
            failed.append(name)
    assert failed == ["test_l5_order"]
    assert vars(Wrong)["test_l5_order"].__doc__ == "The numbering of ranks does not change what the caller receives."


def test_fewer_laws_apply_to_what_does_not_split_or_join() -> None:
    assert {law.name for law in LAWS} - {law.name for law in applying(subject_of("ONE_TO_ALL"))} == {
        "row_map", "order", "partition", "padding", "composition",
    }  # fmt: skip  # a set
    assert {law.name for law in LAWS} - {law.name for law in applying(subject_of(pair(by_dp, first_of_dp)))} == {
        "placement"
    }


def test_meshes_are_all_there_the_simplest_first() -> None:
    meshes = meshes_up_to(8)
    assert meshes[0] == Mesh()
    assert len(set(meshes)) == len(meshes)
    assert [mesh.world_size for mesh in meshes] == sorted(mesh.world_size for mesh in meshes)
    cube = (2, 2, 2)
    assert {mesh.order for mesh in meshes if (mesh.pp, mesh.dp, mesh.tp) == cube} == set(permutations(AXES))


@pytest.mark.parametrize(
    ("law", "said"),
    [
        ("L3", r"ranks return what they receive: the caller should get 0 1$"),
        ("L4", r"each rank returns two rows, 9000 - 2 \* row .*, for each row: the caller should get 9000 8999$"),
        (
            "L7",
            r"1 row does not divide into 2 chunks, and .*: the caller should get 0 in some order, or an error",
        ),
        ("L8", r"the caller passed rows 0 by position, and its object has 0 .*"),
        (
            "L12",
            r"with a= before b= in a call, ranks receive of a ([01]) \| [01]; with b= .*, ranks .* a (?!\1)[01] \| \1$",
        ),
    ],
)
def test_a_broken_law_says_what_should_be(law: str, said: str) -> None:
    protocol, options = MUTANTS[law]
    with pytest.raises(BrokenLaws) as raised:
        check_laws(protocol, **options, only=law)
    (broken,) = raised.value.broken
    assert re.match(said, broken.said), broken.said


def test_a_dispatch_that_gives_no_pair_is_told_what_to_give() -> None:
    def only_args(group: Any, *args: Any, **kwargs: Any) -> Any:
        return args

    with pytest.raises(BrokenLaws, match=r"raised HF407: only_args has to give \(args, kwargs\), and gave .*tuple"):
        check_laws({"dispatch_fn": only_args, "collect_fn": first_of_dp})


def test_a_dispatch_with_too_few_parts_is_told_how_many() -> None:
    lacking = pair(lambda group, value: by_dp(group, value)[1:], first_of_dp)
    with pytest.raises(BrokenLaws, match="dispatch has to give a list of 1 for 1 rank, and gave 0"):
        check_laws(lacking)


def test_a_signature_that_does_not_fit_is_not_placed_in_hfdsl() -> None:
    def without_names(group: Any, *args: Any) -> Any:
        return tuple(by_dp(group, value) for value in args), {}

    with pytest.raises(BrokenLaws, match=r"got an unexpected keyword argument 'other'\n"):
        check_laws({"dispatch_fn": without_names, "collect_fn": first_of_dp})


def test_a_collect_that_looks_at_the_wrong_stage_is_told_at_which_ranks() -> None:
    def of_the_first_stage(group: Any, outputs: Any) -> Any:
        return join([outputs[group.mesh.rank(pp=0, dp=dp)] for dp in range(group.mesh.dp)])

    with pytest.raises(BrokenLaws, match=r"collect looks at what ranks \[0\] return, which have no part in the result"):
        check_laws(pair(by_dp, of_the_first_stage), like="3D_PROTO", only="L9")
