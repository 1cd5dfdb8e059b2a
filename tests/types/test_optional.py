"""Optional columns: there for all rows or for none, through whatever cuts and joins rows."""

from __future__ import annotations

import pickle
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import DefinitionError, WiringError
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.partitioning import Pad
from hfdsl.protocols.predefined import DP_PROTO
from hfdsl.protocols.split import join, split
from hfdsl.protocols.transfer import collect
from hfdsl.types.batches import schema, upcast


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rollout(hf.Batch):
    values: hf.f32[B, R] | None = None
    ids: hf.i64[B]
    hint: hf.Obj[str, B] | None = None
    given: hf.i64[B] | None


class Scored(Rollout):
    reward: hf.f32[B]


def rollout(rows: int, *, values: bool = True, hint: bool = True) -> Rollout:
    return Rollout(
        ids=torch.arange(rows),
        values=hf.f32(torch.arange(rows * 2.0).view(rows, 2)) if values else None,
        hint=hf.Obj([str(i) for i in range(rows)]) if hint else None,
        given=None,
    )


def plain(batch: Rollout) -> list[tuple[Any, ...]]:
    """The rows, in plain Python; what is absent is None in each."""
    n = len(batch)
    values = batch.values.tensor.tolist() if batch.values is not None else [None] * n
    hints = batch.hint.objects if batch.hint is not None else [None] * n
    return list(zip(batch.ids.tensor.tolist(), values, hints, strict=True))


def test_declarations_of_a_record() -> None:
    declared = schema(Rollout)
    assert {name: str(spec) for name, spec in declared.fields.items()} == {
        "values": "f32[B, R] | None",
        "ids": "i64[B]",
        "hint": "Obj[str, B] | None",
        "given": "i64[B] | None",
    }
    assert declared.spare == {"values", "hint"} == schema(Scored).spare


def test_omitted_columns_are_absent_and_required_ones_must_be_given() -> None:
    batch = Rollout(ids=torch.zeros(2, dtype=torch.int64), given=None)
    assert (batch.values, batch.hint, batch.given, len(batch)) == (None, None, None, 2)
    assert repr(batch) == "Rollout(values: absent, ids: i64[2], hint: absent, given: absent)"
    with pytest.raises(WiringError, match="HF203: 'Rollout' is built without its column\\(s\\) given"):
        Rollout(ids=torch.zeros(2, dtype=torch.int64))  # type: ignore[call-arg]  # a mistake on purpose


def test_present_values_are_checked_against_their_types() -> None:
    ids = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(WiringError, match=r"HF220: column 'values' of 'Rollout' is declared f32\[B, R\] \| None"):
        Rollout(ids=ids, values=hf.f32(torch.zeros(2, 2, dtype=torch.float64)), given=None)
    with pytest.raises(WiringError, match="HF210: column 'hint' of 'Rollout'"):
        Rollout(ids=ids, hint=hf.Obj(["one"]), given=None)


def test_a_column_that_is_not_optional_is_never_none() -> None:
    with pytest.raises(WiringError, match=r"HF231: column .ids. of .Rollout. .* which is not optional"):
        Rollout(ids=None, given=None)  # type: ignore[arg-type]  # a mistake on purpose


@given(st.integers(0, 6), st.integers(-7, 7), st.integers(-7, 7), st.booleans(), st.booleans())
def test_slices_and_pickles_carry_absence(rows: int, start: int, stop: int, values: bool, hint: bool) -> None:
    batch = rollout(rows, values=values, hint=hint)
    assert plain(batch[start:stop]) == plain(batch)[start:stop]
    assert plain(pickle.loads(pickle.dumps(batch[start:stop]))) == plain(batch[start:stop])


@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["repeat_last", "cycle"]), st.booleans(), st.booleans())
def test_splitting_padding_and_joining_carry_absence(
    rows: int, chunks: int, pad: Pad, values: bool, hint: bool
) -> None:
    batch = rollout(rows, values=values, hint=hint)
    pieces = split(batch, chunks, pad=pad)
    added = -rows % chunks
    fill = [rows - 1] * added if pad == "repeat_last" else [i % rows for i in range(added)]
    expected = plain(batch)
    assert plain(join(pieces)) == expected + [expected[i] for i in fill]
    assert plain(join(pieces)[:rows]) == expected


@given(st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans())
def test_repeats_minibatches_and_merges_carry_absence(rows: int, times: int, values: bool, hint: bool) -> None:
    batch = rollout(rows, values=values, hint=hint)
    repeated = hf.repeat(batch, times)
    assert plain(repeated) == [row for row in plain(batch) for _ in range(times)]
    assert [row for part in hf.minibatches(repeated, times) for row in plain(part)] == plain(repeated)

    class Reward(hf.Batch):
        reward: hf.f32[B]

    merged = hf.merge(Scored, batch, Reward(reward=torch.zeros(rows)))
    assert plain(merged) == plain(upcast(merged, Rollout)) == plain(batch)


def test_a_merge_leaves_out_what_no_part_has_and_needs_what_is_not_optional() -> None:
    class Ids(hf.Batch):
        ids: hf.i64[B]

    class Loose(hf.Batch):
        ids: hf.i64[B]
        values: hf.f32[B, R] | None = None

    class Full(hf.Batch):
        ids: hf.i64[B]
        values: hf.f32[B, R]

    assert hf.merge(Loose, Ids(ids=torch.arange(2))).values is None
    assert hf.merge(Full, rollout(2)).values.tensor.shape == (2, 2)
    with pytest.raises(WiringError, match="HF231: column 'values' of 'Full'"):
        hf.merge(Full, rollout(2, values=False))


def test_parts_that_disagree_are_refused_by_name() -> None:
    parts = [rollout(1), rollout(1, values=False), rollout(1)]
    message = "HF810: column 'values' of 'Rollout' is present on part 0, part 2 and absent on part 1"
    with pytest.raises(WiringError, match=message):
        join(parts)
    with pytest.raises(WiringError, match="present on rank 0, rank 2 and absent on rank 1"):
        collect(DP_PROTO, Mesh(dp=3), parts)


def test_a_certain_column_comes_out_of_present() -> None:
    batch = rollout(2, hint=False)
    assert batch.values is not None
    assert hf.present(batch.values).tensor is batch.values.tensor
    with pytest.raises(WiringError, match=r"HF231: hf.present at .*test_optional.py:\d+ got a column that is absent"):
        hf.present(batch.hint)


def test_declarations_without_meaning() -> None:
    with pytest.raises(DefinitionError, match="HF117: column 'x' of 'Sure' is f32\\[B\\], which is never None"):

        class Sure(hf.Batch):
            x: hf.f32[B] = None  # type: ignore[assignment]  # a mistake on purpose

    with pytest.raises(DefinitionError, match="HF117: column 'x' of 'Number': a metric cannot be optional"):

        class Number(hf.Batch):
            x: hf.Metric[float, Literal["mean"]] | None = None

    with pytest.raises(DefinitionError, match="HF117: every column of 'Nothing' is optional"):

        class Nothing(hf.Batch):
            x: hf.f32[B] | None = None

    with pytest.raises(DefinitionError, match="HF104: column 'x' of 'Either'"):

        class Either(hf.Batch):
            x: hf.f32[B] | hf.i64[B]
