# mypy: disable-error-code="empty-body"
"""Rows that a filter keeps: everything that is demanded of them is one finding, with what the user may do."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import pytest

import hfdsl as hf
from hfdsl import Add, Dispatch, register
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding
from hfdsl.check.rules.rows.sizes import row_arithmetic
from hfdsl.check.run import build_context
from hfdsl.check.sizes.demands import Bound
from hfdsl.types.dims import size


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    keep: hf.bool_[B]


@hf.function(rows=hf.Grouped(3))
def centered(rows: Rows) -> Rows: ...


class N(hf.Dim): ...


class Others(hf.Batch):
    x: hf.f32[N]
    keep: hf.bool_[N]


@hf.function
def joined(one: hf.f32[B], other: hf.f32[N]) -> hf.f32[Add[B, N]]: ...


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def learn(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO)
    def rate(self, x: hf.f32[B]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> hf.f32[B]: ...

    @register(Dispatch.DP_PROTO, rows=hf.Grouped(2))
    def compare(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % 4 == 0")
    def measure(self, rows: Rows) -> None: ...


def finding_of(body: Any, rows: int | tuple[int, ...], ranks: int = 4) -> Finding:
    def program(rows: Rows, role: Role) -> None:
        body(hf.filter(rows, rows.keep), role)

    placed = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([ranks], use_gpu=False)))
    [finding] = hf.dataflow(program).check(placed, {B: rows}).findings
    return finding


def compared(filtered: Rows, role: Any) -> None:
    role.compare(filtered)


def cut_first(filtered: Rows, role: Any) -> None:
    for part in hf.minibatches(filtered, 2):
        role.learn(part)


def split_first(filtered: Rows, role: Any) -> None:
    role.learn(filtered)
    for part in hf.minibatches(filtered, 2):
        role.learn(part)


def scored_first(filtered: Rows, role: Any) -> None:
    role.score(filtered)
    for part in hf.minibatches(filtered, 2):
        role.score(part)


def required(filtered: Rows, role: Any) -> None:
    role.measure(filtered)


def grouped_first(filtered: Rows, role: Any) -> None:
    role.learn(centered(filtered))


FIXED = "fix the number of rows: hf.take(x, n) or hf.fill(x, n)"


@pytest.mark.parametrize(
    ("body", "need", "advice"),
    [
        (scored_first, "4 must divide kept1", f'{FIXED}, or register the method with pad="repeat_last"'),
        (split_first, "4 must divide kept1", FIXED),
        (required, "4 must divide kept1", FIXED),
        (cut_first, "2 must divide kept1", FIXED),
        (grouped_first, "3 must divide kept1", "keep whole groups: hf.filter(x, keep, group=n)"),
    ],
)  # fmt: skip
def test_advice_on_filtered_rows_depends_on_the_reader(body: Any, need: str, advice: str) -> None:
    finding = finding_of(body, 1)  # of so few rows none can be taken
    assert (finding.code, finding.primary.text, finding.help, finding.notes) == ("HF321", need, (), (advice,))


def test_all_that_is_demanded_of_the_rows_is_met_by_what_is_offered() -> None:
    finding = finding_of(cut_first, 30)
    assert finding.message.startswith(
        "'minibatch 1/2' needs 2 mini-batches, but the number of rows is known only at run time"
    )
    assert finding.help == ("pass on a fixed number of rows: hf.fill(..., 24)",)
    assert finding.fixes == (), "what is then computed is for its author to decide"
    assert [label.text for label in finding.related] == [
        "keeps some of B rows: kept1",
        "for an even split over the 4 chunks of DP_PROTO on Mesh(pp=1 dp=4 tp=1): 8 must divide kept1",
    ]


def test_demands_of_one_call_are_reported_once() -> None:
    finding = finding_of(compared, 30)
    assert [label.text for label in finding.related] == ["keeps some of B rows: kept1", "declared rows=Grouped(2)"]


@pytest.mark.parametrize("rows", [24, 30, 48])
@pytest.mark.parametrize("body", [compared, grouped_first])
def test_where_groups_are_read_no_help_leaves_them_cut(body: Any, rows: int) -> None:
    """A fill alone would make the number right, and the groups wrong without a word (HF331)."""
    lines = finding_of(body, rows).help
    assert lines
    assert all("group=" in line for line in lines)


def test_padding_is_offered_where_it_is_all_that_lacks() -> None:
    finding = finding_of(lambda filtered, role: role.score(filtered), 1)
    assert finding.help == ("register 'role.score' with pad=\"repeat_last\"",)


def test_padding_is_not_offered_to_a_method_that_counts_pad_rows() -> None:
    """It would learn from copies of the last row, and nothing would show it (HF317)."""
    finding = finding_of(lambda filtered, role: role.learn(filtered), 1)
    assert finding.help == ()


def test_a_number_that_is_for_one_size_is_not_offered_for_several() -> None:
    assert finding_of(cut_first, 20).help == ("pass on a fixed number of rows: hf.fill(..., 16)",)
    assert finding_of(cut_first, (30, 20)).help == ()
    assert finding_of(cut_first, (30, 25)).help == ("pass on a fixed number of rows: hf.fill(..., 24)",)


def test_how_many_rows_to_take_is_left_to_the_author() -> None:
    @hf.dataflow
    def program(rows: Rows) -> Rows:
        return hf.take(rows, 9)

    [finding] = program.check(dims={B: 8}).findings
    assert finding.help == ("take 8 rows", "hf.fill(..., 9), which starts over from the first row")
    assert finding.fixes == ()


def joint(body: Any, sizes: dict[type[hf.Dim], int]) -> Finding:
    def program(rows: Rows, others: Others, role: Role) -> None:
        body(hf.filter(rows, rows.keep), others, role)

    placed = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([4], use_gpu=False)))
    [finding] = [finding for finding in hf.dataflow(program).check(placed, sizes) if finding.code == "HF321"]
    return finding


def fixed(finding: Finding) -> tuple[str, ...]:
    return tuple(line for line in finding.help if not line.startswith("register"))


def test_as_many_groups_go_on_as_meet_all_demands() -> None:
    def program(rows: Rows, role: Role) -> None:
        role.learn(hf.filter(rows, rows.keep, group=3))

    placed = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([4], use_gpu=False)))
    [finding] = hf.dataflow(program).check(placed, {B: 30}).findings
    assert fixed(finding) == ("pass on a fixed number of rows: hf.fill(..., 24)",)


def test_rows_joined_with_filtered_ones_decide_how_many_remain() -> None:
    def three_more(filtered: Rows, others: Others, role: Any) -> None:
        role.rate(joined(filtered.x, hf.take(others, 3).x))

    assert fixed(joint(three_more, {B: 7, N: 3})) == ("pass on a fixed number of rows: hf.fill(..., 5)",)
    assert fixed(joint(three_more, {B: 4, N: 3})) == ("pass on a fixed number of rows: hf.fill(..., 1)",)
    assert fixed(joint(three_more, {N: 3})) == (), "of how many rows is not known"


def test_rows_of_an_unknown_number_are_joined_in_whole_chunks() -> None:
    def fours(filtered: Rows, others: Others, role: Any) -> None:
        role.learn(filtered)
        role.rate(joined(filtered.x, hf.repeat(others, 4).x))

    finding = joint(fours, {B: 10})
    assert fixed(finding) == ("pass on a fixed number of rows: hf.fill(..., 8)",)
    assert [label.text.partition(":")[2] for label in finding.related if label.text.startswith("for ")] == [
        " 4 must divide N*4+kept1"
    ], "reported with the first demand"
    assert [label.text for label in finding.related if label.text.startswith("keeps")] == [
        "keeps some of B rows: kept1"
    ]


def test_of_two_filters_the_one_that_is_in_the_way_is_cut() -> None:
    def both(filtered: Rows, others: Others, role: Any) -> None:
        hf.filter(others, others.keep)  # goes nowhere
        again = hf.filter(others, others.keep, group=4)
        role.rate(joined(filtered.x, again.x))

    finding = joint(both, {B: 10, N: 12})
    assert fixed(finding) == ("pass on a fixed number of rows: hf.fill(..., 8)",)
    assert [label.text for label in finding.related if label.text.startswith("keeps")] == [
        "keeps some of B rows: kept1", "keeps some of N rows: kept3",
    ]  # fmt: skip  # a line


def test_rows_filtered_twice_by_one_column_are_reported_at_the_first_filter() -> None:
    def twice(filtered: Rows, others: Others, role: Any) -> None:
        first, again = hf.filter(others, others.keep), hf.filter(others, others.keep)
        role.rate(joined(filtered.x, first.x))
        role.rate(joined(filtered.x, again.x))

    finding = joint(twice, {B: 10, N: 12})
    assert [label.text for label in finding.related if label.text.startswith("keeps")] == [
        "keeps some of B rows: kept1", "keeps some of N rows: kept2",
    ]  # fmt: skip  # a line


def taking(body: Any, sizes: dict[type[hf.Dim], int] | None = None) -> hf.Report:
    def program(rows: Rows, others: Others) -> Rows:
        return body(rows, others)  # type: ignore[no-any-return]  # any body

    report: hf.Report = hf.dataflow(program).check(dims=sizes)
    return report


def test_whether_there_are_rows_to_take_is_known_with_their_number() -> None:
    [finding] = taking(lambda rows, others: hf.take(rows, 9)).findings
    assert (finding.code, finding.related) == ("HF319", ())
    assert finding.message == "cannot decide before launch whether there are 9 rows to take of B"
    assert taking(lambda rows, others: hf.take(rows, 9), {B: 9}).findings == ()
    assert taking(lambda rows, others: hf.take(hf.filter(rows, rows.keep), 9)).findings == (), "only a run knows"


def test_more_rows_than_a_filter_may_keep_are_not_taken() -> None:
    [finding] = taking(lambda rows, others: hf.take(hf.filter(rows, rows.keep), 9), {B: 8}).findings
    assert finding.message == "take of 9 rows, but at most 8 are kept (kept1)"
    [finding] = taking(lambda rows, others: hf.take(rows, 9), {B: 8}).findings
    assert finding.message == "take of 9 rows, but there are 8 (B)"


def test_sizes_are_suggested_with_which_there_are_enough_rows_to_take() -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> None:
        role.learn(hf.take(rows, 16))

    placed = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([4], use_gpu=False)))
    assert program.check(placed, {B: 16}).ok
    assert program.check(placed, {B: 3}).codes == ("HF321",)
    [bound] = [d for d in build_context(program.body, placed, {B: 3}).demands if isinstance(d, Bound)]
    assert [bound.constraint.met(B, rows) for rows in (15, 16, 17)] == [False, True, True]

    @hf.dataflow
    def both(rows: Rows, role: Role) -> None:
        role.learn(rows)
        role.learn(hf.take(rows, 16))

    [finding] = [finding for finding in both.check(placed, {B: 6}) if finding.code == "HF310"]
    ranks = "give the pool of 'role' 2 slots: processes [2]"
    assert finding.help == ("set B to 16: every split and requirement then holds", ranks), "3 does not divide 16"


def test_of_rows_that_a_mistake_hides_none_are_missed() -> None:
    assert taking(lambda rows, others: hf.take(hf.filter(rows, rows.x), 9), {B: 8}).codes == ("HF220",)


t = TypeVar("t")


@hf.function
def all_but_one(x: hf.f32[Add[t, Literal[1]]]) -> hf.f32[t]: ...


def test_a_filter_may_keep_no_rows_and_no_call_makes_fewer() -> None:
    def program(rows: Rows) -> object:
        return all_but_one(hf.filter(rows, rows.keep).x)  # type: ignore[arg-type]  # solved with the sizes

    context = build_context(program, None, {B: 4})
    kept_rows: Any
    [kept_rows] = {
        atom
        for node in context.program.graph.nodes
        for atom in (context.program.inference.rows(node.id) or size(B)).atoms
    } - {B}
    errors = {
        number: [(finding.code, finding.message) for finding in row_arithmetic(resized)]
        for number in (0, 1, 2)
        for resized in [Context.of(context.program, {**context.sizes, kept_rows: number})]
    }
    wrong = "'all_but_one' would have t = kept1-1 = -1, which is not a whole number of at least 1"
    assert errors == {0: [("HF303", wrong)], 1: [], 2: []}
