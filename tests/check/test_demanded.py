# mypy: disable-error-code="empty-body"
"""What is asked of the rows of a call, and what is not: one rank, padding, lists, and what another mistake hides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, Mul, register
from hfdsl.check.report import Report


class B(hf.Dim): ...


class N(hf.Dim): ...


class M(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    keep: hf.bool_[B]


class Wide(hf.Batch):
    x: hf.f32[B, N]


class Other(hf.Batch):
    x: hf.f32[N]


class More(hf.Batch):
    x: hf.f32[M]


class Sums(hf.Batch):
    x: hf.f32[Add[B, N]]


class Pairs(hf.Batch):
    x: hf.f32[Mul[B, Literal[2]]]


JOINED = hf.Protocol("JOINED", collect={"rank": "join"})
LISTED = hf.Protocol("LISTED", collect={"rank": "join"}, gives="per_rank")


class Role(hf.Worker):
    def __init__(self, most: int = 3) -> None: ...

    @register(Dispatch.DP_PROTO)
    def split(self, pairs: Pairs, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    def padded(self, pairs: Pairs, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def unlike(self, rows: Rows, other: Other) -> None: ...

    @register(Dispatch.DP_PROTO)
    def sums(self, sums: Sums, column: hf.f32[Add[B, N]]) -> None: ...

    @register(Dispatch.DP_PROTO)
    def part(self, rows: Rows, sums: Sums) -> None: ...

    @register(Dispatch.DP_PROTO)
    def whole(self, sums: Sums, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def like(self, one: hf.f32[B], other: hf.f32[B]) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B // 2 % 4 == 0")
    def halves(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO, pad="cycle")
    @hf.requires("B // 2 % 4 == 0")
    def padded_halves(self, rows: Rows) -> Rows: ...

    @register(JOINED, leaves={"rank": hf.Sharded(0)})
    def shard(self, rows: Rows) -> Rows: ...

    @register(JOINED, leaves={"rank": hf.Sharded(1)})
    def across(self, rows: Rows) -> Rows: ...

    @register(LISTED, leaves={"rank": hf.Sharded(0)})
    def listed(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO, pad="cycle", leaves={"rank": hf.Sharded(0)})
    def cut(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B == 8", "N != 16")
    def eight(self, rows: Rows, wide: Wide) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B == 8 and most > 4")
    def many(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("M % 4 == 0")
    def fours(self, more: More) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    def pairs(self, column: hf.f32[Mul[B, Literal[2]]]) -> None: ...


def check(body: Callable[..., Any], ranks: int, **sizes: int) -> Report:
    placed = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([ranks], use_gpu=False)))
    dims = {"B": B, "N": N, "M": M}
    return hf.dataflow(body).check(placed, {dims[name]: number for name, number in sizes.items()})


def split(pairs: Pairs, rows: Rows, role: Role) -> None:
    role.split(pairs, rows)


def padded(pairs: Pairs, rows: Rows, role: Role) -> Rows:
    return role.padded(pairs, rows)


def unlike(rows: Rows, other: Other, role: Role) -> None:
    role.unlike(rows, other)


def unlike_kept(rows: Rows, other: Other, role: Role) -> None:
    role.unlike(hf.filter(rows, rows.keep), other)


def test_the_rows_of_every_argument_split_evenly() -> None:
    [finding] = check(split, 4, B=6).findings  # 12 pairs do split over 4 chunks
    assert finding.message.startswith("'role.split': B = 6 rows do not split evenly over the 4 chunks of DP_PROTO")
    assert (finding.primary.text, finding.related[0].text) == ("4 must divide B", "placed on Mesh(pp=1 dp=4 tp=1)")


def test_arguments_are_cut_alike_only_where_they_are_cut() -> None:
    assert check(split, 4, B=8).findings == check(unlike, 1, B=8, N=4).findings == ()
    assert check(unlike, 2, B=8, N=4).codes == ("HF420",)
    assert check(padded, 1, B=8).findings == ()
    [finding] = check(padded, 4, B=8).findings
    assert (finding.code, finding.message.rpartition(": ")[2]) == ("HF420", "padding keeps no such pairs")


def test_filtered_rows_match_no_other_rows_of_any_size() -> None:
    assert check(unlike_kept, 2, B=8, N=4).codes == ("HF321", "HF420")


def sums(sums: Sums, role: Role) -> None:
    role.sums(sums, sums.x)


def part(sums: Sums, rows: Rows, role: Role) -> None:
    role.part(rows, sums)


def part_first(sums: Sums, rows: Rows, role: Role) -> None:
    role.whole(sums, rows)


def test_rows_of_a_sum_go_with_as_many() -> None:
    assert check(sums, 2, B=2, N=4).findings == ()
    [finding] = check(part, 2, B=2, N=4).findings
    assert finding.code == "HF420"
    assert "port 'sums' has B+N rows and port 'rows' has B (6 and 2 with the sizes given)" in finding.message
    assert check(part_first, 2, B=2, N=4).codes == ("HF420",)


def halves(rows: Rows, role: Role) -> None:
    role.halves(rows)


def padded_halves(rows: Rows, role: Role) -> Rows:
    return role.padded_halves(rows)


def test_pad_rows_are_no_rows_that_a_split_rules_out() -> None:
    assert [check(halves, 2, B=n).ok for n in (8, 9, 10)] == [True, False, False]
    assert [check(padded_halves, 2, B=n).ok for n in (8, 9, 10)] == [True, True, False]  # 9 // 2 is 4


def shard(rows: Rows, role: Role) -> Rows:
    return role.shard(rows)


def across(rows: Rows, role: Role) -> Rows:
    return role.across(rows)


def listed(rows: Rows, role: Role) -> hf.PerRank[Rows]:
    return role.listed(rows)  # type: ignore[return-value]  # a list for the caller


def cut(rows: Rows, role: Role) -> Rows:
    return role.cut(rows)


def shard_parts(rows: Rows, role: Role) -> list[Rows]:
    return [role.shard(part) for part in hf.minibatches(rows, 4)]


def test_parts_of_a_result_are_equal_where_they_are_joined() -> None:
    [finding] = check(shard, 2, B=9).findings
    assert (finding.code, finding.primary.text) == ("HF310", "2 must divide B")
    assert [label.text for label in finding.related] == ["placed on Mesh(pp=1 dp=2 tp=1)"]
    assert check(listed, 4, B=10).findings == (), "each part is an entry of its own"
    assert check(cut, 4, B=10).findings == (), "the split pads, and cuts the pad rows off"
    assert check(across, 4, B=10).codes == ("HF419",), "these are not joined at all"


def test_the_one_part_of_one_rank_is_no_matter() -> None:
    [finding] = check(shard_parts, 1, B=10).findings
    assert [label.text for label in finding.related] == ["for a whole number of rows: 4 must divide B"]


def grouped(rows: Rows, role: Role) -> Rows:
    return role.shard(hf.filter(rows, rows.keep, group=2))


def test_a_filter_of_pairs_is_given_whole_pairs() -> None:
    assert check(grouped, 1, B=8).findings == ()
    [finding] = check(grouped, 1, B=9).findings
    assert finding.message == "filter: B = 9 rows do not make whole groups of 2: 9 % 2 = 1"
    assert (finding.code, finding.primary.text) == ("HF313", "2 must divide B")


def hidden(rows: Rows, role: Role) -> list[Rows]:
    lost = role.shard(rows.id)  # type: ignore[attr-defined]  # the mistake
    halves(lost, role)
    return [role.shard(lost), hf.filter(lost, lost.keep, group=2), *hf.minibatches(lost, 4)]


def test_nothing_is_asked_of_rows_that_a_mistake_hides() -> None:
    assert check(hidden, 4, B=10).codes == ("HF201",)


def pairs(rows: Rows, role: Role) -> None:
    role.pairs(rows.x)  # type: ignore[arg-type]  # rows of another dim, which inference takes


def packed(rows: Rows, role: Role) -> Pairs:
    role.like(rows.x, rows.x)
    return Pairs(x=rows.x)  # type: ignore[arg-type]  # as above


def test_a_dim_that_a_call_binds_is_whole() -> None:
    assert check(pairs, 1, B=6).findings == ()
    [finding] = check(pairs, 1, B=5).findings
    assert finding.message.startswith("'role.pairs' would have B = B//2 = 5/2, which is not a whole number")
    assert (finding.code, finding.primary.text) == ("HF303", "2 must divide B")
    assert check(packed, 1, B=5).findings == (), "a record can be made of any rows"


def eight(rows: Rows, wide: Wide, role: Role) -> None:
    for part, wide_part in zip(hf.minibatches(rows, 4), hf.minibatches(wide, 4), strict=True):
        role.eight(part, wide_part)


def test_of_rows_that_are_not_whole_nothing_more_is_required() -> None:
    report = check(eight, 1, B=10, N=16)  # 10 / 4 rows are not 8 either
    assert [(finding.code, finding.primary.text) for finding in report] == [
        ("HF310", "4 must divide B"),
        ("HF322", "calls it"),
    ]
    assert report.findings[1].message == "'role.eight' requires N != 16, but N = 16"


def many(rows: Rows, role: Role) -> None:
    role.many(rows)


def test_a_requirement_is_reported_with_the_config_that_it_names() -> None:
    declared = "declared with requires('B == 8 and most > 4')"
    [finding] = hf.dataflow(many).check(dims={B: 4}).findings  # whatever the config will be
    assert (finding.code, [label.text for label in finding.related]) == ("HF322", [declared])
    [finding] = check(many, 1, B=8).findings
    assert [label.text for label in finding.related] == [declared, "placed with most = 3"]
    [finding] = check(eight, 1, B=32, N=16).findings
    assert [label.text for label in finding.related] == ["declared with requires('N != 16')"]


@hf.function
@hf.requires("B % 4 == 0")
def quarters(rows: Rows) -> Rows: ...


def quartered(rows: Rows, role: Role) -> Rows:
    return role.shard(quarters(rows))


def test_suggestions_for_requirements_of_functions_are_those_for_splits() -> None:
    [finding] = check(quartered, 1, B=6).findings
    assert finding.message == "'quarters' requires B % 4 == 0, but 6 % 4 = 2"
    assert (finding.code, finding.primary.text, finding.related[0].text) == (
        "HF322",
        "4 must divide B",
        "declared with requires('B % 4 == 0')",
    )


class Unbuilt(hf.Worker):
    def __init__(self, width: int) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B != 6", "width > 1")
    def read(self, rows: Rows) -> None: ...


@hf.dataflow
def unbuilt(rows: Rows, role: Unbuilt) -> None:
    role.read(rows)


def test_requirements_without_a_config_are_checked_without_one() -> None:
    placed = hf.Deployment(role=hf.place(Unbuilt, pool=hf.ResourcePool([1], use_gpu=False)))
    assert sorted(unbuilt.check(placed, {B: 6}).codes) == ["HF322", "HF516"]
    assert unbuilt.check(placed, {B: 7}).codes == ("HF516",)


def like(rows: Rows, other: Other, more: More, role: Role) -> None:
    role.like(rows.x, other.x)  # type: ignore[arg-type]  # as above
    role.fours(more)


def test_rows_that_the_sizes_make_equal_work_out() -> None:
    [finding] = check(like, 1, B=6, N=6, M=6).findings
    assert finding.help == ("set M to 4 or 8: every split and requirement then holds",)
    rows, fours = check(like, 1, B=6, N=7, M=6).findings
    assert (rows.code, fours.help) == ("HF212", ("set M to 4 or 8: this then holds",))
