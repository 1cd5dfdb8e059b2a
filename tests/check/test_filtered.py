# mypy: disable-error-code="empty-body"
"""Rows that a filter keeps: everything that is demanded of them is one finding, with what the user may do."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.findings import Finding


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    keep: hf.bool_[B]


@hf.function(rows=hf.Grouped(3))
def centred(rows: Rows) -> Rows: ...


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def learn(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO, rows=hf.Grouped(2))
    def compare(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % 4 == 0")
    def measure(self, rows: Rows) -> None: ...


def found(body: Any, rows: int | tuple[int, ...], ranks: int = 4) -> Finding:
    def program(rows: Rows, role: Role) -> None:
        body(hf.filter(rows, rows.keep), role)

    placed = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([ranks], use_gpu=False)))
    [finding] = hf.dataflow(program).check(placed, {B: rows}).findings
    return finding


def compared(kept: Rows, role: Any) -> None:
    role.compare(kept)


def cut_first(kept: Rows, role: Any) -> None:
    for part in hf.minibatches(kept, 2):
        role.learn(part)


def split_first(kept: Rows, role: Any) -> None:
    role.learn(kept)
    for part in hf.minibatches(kept, 2):
        role.learn(part)


def required(kept: Rows, role: Any) -> None:
    role.measure(kept)


def grouped_first(kept: Rows, role: Any) -> None:
    role.learn(centred(kept))


FIXED = "say how many rows go on: hf.take(x, n) or hf.fill(x, n)"


@pytest.mark.parametrize(
    ("body", "need", "advice"),
    [
        (split_first, "4 must divide kept1", f'{FIXED}, or register the method with pad="repeat_last"'),
        (required, "4 must divide kept1", FIXED),
        (cut_first, "2 must divide kept1", FIXED),
        (grouped_first, "3 must divide kept1", f"keep whole groups, hf.filter(x, keep, group=n), or {FIXED}"),
    ],
)  # fmt: skip
def test_what_may_be_done_depends_on_what_asks(body: Any, need: str, advice: str) -> None:
    finding = found(body, 1)  # of so few rows none can be taken
    assert (finding.code, finding.primary.text, finding.help, finding.notes) == ("HF321", need, (), (advice,))


def test_all_that_is_demanded_of_the_rows_is_met_by_what_is_offered() -> None:
    finding = found(cut_first, 30)
    assert finding.message.startswith("'minibatch 1/2' needs 2 mini-batches, but only a run tells")
    assert finding.help == ("let a fixed number of rows go on: hf.fill(..., 24)",)
    assert finding.fixes == (), "what is then computed is for its author to decide"
    assert [label.text for label in finding.related] == [
        "keeps some of B rows",
        "for an even split over the 4 chunks of DP_PROTO on Mesh(pp=1 dp=4 tp=1): 8 must divide kept1",
    ]


def test_demands_of_one_call_are_told_once() -> None:
    finding = found(compared, 30)
    assert [label.text for label in finding.related] == ["keeps some of B rows", "declared rows=Grouped(2)"]


def test_padding_is_offered_where_it_is_all_that_lacks() -> None:
    finding = found(lambda kept, role: role.learn(kept), 1)
    assert finding.help == ("register 'role.learn' with pad=\"repeat_last\"",)


def test_a_number_that_is_for_one_size_is_not_offered_for_several() -> None:
    assert found(cut_first, 20).help == ("let a fixed number of rows go on: hf.fill(..., 16)",)
    assert found(cut_first, (30, 20)).help == ()
    assert found(cut_first, (30, 25)).help == ("let a fixed number of rows go on: hf.fill(..., 24)",)


def test_how_many_rows_to_take_is_left_to_the_author() -> None:
    @hf.dataflow
    def program(rows: Rows) -> Rows:
        return hf.take(rows, 9)

    [finding] = program.check(dims={B: 8}).findings
    assert finding.help == ("take 8 rows", "hf.fill(..., 9), which starts over from the first row")
    assert finding.fixes == ()
