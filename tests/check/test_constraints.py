# mypy: disable-error-code="empty-body"
"""What calls demand of their rows, in the words in which a broken demand is reported."""

from __future__ import annotations

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, Mul, register


class B(hf.Dim): ...


class N(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    keep: hf.bool_[B]


class Table(hf.Batch):
    x: hf.f32[Mul[B, N]]


class Numbered(hf.Batch):
    x: hf.f32[N]


JOINED = hf.Protocol("JOINED", collect={"rank": "join"})


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def split(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B // 2 % 4 == 0")
    def whole(self, rows: Rows) -> None: ...

    @register(JOINED, leaves={"rank": hf.Sharded(0)})
    def shard(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def both(self, rows: Rows, table: Table) -> None: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def padded(self, rows: Rows, table: Table) -> None: ...


def placed(ranks: int) -> hf.Deployment:
    return hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([ranks], use_gpu=False)))


@hf.dataflow
def filtered(rows: Rows, role: Role) -> list[Rows]:
    return [hf.filter(part, part.keep) for part in hf.minibatches(rows, 4)]


def test_a_filter_of_single_rows_demands_nothing_of_them() -> None:
    [finding] = filtered.check(dims={B: 10}).errors
    assert finding.message == "minibatches: B = 10 rows do not make 4 equal mini-batches: 10 % 4 = 2"
    assert not any("groups" in label.text for label in finding.related)


@hf.dataflow
def all_rows(rows: Rows, role: Role) -> None:
    role.whole(rows)


def test_a_rest_is_thrown_away_where_no_split_rules_it_out() -> None:
    # 9 // 2 is 4: only where rows are split over two ranks is B // 2 known to be B / 2.
    assert [n for n in range(1, 20) if all_rows.check(placed(3), {B: n}).ok] == [1, 8, 9, 16, 17]


@hf.dataflow
def sharded(rows: Rows, role: Role) -> Rows:
    return role.shard(rows)


def test_a_body_that_splits_its_rows_leaves_equal_parts() -> None:
    assert sharded.check(placed(4), {B: 8}).findings == ()
    [finding] = sharded.check(placed(4), {B: 10}).findings
    assert finding.message == (
        "'role.shard': B = 10 rows do not make 4 equal parts, one for each collected rank: 10 % 4 = 2"
    )
    ranks = "give the pool of 'role' 2 slots: processes [2] or 5 slots: processes [5]"
    assert finding.help == ("set B to 8 or 12: every split and requirement then holds", ranks)


@hf.dataflow
def six(rows: Rows, role: Role) -> Rows:
    return role.split(hf.take(rows, 6))


def test_rows_of_a_constant_size_are_reported_as_that_number() -> None:
    [finding] = six.check(placed(4), {B: 8}).findings
    assert finding.message == (
        "'role.split': 6 rows do not split evenly over the 4 chunks of DP_PROTO on Mesh(pp=1 dp=4 tp=1): 6 % 4 = 2"
    )


@hf.dataflow
def paired(rows: Rows, table: Table, role: Role) -> None:
    role.padded(rows, table)


def test_rows_that_may_be_split_differently_are_reported_at_the_call() -> None:
    [finding] = [finding for finding in paired.check(placed(2), {B: 8}) if "alike" in finding.message]
    assert (finding.code, finding.primary.text) == ("HF319", "for a split over 2 chunks")
    assert "port 'table' has B*N rows and port 'rows' has B" in finding.message
    assert finding.primary.span.file == __file__


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def read(self, table: Table) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B != 12")
    def choose(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B == 8 and N == 16")
    def fix(self, rows: Rows, table: Table) -> None: ...

    @register(Dispatch.DP_PROTO)
    def make(self) -> Numbered: ...


@hf.dataflow
def reading(table: Table, reader: Reader) -> None:
    reader.read(table)


@hf.dataflow
def choosing(rows: Rows, reader: Reader) -> None:
    reader.choose(rows)


def reader(ranks: int) -> hf.Deployment:
    return hf.Deployment(reader=hf.place(Reader, pool=hf.ResourcePool([ranks], use_gpu=False)))


def test_a_size_is_looked_for_that_works_with_all_sizes_of_the_others() -> None:
    [finding] = reading.check(reader(12), {B: 20, N: (3, 2)}).findings
    assert finding.notes == ("for N = 2 of 3, 2", "with B = 20, N = 2")
    assert finding.help[0] == "set B to 12 or 24: every split and requirement then holds"  # not 18: 18 * 3 % 12 = 6


def test_a_size_that_breaks_something_else_is_passed_over() -> None:
    [finding] = choosing.check(reader(4), {B: 10}).findings
    ranks = "give the pool of 'reader' 2 slots: processes [2] or 5 slots: processes [5]"
    assert finding.help == ("set B to 8 or 16: every split and requirement then holds", ranks)


@hf.dataflow
def fixing(rows: Rows, table: Table, reader: Reader) -> None:
    reader.fix(rows, table)


def test_a_dim_without_a_size_is_not_resized() -> None:
    [finding] = [finding for finding in fixing.check(reader(1), {B: 4}) if finding.code == "HF322"]
    assert finding.help == ()
    [finding] = [finding for finding in fixing.check(reader(1), {B: 4, N: 16}) if finding.code == "HF322"]
    assert finding.help == ("set B to 8: every split and requirement then holds",)


@hf.dataflow
def making(rows: Rows, reader: Reader) -> Numbered:
    return reader.make()


def test_undetermined_rows_are_reported_where_a_run_must_know_them() -> None:
    assert making.check().codes == ()
    assert "HF301" in making.check(reader(1), {B: 4}).codes
    assert making.check(reader(2), {B: 4}).codes == ("HF413",), "there is nothing to split"


def test_a_requirement_that_no_single_size_meets_is_reported_as_it_is() -> None:
    class Never(Reader):
        @register(Dispatch.DP_PROTO)
        @hf.requires("B < 1")
        def never(self, rows: Rows) -> None: ...

    def program(rows: Rows, reader: Reader) -> None:
        reader.never(rows)  # type: ignore[attr-defined]

    program.__annotations__["reader"] = Never
    place = hf.Deployment(reader=hf.place(Never, pool=hf.ResourcePool([1], use_gpu=False)))
    assert hf.dataflow(program).check(place, {B: 4}).codes == ("HF322",)


def other() -> type[hf.Dim]:
    class B(hf.Dim): ...

    return B


def test_a_requirement_names_the_dim_of_the_program() -> None:
    sizes: dict[Any, int] = {B: 8, other(): 8}
    assert all_rows.check(placed(1), sizes).codes == ("HF305",)
