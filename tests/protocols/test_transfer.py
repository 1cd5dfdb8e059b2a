"""Laws of dispatch and collect over real containers: round trip, row map, partition, padding, no aliasing."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import ProtocolError, SizeError, WiringError
from hfdsl.protocols import PREDEFINED, Mesh, PerRank
from hfdsl.protocols.partitioning import RowSplit
from hfdsl.protocols.split import Site, join, restored, rows_of, split
from hfdsl.protocols.transfer import collect, dispatch
from tests.protocols.test_mesh import meshes


class B(hf.Dim): ...


SPLITTING = ["DP_PROTO", "THREE_D_PROTO", "THREE_D_ALL_MICRO_DP"]


class Record:
    """A batch by its interface alone."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __hf_rows__(self) -> int:
        return len(self.rows)

    def __hf_slice__(self, start: int, stop: int) -> "Record":
        return Record(self.rows[start:stop])

    @classmethod
    def __hf_concat__(cls, parts: Sequence["Record"]) -> "Record":
        return cls([row for part in parts for row in part.rows])


MAKE: dict[str, Callable[[Sequence[int]], Any]] = {
    "list": list,
    "tensor": lambda rows: torch.tensor(list(rows), dtype=torch.int64).reshape(-1, 1),
    "array": lambda rows: np.array(list(rows), dtype=np.int64),
    "record": lambda rows: Record(list(rows)),
}


def read(value: Any) -> list[int]:
    if isinstance(value, Record):
        return value.rows
    return value if isinstance(value, list) else value.reshape(-1).tolist()


def run(name: str, mesh: Mesh, value: Any, body: Callable[[Any], Any], **options: Any) -> Any:
    """One call: what is not collected must not be looked at, so those ranks give junk."""
    protocol = PREDEFINED[name]
    (placed,), _, row_split = dispatch(protocol, mesh, (value,), {}, **options)
    collected = protocol.collected(mesh)
    outputs = [body(placed[rank]) if rank in collected else object() for rank in range(mesh.world_size)]
    return collect(protocol, mesh, outputs, row_split=row_split)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", SPLITTING)
@given(mesh=meshes(3), share=st.integers(0, 3))
def test_a_row_wise_body_gives_the_rows_in_their_order(name: str, kind: str, mesh: Mesh, share: int) -> None:
    rows = list(range(share * PREDEFINED[name].chunk_count(mesh)))
    value = MAKE[kind](rows)
    assert read(run(name, mesh, value, lambda part: part)) == rows  # round trip
    given_back = run(name, mesh, value, lambda part: MAKE[kind]([row * 7 for row in read(part)]))
    assert read(given_back) == [row * 7 for row in rows]  # row map
    assert type(given_back) is type(value)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", SPLITTING)
@given(mesh=meshes(3), share=st.integers(1, 2))
def test_every_rank_has_only_its_rows_and_replicas_agree(name: str, kind: str, mesh: Mesh, share: int) -> None:
    protocol = PREDEFINED[name]
    rows = list(range(share * protocol.chunk_count(mesh)))
    (placed,), _, _ = dispatch(protocol, mesh, (MAKE[kind](rows),), {})
    assert len(placed) == mesh.world_size
    for rank, chunk in enumerate(protocol.chunk_of(mesh)):
        assert read(placed[rank]) == rows[chunk * share : (chunk + 1) * share]


@pytest.mark.parametrize("pad", ["repeat_last", "cycle"])
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", SPLITTING)
@given(mesh=meshes(3), count=st.integers(1, 7), factor=st.integers(1, 2))
def test_pad_rows_never_come_back(name: str, kind: str, pad: str, mesh: Mesh, count: int, factor: int) -> None:
    rows = list(range(count))
    value = MAKE[kind](rows)
    before = deepcopy(value)
    given_back = run(
        name, mesh, value, lambda part: MAKE[kind]([row for row in read(part) for _ in range(factor)]), pad=pad
    )
    assert read(given_back) == [row for row in rows for _ in range(factor)]
    assert read(value) == read(before)  # the caller's object has not grown


def test_the_pad_rows_themselves() -> None:
    assert split([1, 2], 5, pad="cycle") == [[1], [2], [1], [2], [1]]
    assert split([1, 2], 5, pad="repeat_last") == [[1], [2], [2], [2], [2]]
    assert split([1, 2, 3], 2, pad="cycle") == [[1, 2], [3, 1]]


