"""Rows that are balanced where the payload is: the same output as without, and less unequal chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import ProtocolError, SizeError
from hfdsl.protocols import PREDEFINED, Mesh
from hfdsl.protocols.balancing import weights_of
from hfdsl.protocols.partitioning import Pad, RowSplit
from hfdsl.protocols.split import Site, cut, restored
from hfdsl.protocols.transfer import collect, dispatch
from tests.protocols.test_mesh import meshes
from tests.protocols.test_transfer import SPLITTING

SITE = Site("Role.f", ("rows", "weights"))


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.i64[B]
    mask: hf.bool_[B, R] | None = None


def twice(chunk: Any) -> Any:
    """Two rows of output for each of input, of one kind with it."""
    return [row for row in chunk for _ in range(2)] if isinstance(chunk, list) else chunk.repeat_interleave(2)


@given(
    meshes(),
    st.sampled_from(SPLITTING),
    st.sampled_from([list, torch.tensor]),
    st.lists(st.integers(0, 50), min_size=1, max_size=24),
    st.sampled_from(["repeat_last", "cycle"]),
    st.sampled_from([1, 2]),
)
def test_a_balanced_call_returns_the_rows_of_one_in_order(
    mesh: Mesh, name: str, make: Any, weights: list[int], pad: Pad, group: int
) -> None:
    protocol = PREDEFINED[name]
    weights = weights * group
    rows = make(list(range(len(weights))))
    placed, _, row_split = dispatch(
        protocol, mesh, (rows, make(weights)), {}, site=SITE, pad=pad, group=group, balance="weights"
    )
    assert len({len(chunk) for chunk in placed[0]}) == 1, "every chunk has as many rows"
    for chunk in placed[0] if len(weights) % (protocol.chunk_count(mesh) * group) == 0 else ():
        assert all(int(row) % group == at % group for at, row in enumerate(chunk)), "groups are whole"
    output = collect(protocol, mesh, [twice(chunk) for chunk in placed[0]], site=SITE, row_split=row_split)
    assert [int(row) for row in output] == [row for row in range(len(weights)) for _ in range(2)]
    assert collect(protocol, mesh, [None] * mesh.world_size, site=SITE, row_split=row_split) is None


def given_to(value: Any, balance: str, *, name: str = "rows") -> list[Any]:
    """What each of two ranks is given."""
    return dispatch(PREDEFINED["DP_PROTO"], Mesh(dp=2), (), {name: value}, site=SITE, balance=balance)[1][name]


@pytest.mark.parametrize(
    "weights",
    [
        [9, 9, 1, 1],
        np.array([9, 9, 1, 1]),
        torch.tensor([9, 9, 1, 1], dtype=torch.int32),
        torch.ones(4, 9).triu(-1) > 0,
        np.ones((4, 9), dtype=np.int64),
    ],
    ids=["list", "array", "tensor", "mask", "array of a mask"],
)
def test_an_argument_weighs_its_rows(weights: Any) -> None:
    if getattr(weights, "ndim", 1) == 2:
        weights[2:, 1:] = False
    first, second = given_to(weights, "weights", name="weights")
    sums = [int(np.asarray(chunk).sum()) for chunk in (first, second)]
    assert sums[0] == sums[1]


def test_a_column_of_a_record_weighs_its_rows() -> None:
    mask = torch.tensor([[True] * 3, [True] * 3, [False] * 3, [False] * 3])
    rows = Rows(x=torch.arange(4), mask=hf.bool_(mask))
    assert [chunk.x.tensor.tolist() for chunk in given_to(rows, "mask")] == [[0, 3], [1, 2]]
    assert [chunk.x.tensor.tolist() for chunk in given_to(rows, "rows.mask")] == [[0, 3], [1, 2]]
    bare = Rows(x=torch.arange(4))
    assert [chunk.x.tensor.tolist() for chunk in given_to(bare, "mask")] == [[0, 1], [2, 3]], "absent: in order"


class Responses(hf.Batch):
    ids: hf.i64[B, hf.Ragged[R]]


def test_a_ragged_column_weighs_its_rows_by_their_lengths() -> None:
    rows = Responses(ids=hf.i64([torch.zeros(n, dtype=torch.int64) for n in (4, 4, 1, 2)]))
    assert sorted(sum(len(row) for row in chunk.ids.rows) for chunk in given_to(rows, "ids")) == [5, 6]


class Texts(hf.Batch):
    prompts: hf.Obj[str, B]
    loss: hf.Metric[float, Literal["mean"]]


@pytest.mark.parametrize("column", ["prompts", "loss"])
def test_texts_and_metrics_do_not_weigh(column: str) -> None:
    value = Texts(prompts=hf.Obj(["a", "b"]), loss=0.5)
    with pytest.raises(ProtocolError, match=r"HF425: .* no whole number for each row"):
        weights_of([("rows", value)], column, SITE)


def test_an_argument_whose_name_is_unknown_may_weigh_by_its_column() -> None:
    rows = Rows(x=torch.arange(4), mask=hf.bool_(torch.tensor([[True] * 3, [True] * 3, [False] * 3, [False] * 3])))
    for site in (Site("Role.f"), Site("Role.f", ("one",))):
        (_, placed), _, _ = dispatch(
            PREDEFINED["DP_PROTO"], Mesh(dp=2), ([0, 0, 0, 0], rows), {}, site=site, balance="mask"
        )
        assert [chunk.x.tensor.tolist() for chunk in placed] == [[0, 3], [1, 2]]


def halves(weights: Sequence[int]) -> RowSplit:
    """Rows of these weights over two chunks."""
    return RowSplit.even(len(weights), 2).balanced(weights, len(weights))


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=6).map(lambda half: half * 2))
def test_negative_row_weights_count_as_zero(weights: list[int]) -> None:
    clipped = [max(0, weight) for weight in weights]
    assert halves(weights) == halves(clipped)
    padded = RowSplit(len(weights), 2, 2, "cycle")
    assert padded.balanced(weights, len(weights)) == padded.balanced(clipped, len(weights))
    assert halves([0, 0, -5, -5]).partition is None, "nothing is lighter than nothing"
    partition = halves([2, 1, 0, 0]).partition
    assert partition is not None
    assert partition.order in ((0, 2, 1, 3), (0, 3, 1, 2)), "and something heavier"


@pytest.mark.parametrize(
    ("value", "balance", "text"),
    [
        ([1, 2], "length", "HF425: Role.f is balanced by 'length', and no argument of this call has it"),
        ([1.5, 2.0], "rows", "HF425: .* no whole number for each row"),
        (torch.zeros(2), "rows", "HF425: .* no whole number for each row"),
        (["a", "b"], "rows", "HF425: .* no whole number for each row"),
    ],
)
def test_columns_that_cannot_be_weights_are_reported(value: Any, balance: str, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        given_to(value, balance)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).map(lambda half: half * 2))
def test_rows_that_are_put_back_are_where_they_were(weights: Sequence[int]) -> None:
    row_split = halves(weights)
    names = [f"n{i}" for i in range(len(weights))]
    chunks = [cut(names, row_split.chunk_rows(chunk)) for chunk in range(2)]
    assert restored([name for chunk in chunks for name in chunk], row_split) == names
    assert restored(names, RowSplit.even(len(names), 2)) is names
    assert restored(3.0, row_split) == 3.0, "what has no rows has no order"


def test_rows_of_which_nobody_knows_whose_they_are_are_reported() -> None:
    with pytest.raises(SizeError, match="HF310: the output has 3 rows for 4 rows that were balanced"):
        restored([1, 2, 3], halves([9, 9, 1, 1]), "the output")
