"""Columns that bodies read: what cannot be right is found before launch, and what may be right is let alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rollout(hf.Batch):
    ids: hf.i64[B, R]
    mask: hf.bool_[B, R]
    answer: hf.Obj[str, B]

    def shifted(self) -> torch.Tensor:
        return self.ids.tensor + 1


class Lengths(hf.Batch):
    length: hf.i64[B]


class Pairs(hf.Batch):
    first: hf.i64[B]
    second: hf.i64[B]
    weight: hf.f32[B] | None = None


columns = sys.modules[__name__]


def misspelled(batch: Rollout) -> Lengths:
    return Lengths(length=batch.maks.tensor.sum(-1))  # type: ignore[attr-defined]


def of_a_column(batch: Rollout) -> Lengths:
    with torch.no_grad():
        return Lengths(length=batch.mask.sum(-1))  # type: ignore[attr-defined]


def computed(batch: Rollout) -> Lengths:
    return Lengths(length=batch.ids * 2)  # type: ignore[operator, arg-type]


def indexed(batch: Rollout) -> Lengths:
    return Lengths(length=batch.ids[:, 0])  # type: ignore[index]


def compared(batch: Rollout) -> Lengths:
    return Lengths(length=batch.ids > 2)  # type: ignore[operator, arg-type]


def of_objects(batch: Rollout) -> Lengths:
    return Lengths(length=torch.tensor([len(text) for text in batch.answer.tensor]))  # type: ignore[attr-defined]


def loose(ids: hf.i64[B, R]) -> Lengths:
    return Lengths(length=ids.sum(-1))  # type: ignore[attr-defined]


def batch_of(ids: torch.Tensor) -> Rollout:
    return Rollout(ids=ids, mask=ids > 2, answer=["a", "b"])


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def lengths(self, batch: Rollout) -> Lengths:
        return Lengths(length=batch.idz.tensor.sum(-1))  # type: ignore[attr-defined]


def checked(body: Callable[..., Lengths], column: bool = False) -> hf.Report:
    function = hf.function(body)

    @hf.dataflow
    def program(batch: Rollout) -> tuple[Lengths, Lengths]:
        value: Any = batch.ids if column else batch
        return function(value), function(value)

    return program.check()


def of_a_slice(batch: Rollout) -> Lengths:
    for start in range(0, len(batch), 2):
        part = batch[start : start + 2]
        print(part.maks.tensor)  # type: ignore[attr-defined]
    return Lengths(length=batch.ids.tensor[:, 0])


def built_with_another(batch: Rollout) -> Lengths:
    return Lengths(lenght=batch.ids.tensor[:, 0])  # type: ignore[call-arg]


def built_without(batch: Rollout) -> Lengths:
    pairs = columns.Pairs(first=batch.ids.tensor[:, 0])
    return Lengths(length=pairs.first)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (of_a_slice, "HF201", "'part.maks' in the body of 'of_a_slice': Rollout has no column 'maks'"),
        (misspelled, "HF201", "'batch.maks' in the body of 'misspelled': Rollout has no column 'maks'"),
        (of_a_column, "HF206", "'batch.mask.sum' in the body of 'of_a_column': a column has no 'sum'"),
        (computed, "HF206", "'batch.ids * 2' in the body of 'computed': a column has no operators"),
        (indexed, "HF206", "'batch.ids[:, 0]' in the body of 'indexed': a column has no operators"),
        (compared, "HF206", "'batch.ids > 2' in the body of 'compared': a column has no operators"),
        (of_objects, "HF206", "'batch.answer.tensor' in the body of 'of_objects': a column has no 'tensor'"),
        (loose, "HF206", "'ids.sum' in the body of 'loose': a column has no 'sum'"),
    ],
)
def test_what_a_body_cannot_read_is_found_once_and_raises_in_a_run(
    body: Callable[..., Lengths], code: str, message: str
) -> None:
    column = body is loose
    (finding,) = checked(body, column=column).findings
    assert (finding.code, finding.message) == (code, message)
    batch = batch_of(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises((AttributeError, TypeError)):
        body(batch.ids if column else batch)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (built_with_another, "HF201", "'Lengths' in the body of 'built_with_another': Lengths has no column 'lenght'"),
        (
            built_without,
            "HF203",
            "'columns.Pairs' in the body of 'built_without': Pairs is built without its column 'second'",
        ),
    ],
)
def test_a_record_that_a_body_cannot_build_is_found_and_raises_in_a_run(
    body: Callable[..., Any], code: str, message: str
) -> None:
    (finding,) = checked(body).findings
    assert (finding.code, finding.message) == (code, message)
    with pytest.raises(hf.HfError, match=code):
        body(batch_of(torch.ones(2, 3, dtype=torch.int64)))


def built_rightly(batch: Rollout) -> Lengths:
    first = {"first": batch.ids.tensor[:, 0]}
    pairs = columns.Pairs(second=batch.ids.tensor[:, 1], **first)
    with suppress(hf.HfError):
        pairs = Pairs(first=first["first"])  # type: ignore[call-arg]
    return Lengths(length=pairs.second.tensor)


def sliced_again(batch: Rollout) -> Lengths:
    part: Any = batch[:1]
    part = {"maks": part.ids.tensor}
    other = batch[1:]
    if hasattr(other, "lengths"):
        print(other.lengths)
    return Lengths(length=part["maks"])


def of_a_local_class(batch: Rollout) -> Lengths:
    Pairs = dict  # the name of a record, which is another value here
    return Lengths(length=Pairs(third=batch.ids.tensor[:, 0])["third"])


def read_rightly(batch: Rollout) -> Lengths:
    ids, mask = batch.ids.tensor, batch.mask.tensor
    return Lengths(length=(ids * mask).sum(-1) + batch.shifted()[:, 0] + len(batch.answer.objects[0]))


def rebound(batch: Any) -> Lengths:
    batch = {"maks": batch.ids.tensor, **vars(batch)}
    return Lengths(length=batch.maks)


rebound.__annotations__["batch"] = "Rollout"


def asked(batch: Rollout) -> Lengths:
    if hasattr(batch, "lengths"):
        return Lengths(length=batch.lengths)
    return Lengths(length=batch.ids.tensor[:, 0])


class Measured(Rollout):
    lengths: hf.i64[B]


def cast_to_another_type(batch: Rollout) -> Lengths:
    print(cast(Measured, batch).lengths)
    return Lengths(length=batch.lengths)  # type: ignore[attr-defined]


def tried(batch: Rollout) -> Lengths:
    try:
        return Lengths(length=batch.lengths.tensor)  # type: ignore[attr-defined]
    except AttributeError:
        pass
    with suppress(AttributeError):
        return Lengths(length=batch.lengths.tensor)  # type: ignore[attr-defined]
    return Lengths(length=batch.ids.tensor[:, 0])


def shadowed(batch: Rollout) -> Lengths:
    lengths = [batch.maks for batch in ()]  # type: ignore[var-annotated]  # the name of each entry here
    add = lambda batch: batch.maks  # noqa: E731
    return Lengths(length=torch.tensor([add, lengths], dtype=torch.int64))


@pytest.mark.parametrize("body", [built_rightly, sliced_again, of_a_local_class])
def test_records_that_may_be_right_are_let_alone(body: Callable[..., Any]) -> None:
    assert checked(body).codes == ()


@pytest.mark.parametrize("body", [read_rightly, rebound, asked, cast_to_another_type, tried, shadowed])
def test_what_may_be_right_is_let_alone(body: Callable[..., Lengths]) -> None:
    assert checked(body).codes == ()


def test_bodies_of_roles_are_read_too() -> None:
    @hf.dataflow
    def program(batch: Rollout, judge: Judge) -> Lengths:
        return judge.lengths(batch)

    (finding,) = program.check().findings
    assert finding.message == "'batch.idz' in the body of 'judge.lengths': Rollout has no column 'idz'"
    assert finding.notes == ("did you mean 'ids'?",)
