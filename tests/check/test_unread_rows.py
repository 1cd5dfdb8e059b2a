# mypy: disable-error-code="empty-body"
"""Rows that are selected, and that nothing reads: the calls that follow use all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]
    keep: hf.bool_[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    def update(self, rows: Rows) -> Loss: ...


@pytest.mark.parametrize(
    ("function", "select"),
    [
        ("filter", lambda rows: hf.filter(rows, rows.keep)),
        ("take", lambda rows: hf.take(rows, 4)),
        ("fill", lambda rows: hf.fill(rows, 4)),
        ("repeat", lambda rows: hf.repeat(rows, 4)),
        ("minibatches", lambda rows: hf.minibatches(rows, 2)),
    ],
)
def test_operations_that_return_rows_change_none_in_place(function: str, select: Callable[[Rows], object]) -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Loss:
        select(rows)
        return actor.update(rows)

    [finding] = program.check(None, {B: 8}).findings
    assert (finding.code, finding.severity.value) == ("HF602", "warning")
    assert finding.message == f"nothing reads what 'hf.{function}' returns, and its argument keeps its rows"


def test_a_mini_batch_that_is_read_speaks_for_the_others() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Loss:
        first, _ = hf.minibatches(rows, 2)
        return actor.update(first)

    assert program.check(None, {B: 8}).codes == ()


def test_the_last_round_of_a_loop_may_leave_rows_over() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> list[Loss]:
        losses = []
        for _ in range(3):
            losses.append(actor.update(rows))
            rows = hf.take(rows, 2)
        return losses

    assert program.check(None, {B: 8}).codes == ()


def test_rows_that_only_other_unread_rows_are_made_of_are_reported_once() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Loss:
        hf.fill(hf.filter(rows, rows.keep), 8)
        return actor.update(rows)

    [finding] = program.check(None, {B: 8}).findings
    assert "hf.fill" in finding.message


def test_a_loop_over_mini_batches_reads_the_one_of_its_turn() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> list[Loss]:
        parts = hf.minibatches(rows, 4)
        return [actor.update(parts[0]) for _ in range(len(parts))]

    @hf.dataflow
    def two(rows: Rows, actor: Actor) -> list[Loss]:
        parts, again = hf.minibatches(rows, 4), hf.minibatches(rows, 2)
        losses = [actor.update(part) for part in again]
        for _part in parts:
            loss = actor.update(parts[-1])
            losses.append(loss)
        return losses

    for mistaken in (program, two):
        [finding] = mistaken.check(None, {B: 8}).findings
        assert finding.message == (
            "nothing reads 3 of the 4 mini-batches in 'parts': the loop over them reads the same one in every turn"
        )


def test_a_part_may_be_read_again_and_the_others_left_out() -> None:
    @hf.dataflow
    def epochs(rows: Rows, actor: Actor) -> list[Loss]:
        parts = hf.minibatches(rows, 2)
        return [actor.update(parts[0]) for _ in range(2)]

    @hf.dataflow
    def all_beside_the_first(rows: Rows, actor: Actor) -> list[Loss]:
        parts = hf.minibatches(rows, 2)
        return [loss for part in parts for loss in (actor.update(part), actor.update(parts[0]))]

    @hf.dataflow
    def other_of_that_name(rows: Rows, actor: Actor) -> list[Loss]:
        parts = hf.minibatches(rows, 2)
        first = parts[0]
        parts = hf.minibatches(first, 2)
        return [actor.update(first) for _ in parts] + [actor.update(part) for part in parts]

    for valid in (epochs, all_beside_the_first, other_of_that_name):
        assert valid.check(None, {B: 8}).codes == ()
