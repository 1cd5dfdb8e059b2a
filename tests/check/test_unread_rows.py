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
    assert finding.message == f"nothing reads what 'hf.{function}' returns, and its argument does not change"


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
            "nothing reads 3 of the 4 mini-batches in 'parts': the loop over them reads the same one in every iteration"
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


def test_a_loop_that_leaves_mini_batches_out_names_them() -> None:
    @hf.dataflow
    def every_other(rows: Rows, actor: Actor) -> list[Loss]:
        return [actor.update(part) for turn, part in enumerate(hf.minibatches(rows, 4)) if turn % 2]

    @hf.dataflow
    def all_but_the_last(rows: Rows, actor: Actor) -> list[Loss]:
        parts = hf.minibatches(rows, 4)
        return [actor.update(parts[turn]) for turn in range(len(parts) - 1)]

    for program, left in (
        (every_other, "2 of the 4 mini-batches, numbers 1 and 3"),
        (all_but_the_last, "1 of the 4 mini-batches, number 4:"),
    ):
        [finding] = program.check(None, {B: 8}).findings
        assert finding.code == "HF602"
        assert finding.message.startswith(f"nothing reads {left}")


def test_zip_ends_with_the_fewer_mini_batches_of_two() -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor, *, others: int = 2) -> list[tuple[Loss, Loss]]:
        pairs = zip(hf.minibatches(rows, 4), hf.minibatches(rows, others), strict=False)
        return [(actor.update(first), actor.update(second)) for first, second in pairs]

    [finding] = program.check(None, {B: 8}).findings
    assert finding.message.startswith("nothing reads 2 of the 4 mini-batches, numbers 3 and 4")
    assert finding.notes == ("zip ends with its shortest argument: make as many mini-batches of both, 4 or 2",)
    assert program.given(others=4).check(None, {B: 8}).codes == ()


def test_a_mini_batch_that_is_read_elsewhere_is_not_left_out() -> None:
    @hf.dataflow
    def held_out(rows: Rows, actor: Actor) -> list[Loss]:
        *learned, last = hf.minibatches(rows, 4)
        return [*(actor.update(part) for part in learned), actor.update(last)]

    @hf.dataflow
    def two_of_their_own(rows: Rows, actor: Actor) -> list[Loss]:
        first, second, *_ = hf.minibatches(rows, 4)
        losses = [actor.update(first)]
        losses.append(actor.update(second))
        return losses

    assert held_out.check(None, {B: 8}).codes == two_of_their_own.check(None, {B: 8}).codes == ()
