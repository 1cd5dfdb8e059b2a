"""Ragged columns: rows of any lengths through whatever cuts and joins rows, against plain lists."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import DefinitionError, WiringError
from hfdsl.protocols.partitioning import Pad
from hfdsl.protocols.split import join, split
from hfdsl.types.batches import own_rows, schema


class B(hf.Dim): ...


class R(hf.Dim): ...


class H(hf.Dim): ...


class Tokens(hf.Batch):
    ids: hf.i64[B, hf.Ragged[R]]
    number: hf.i64[B]
    hidden: hf.f32[B, hf.Ragged[R], H] | None = None


Lists = list[list[int]]
lists = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=7)


def tokens(rows: Lists, hidden: bool = False) -> Tokens:
    ids = [torch.tensor(row, dtype=torch.int64) for row in rows]
    states = [torch.ones(len(row), 2) * len(row) for row in rows]
    return Tokens(ids=hf.i64(ids), number=torch.arange(len(rows)), hidden=hf.f32(states) if hidden else None)


def plain(batch: Tokens) -> Lists:
    rows = [row.tolist() for row in batch.ids.rows]
    if batch.hidden is not None:
        states = [[[float(len(row))] * 2] * len(row) for row in rows]
        assert [row.tolist() for row in batch.hidden.rows] == states
    return rows


def test_what_is_declared() -> None:
    assert [str(spec) for spec in schema(Tokens).fields.values()] == ["i64[B, ~R]", "i64[B]", "f32[B, ~R, H] | None"]


@given(lists, st.booleans(), st.integers(-8, 8), st.integers(-8, 8))
def test_slices_pickles_and_copies(rows: Lists, hidden: bool, start: int, stop: int) -> None:
    part = tokens(rows, hidden)[start:stop]
    assert plain(part) == rows[start:stop]
    arrived = pickle.loads(pickle.dumps(part))
    assert plain(arrived) == rows[start:stop]
    copied = own_rows(part.__hf_columns__)["ids"]
    assert copied.untyped_storage().nbytes() == copied.nbytes, "a pickle takes its own rows along, and no others"


@given(lists, st.integers(1, 4), st.sampled_from(["repeat_last", "cycle"]))
def test_splitting_padding_and_joining(rows: Lists, chunks: int, pad: Pad) -> None:
    added = -len(rows) % chunks
    fill = [rows[-1]] * added if pad == "repeat_last" else [rows[i % len(rows)] for i in range(added)]
    pieces = split(tokens(rows, hidden=True), chunks, pad=pad)
    assert [row for piece in pieces for row in plain(piece)] == plain(join(pieces)) == rows + fill


@given(lists, st.integers(1, 3), st.data())
def test_repeats_minibatches_and_filters(rows: Lists, times: int, data: Any) -> None:
    repeated = hf.repeat(tokens(rows, hidden=True), times)
    expected = [row for row in rows for _ in range(times)]
    assert plain(repeated) == expected
    assert [row for part in hf.minibatches(repeated, times) for row in plain(part)] == expected
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    mask: hf.bool_[B] = hf.bool_(torch.tensor(keep))
    filtered = hf.filter(tokens(rows, hidden=True), mask)
    assert plain(filtered) == [row for row, stays in zip(rows, keep, strict=True) if stays]
    assert plain(hf.fill(tokens(rows), len(rows) + 2)) == (rows * 3)[: len(rows) + 2]


@given(lists)
def test_a_nested_tensor_goes_in_and_comes_out(rows: Lists) -> None:
    nested = torch.nested.nested_tensor([torch.tensor(row, dtype=torch.int64) for row in rows], layout=torch.jagged)
    batch = Tokens(ids=nested, number=torch.arange(len(rows)))
    assert plain(batch) == rows
    assert batch.ids.tensor.layout is torch.jagged
    assert [row.tolist() for row in batch.ids.tensor.unbind()] == rows


def test_a_row_is_no_longer_than_its_bound() -> None:
    class Bounded(hf.Batch):
        ids: hf.i64[B, hf.Ragged[R]]
        mask: hf.i64[B, R]

    mask = torch.zeros(2, 3, dtype=torch.int64)
    ids = [torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)]
    assert len(Bounded(ids=hf.i64(ids), mask=mask)) == 2
    with pytest.raises(
        WiringError, match=r"HF210: column 'ids' of 'Bounded' is declared i64\[B, ~R\] and got i64\[2, ~4"
    ):
        Bounded(ids=hf.i64([torch.arange(4), torch.arange(1)]), mask=mask)


def test_no_rows_have_a_dtype() -> None:
    nothing = Tokens(ids=hf.i64([]), number=torch.arange(0), hidden=hf.f32([]))
    assert plain(nothing) == []
    assert plain(join([nothing, tokens([[1], []], hidden=True), nothing])) == [[1], []]
    loose: hf.i64[B, hf.Ragged[R]] = hf.i64([])
    assert loose.rows == []
    assert loose.tensor.dtype is torch.int64


def test_dense_is_not_ragged() -> None:
    class Dense(hf.Batch):
        ids: hf.i64[B, R]

    with pytest.raises(WiringError, match=r"HF214: column 'ids' of 'Tokens' is declared i64\[B, ~R\] and got a dense"):
        Tokens(ids=torch.zeros(2, 2, dtype=torch.int64), number=torch.arange(2))
    with pytest.raises(WiringError, match=r"HF214: column 'ids' of 'Dense' is declared i64\[B, R\] and got a ragged"):
        Dense(ids=hf.i64([torch.arange(2)]))
    with pytest.raises(
        WiringError, match=r"HF220: column 'ids' of 'Tokens' is declared i64\[B, ~R\] and got i32\[1, ~2\]"
    ):
        Tokens(ids=hf.i64([torch.arange(2).int()]), number=torch.arange(1))
    with pytest.raises(WiringError, match="HF206: column 'ids' of 'Tokens' takes a list with one tensor per row"):
        Tokens(ids=[[1, 2]], number=torch.arange(1))  # type: ignore[arg-type]  # a mistake on purpose


def test_declarations_without_meaning() -> None:
    with pytest.raises(DefinitionError, match="HF101: column 'x' of 'Rows': the dim after the rows can be ragged"):

        class Rows(hf.Batch):
            x: hf.f32[hf.Ragged[B], R]

    with pytest.raises(DefinitionError, match="HF101: column 'x' of 'Bare': Ragged has no bound"):

        class Bare(hf.Batch):
            x: hf.f32[B, hf.Ragged]  # type: ignore[type-arg]  # a mistake on purpose
