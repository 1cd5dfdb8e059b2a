# mypy: disable-error-code="empty-body"
"""Arithmetic of rows: findings on demands that sizes break or leave open."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, register
from hfdsl.check.repair import trials
from hfdsl.check.sizes.demands import proportional
from hfdsl.types.dims import atom_size, constant


class B(hf.Dim): ...


class N(hf.Dim): ...


class M(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    keep: hf.bool_[B]


class Wide(hf.Batch):
    x: hf.f32[Add[B, N]]


class Grid(hf.Batch):
    x: hf.f32[B, N]
    y: hf.f32[B, M]


class Numbered(hf.Batch):
    x: hf.f32[M]


class Best(hf.Batch):
    x: hf.f32[Div[B, Literal[4]]]


class Table(hf.Batch):
    x: hf.f32[N]
    keep: hf.bool_[N]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def split(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def both(self, rows: Rows, table: Table) -> None: ...

    @register(Dispatch.DP_PROTO)
    def columns(self, one: hf.f32[B], other: hf.f32[N]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def number(self, wide: Wide) -> Numbered: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def padded(self, one: hf.f32[B], other: hf.f32[N]) -> None: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def counts(self, numbered: Numbered) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("(B + N + M) % 4 == 0")
    def sum(self, grid: Grid) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % 4 == 0")
    def quarter(self, grid: Grid) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("(2 * B + 1) % 4 == 0")
    def odd(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B ** 2 > N")
    def squared(self, grid: Grid) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B > 100 and N > 1", "N % 4 == 0", "(N + 1) % 4 == 0")
    def never(self, rows: Rows, table: Table) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("(B - 8) % 1 == 0")
    def beyond(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO)
    def nothing(self) -> None: ...

    @register(Dispatch.DP_PROTO)
    def learn(self, best: Best) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B > N")
    def more(self, rows: Rows, table: Table) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("Bs > 2")
    def misnamed(self, rows: Rows) -> None: ...


@hf.function
def best_of(rows: Rows) -> Best: ...


@hf.function
def rest(x: hf.f32[Add[M, Literal[4]]]) -> hf.f32[M]: ...


def placed(ranks: int) -> hf.Deployment:
    return hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([ranks], use_gpu=False)))


def check(body: Any, dims: Any = None, ranks: int = 4) -> hf.Report:
    return hf.dataflow(body).check(placed(ranks), dims or {})


def test_an_open_size_is_reported_at_the_first_place_that_needs_it() -> None:
    def program(rows: Rows, role: Role) -> tuple[Rows, ...]:
        return hf.minibatches(role.split(rows), 3)

    [finding] = check(program).findings
    assert finding.message == "cannot decide before launch whether the rows work out: 4 must divide B, 3 must divide B"
    assert finding.primary.text == "for an even split over the 4 chunks of DP_PROTO on Mesh(pp=1 dp=4 tp=1)"
    [second_finding] = finding.related
    assert second_finding.text == "for 3 mini-batches"
    assert second_finding.span.column < finding.primary.span.column
    assert finding.notes == ("give the size: dims={B: ...}",)


def kept_first(rows: Rows, table: Table, role: Role) -> None:
    role.both(hf.filter(rows, rows.keep), table)


def kept_last(rows: Rows, table: Table, role: Role) -> None:
    role.both(rows, hf.filter(table, table.keep))


@pytest.mark.parametrize("body", [kept_first, kept_last])
def test_rows_of_unknown_size_are_reported_without_a_number(body: Any) -> None:
    [finding] = [finding for finding in check(body, {B: 8, N: 8}) if finding.code == "HF420"]
    assert finding.message.endswith(": which rows belong together is unknown")
    assert "with the sizes given" not in finding.message


def test_row_counts_that_differ_are_reported() -> None:
    def program(rows: Rows, table: Table, role: Role) -> None:
        role.both(rows, table)

    assert check(program, {B: 8, N: 8}).ok
    [finding] = check(program, {B: 8, N: 4}).findings
    assert finding.message == (
        "'role.both' splits its arguments over 4 chunks, but port 'table' has N rows and port 'rows' has B "
        "(4 and 8 with the sizes given): which rows belong together is unknown"
    )


def test_a_split_of_nothing_has_nothing_to_be_cut_alike() -> None:
    def program(rows: Rows, role: Role) -> Rows:
        role.nothing()
        return rows

    assert check(program, {B: 8}).ok


def test_an_open_requirement_is_reported_with_its_place() -> None:
    def program(rows: Rows, table: Table, role: Role) -> None:
        role.more(rows, table)

    [finding] = check(program, {B: 8}).findings
    assert (finding.code, finding.primary.text) == ("HF319", "calls it")
    [label] = finding.related
    assert label.text == "requires B > N"
    assert label.span.file == __file__


def test_a_misnamed_requirement_hides_no_repair() -> None:
    def program(rows: Rows, role: Role) -> Rows:
        role.misnamed(rows)
        return role.split(rows)

    split, misnamed = sorted(check(program, {B: 10}).findings, key=lambda finding: finding.code)
    assert (misnamed.code, split.code) == ("HF323", "HF310")
    assert [fix.title for fix in misnamed.fixes] == ["replace 'Bs' by 'B'"]
    ranks = "give the pool of 'role' 2 slots: processes [2] or 5 slots: processes [5]"
    assert split.help == ("set B to 8 or 12: every split and requirement then holds", ranks)


def test_rows_repeated_are_cut_like_those_they_repeat() -> None:
    def program(wide: Wide, role: Role) -> None:
        role.columns(wide.x, hf.repeat(wide, 2).x)  # type: ignore[arg-type]  # rows of a sum

    assert check(program, {B: 4, N: 4}).ok
    none, b, n = constant(0), atom_size(B), atom_size(N)
    some = b + n * constant(2)
    assert proportional(some, some * constant(3))
    assert proportional(none, b), "none for each"
    assert not any(proportional(*pair) for pair in [(some, b + n), (some, b), (b, some), (b, n), (b, none)])


def test_rows_repeated_are_not_padded_alike() -> None:
    def program(rows: Rows, role: Role) -> None:
        role.padded(rows.x, hf.repeat(rows, 2).x)  # type: ignore[arg-type]  # twice the rows

    [finding] = check(program, {B: 8}).findings
    assert finding.message.endswith(": padding keeps no such pairs")


def test_an_uneven_split_is_reported_with_its_remainder() -> None:
    def program(rows: Rows, role: Role) -> Rows:
        return role.split(rows)

    [finding] = check(program, {B: 5}, ranks=2).findings
    assert finding.message.endswith(" over the 2 chunks of DP_PROTO on Mesh(pp=1 dp=2 tp=1): 5 % 2 = 1")


def test_an_invalid_size_leaves_a_requirement_open_and_is_reported_alone() -> None:
    def program(rows: Rows, table: Table, role: Role) -> None:
        role.more(rows, table)

    assert check(program, {B: 8, N: 0}).codes == ("HF302",)


def test_a_requirement_that_is_no_arithmetic_is_reported_where_it_is_declared() -> None:
    def program(grid: Grid, role: Role) -> None:
        role.squared(grid)

    [finding] = check(program, {B: 8}).findings
    assert (finding.code, finding.related) == ("HF114", ())


def test_of_two_dims_that_mend_it_together_one_pair_is_offered() -> None:
    def program(grid: Grid, role: Role) -> None:
        role.quarter(grid)
        role.sum(grid)

    [finding] = check(program, {B: 6, N: 1, M: 1}).findings  # of B = 4, both N = 3 and M = 3 make a sum of 8
    assert (finding.code, finding.primary.text) == ("HF318", "for the requirement B % 4 == 0")
    assert finding.related[0].span.line == finding.primary.span.line + 1
    assert finding.notes == ("with N = 1, M = 1",)
    [pair] = finding.help
    assert pair in {f"set B to 4 and {dim} to 3: every split and requirement then holds" for dim in "NM"}


def test_a_pair_of_sizes_that_upsets_another_rule_is_passed_over() -> None:
    def program(grid: Grid, numbered: Numbered, role: Role) -> None:
        role.quarter(grid)
        role.sum(grid)
        role.counts(numbered)

    # Nearer are B = 4 and M = 6, which 4 ranks would pad.
    [finding] = check(program, {B: 6, N: 2, M: 4}).findings
    assert finding.help == ("set B to 4 and N to 4: every split and requirement then holds",)


def test_undetermined_rows_are_reported_once() -> None:
    def program(wide: Wide, role: Role) -> tuple[Numbered, ...]:
        return hf.minibatches(role.number(wide), 3)

    assert check(program, {B: 8, N: 4}).codes == ("HF301",)
    [finding] = hf.dataflow(program).check().findings
    assert (finding.code, finding.notes) == ("HF319", ("give the size: dims={M: ...}",))


def test_changes_that_are_not_tried_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(rows: Rows, role: Role) -> Rows:
        return role.split(rows)

    monkeypatch.setattr(trials, "MAX_PLACES", 0)  # as in a report with more findings than are tried
    [finding] = check(program, {B: 10}).findings
    assert (finding.notes, finding.help) == (("with B set to 8 or 12 this holds",), ())

    def misnamed(rows: Rows, role: Role) -> None:
        role.misnamed(rows)

    [finding] = check(misnamed, {B: 8}).findings
    assert (finding.code, finding.fixes) == ("HF323", ())


def test_a_demand_that_no_size_meets_is_reported_without_sizes() -> None:
    def program(rows: Rows, role: Role) -> None:
        role.odd(rows)

    [finding] = check(program).findings
    assert finding.code == "HF318"
    assert finding.message == "no size of B satisfies all of this: 4 must divide B*2+1"


def test_the_number_of_filtered_rows_is_never_suggested() -> None:
    def program(rows: Rows, table: Table, role: Role) -> None:
        role.never(rows, hf.filter(table, table.keep))

    assert set(check(program, {B: 8, N: 8}).codes) == {"HF321", "HF322"}


def test_a_requirement_may_be_met_by_numbers_below_1() -> None:
    def program(rows: Rows, role: Role) -> None:
        role.beyond(rows)

    assert check(program, {B: 4}).ok
    assert check(program, {B: 12}).ok


def test_sizes_below_1_are_reported_where_they_arise() -> None:
    def program(rows: Rows, role: Role) -> Rows:
        rest(hf.take(rows, 3).x)  # type: ignore[arg-type]  # solved for M
        return role.split(rows)

    [finding] = check(program, {B: 8}).findings
    assert (finding.code, finding.primary.text) == ("HF303", "-1 must be whole and at least 1")
    assert finding.message == "'rest' would have M = -1, which is not a whole number of at least 1"


def test_parts_of_parts_are_reported_for_the_whole_batch() -> None:
    def program(rows: Rows, role: Role) -> None:
        role.learn(best_of(rows))

    [finding] = check(program, {B: 8}).findings
    assert finding.primary.text == "16 must divide B"
    assert finding.help == (
        "set B to 16: every split and requirement then holds",
        "give the pool of 'role' 2 slots: processes [2]",
    )


def test_a_size_of_0_is_reported_alone() -> None:
    def program(rows: Rows, role: Role) -> None:
        role.columns(rows.x, rest(hf.take(rows, 4).x))  # type: ignore[arg-type]  # solved for M

    [finding] = check(program, {B: 8}).findings
    assert finding.message == "'rest' would have M = 0, which is not a whole number of at least 1"