def test_pad_rows_that_cannot_be_attributed_are_an_error() -> None:
    with pytest.raises(SizeError, match=r"HF310.*7 rows for 3 rows and 1 pad rows"):
        run("DP_PROTO", Mesh(dp=2), [1, 2, 3], lambda part: [*part, 0] if part == [1, 2] else [0] * 4, pad="cycle")


def test_chunks_are_not_the_callers_objects() -> None:
    rows = [1, 2]
    for chunk in split(rows, 1):
        chunk.append(3)
    assert rows == [1, 2]
    (placed,), _, _ = dispatch(PREDEFINED["THREE_D_PROTO"], Mesh(tp=2), (rows,), {})
    placed[0].append(9)
    assert rows == [1, 2]


def test_same_call_same_parts() -> None:
    mesh = Mesh(pp=2, dp=2, tp=2, gen_tp=1)
    calls = [dispatch(PREDEFINED["THREE_D_ALL_MICRO_DP"], mesh, (list(range(8)),), {"b": [0] * 8}) for _ in range(2)]
    assert calls[0] == calls[1]


def test_keywords_are_split_like_positions() -> None:
    placed, named, _ = dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=2), ([1, 2],), {"b": np.array([3, 4])})
    assert placed == ([[1], [2]],)
    assert [part.tolist() for part in named["b"]] == [[3], [4]]


# -- what is no row container ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ((1, 2), "a tuple"),
        ({"a": [1, 2]}, "a dict"),
        ("ab", "a str"),
        (None, "None"),
        (3, "an int"),
        (0.5, "a float"),
        (torch.tensor(1.0), "a 0-d Tensor"),
        (np.array(1.0), "a 0-d ndarray"),
        (np.float64(1.0), "a 0-d float64"),
    ],
)
def test_a_value_without_rows_is_named(value: object, kind: str) -> None:
    site = Site("Actor.update", ("rollout",))
    with pytest.raises(ProtocolError, match=rf"HF413: argument 'rollout' of Actor.update is {kind}"):
        dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=2), (value,), {}, site=site)
    with pytest.raises(ProtocolError, match=rf"HF413: argument 'clip' of Actor.update is {kind}"):
        dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=2), ([1, 2],), {"clip": value}, site=site)


def test_rows_that_do_not_divide_are_reported_with_the_numbers() -> None:
    with pytest.raises(SizeError, match=r"HF310: argument 0 of f has 11 rows.*4 chunks \(11 % 4 = 3\); give 8 or 12"):
        dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=4), (list(range(11)),), {}, site=Site("f"))
    with pytest.raises(SizeError, match=r"4 chunks \(3 % 4 = 3\); give 4 rows"):
        split([1, 2, 3], 4)


def test_arguments_of_different_rows_are_all_listed() -> None:
    with pytest.raises(ProtocolError, match=r"HF420.*argument 0 of f has 4, argument 'b' of f has 8"):
        dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=2), ([0] * 4,), {"b": [0] * 8}, site=Site("f"))


def test_groups_of_rows_stay_together() -> None:
    assert split(list(range(8)), 2, group=4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(SizeError, match=r"HF313.*groups of 4.*give 8 or 16"):
        split(list(range(12)), 2, group=4)
    with pytest.raises(
        SizeError, match=r"HF313.*6 rows in groups of 2; over 2 chunks a group would be cut; give 4 or 8"
    ):
        split(list(range(6)), 2, group=2)
    assert split(list(range(4)), 2, group=4, pad="cycle") == [[0, 1, 2, 3], [0, 1, 2, 3]]
    with pytest.raises(SizeError, match=r"HF313.*6 rows.*whole groups of 4"):
        split(list(range(6)), 2, group=4, pad="cycle")


def test_per_rank_arguments_are_lists_of_the_world_size() -> None:
    placed, _, _ = dispatch(PREDEFINED["ALL_TO_ALL"], Mesh(dp=2), ([[1, 2], (3,)], PerRank([5, 6])), {})
    assert placed == ([[1, 2], (3,)], [5, 6])
    for value, got in (([1, 2, 3], "a list of 3"), ((1, 2), "tuple"), (1, "int"), (torch.zeros(2), "Tensor")):
        with pytest.raises(ProtocolError, match=rf"HF411: argument 'x' of f is {got}.*each of the 2 ranks"):
            dispatch(PREDEFINED["ALL_TO_ALL"], Mesh(dp=2), (), {"x": value}, site=Site("f"))


def test_outputs_that_cannot_be_joined() -> None:
    assert join([None, None]) is None
    mixed = ([[1], torch.zeros(1)], "list, Tensor")
    for pieces, kinds in (mixed, ([{"a": 1}, {"a": 1}], "dict"), ([[1], None], "list, None")):
        with pytest.raises(ProtocolError, match=rf"HF413.*gave {kinds}"):
            join(pieces)


def test_a_list_protocol_gives_one_output_a_stage() -> None:
    mesh = Mesh(pp=2, dp=2, tp=2)
    assert collect(PREDEFINED["THREE_D_PP_ONLY"], mesh, list("abcdefgh")) == ["a", "e"]


def test_a_missing_output_is_an_error() -> None:
    with pytest.raises(ProtocolError, match=r"HF407"):
        collect(PREDEFINED["ONE_TO_ALL"], Mesh(dp=2), [1])


class Other(Record):
    """Rows of another kind, by the same interface."""


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Optional(hf.Batch):
    x: hf.i64[B]
    mask: hf.bool_[B] | None = None


class Later:
    """A value that is still being made: it is asked for each chunk."""

    def __hf_cut__(self, index: int, count: int, **options: Any) -> Any:
        return ("cut", index, count, options["subject"])


def test_records_of_two_kinds_are_not_joined() -> None:
    with pytest.raises(ProtocolError, match=r"HF413: .* gave Record, Other;"):
        join([Record([1]), Other([2])])
    assert join([torch.nn.Parameter(torch.zeros(1)), torch.ones(1)]).tolist() == [0, 1], "tensors are of one kind"


def test_metrics_have_no_rows_and_come_back_whole() -> None:
    metrics = Metrics(loss=1.5)
    with pytest.raises(ProtocolError, match=r"HF413: argument 0 of f is a Metrics, which has no rows to split"):
        dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=2), (metrics,), {}, site=Site("f"))
    assert restored(metrics, RowSplit.even(3, 2, pad="cycle")) is metrics
    balanced = RowSplit.even(4, 2).balanced([9, 9, 1, 1], 4)
    assert balanced.partition is not None
    assert restored(metrics, balanced) is metrics


def test_a_column_that_some_ranks_gave_and_others_did_not_is_an_error() -> None:
    parts = [Optional(x=torch.arange(2), mask=hf.bool_(torch.ones(2, dtype=torch.bool))), Optional(x=torch.arange(2))]
    with pytest.raises(WiringError, match=r"HF810: .*column 'mask' of 'Optional'.*rank 0.*rank 1"):
        collect(PREDEFINED["DP_PROTO"], Mesh(dp=2), parts)


def test_a_record_of_one_rank_and_nothing_of_another_are_not_joined() -> None:
    with pytest.raises(ProtocolError, match=r"HF413: .* gave Optional, None;"):
        collect(PREDEFINED["DP_PROTO"], Mesh(dp=2), [Optional(x=torch.arange(2)), None])


def test_pending_outputs_are_split_by_their_receiver() -> None:
    mesh, site = Mesh(dp=2, tp=2), Site("f", ("a", "b"))
    (later,), _, row_split = dispatch(PREDEFINED["THREE_D_PROTO"], mesh, (Later(),), {}, site=site)
    assert later == [("cut", chunk, 2, "argument 'a' of f") for chunk in (0, 0, 1, 1)]
    assert (row_split.rows, row_split.added) == (0, 0)
    (_, rows), _, row_split = dispatch(
        PREDEFINED["THREE_D_PROTO"], mesh, (Later(), [1, 2, 3]), {}, site=site, pad="cycle"
    )
    assert rows == [[1, 2], [1, 2], [3, 1], [3, 1]], "the rows that are here are counted"
    assert (row_split.rows, row_split.added) == (3, 1)


def test_nothing_is_added_where_rows_divide() -> None:
    rows = [1, 2]
    assert restored(rows, RowSplit.even(2, 2, pad="cycle")) is rows
    assert split(rows, 2, pad="cycle") == [[1], [2]]
    assert split([], 2, pad="cycle") == [[], []]


def test_rows_of() -> None:
    assert [rows_of(make(range(3))) for make in MAKE.values()] == [3, 3, 3, 3]
