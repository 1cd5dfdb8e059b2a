# mypy: disable-error-code="empty-body"
"""Sizes against brute force: what is violated is found, and every number that a help line offers works."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, Mul, register
from hfdsl.check.findings import Finding
from hfdsl.check.report import Report
from tests.nightly import examples


class B(hf.Dim): ...


class N(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B, R]


class Table(hf.Batch):
    ids: hf.i64[Mul[B, N], R]


class Actor(hf.Worker):
    def __init__(self, micro: int = 1, least: int = 1) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def generate(self, rows: Rows) -> Rows: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro == 0", "B >= least", "R % 4 == 0")
    def update(self, rows: Rows) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def read(self, table: Table) -> None: ...


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows: ...


@dataclass(frozen=True)
class Case:
    """A program in numbers: repeats, the two meshes, the group, the mini-batches, and the role's config."""

    times: int
    dp: int
    tp: int
    ranks: int
    group: int
    parts: int
    micro: int
    least: int

    def works(self, b: int, r: int) -> bool:
        rows = b * self.times
        part, rest = divmod(rows, self.parts)
        splits = (rows % self.dp, rows % self.ranks, rows % self.group, rest, part % self.dp, part % self.micro, r % 4)
        return not any(splits) and part >= self.least

    def check(self, b: int, r: int) -> Report:
        @hf.function(rows=hf.Whole)
        def shuffled(rows: Rows) -> Rows: ...

        @hf.function(rows=hf.Grouped(self.group))
        def centre(rows: Rows) -> Rows: ...

        @hf.dataflow
        def program(rows: Rows, actor: Actor, judge: Judge) -> None:
            rollout = actor.generate(hf.repeat(shuffled(rows), self.times))  # groups may be of any size
            for part in hf.minibatches(centre(judge.score(rollout)), self.parts):
                actor.update(part)

        train, score = hf.ResourcePool([self.dp * self.tp]), hf.ResourcePool([self.ranks])
        deployment = hf.Deployment(
            actor=hf.place(Actor, self.micro, least=self.least, pool=train, mesh=hf.Mesh(dp=self.dp, tp=self.tp)),
            judge=hf.place(Judge, pool=score),
        )
        return program.check(deployment, dims={B: b, R: r})


small = st.integers(1, 6)
cases = st.builds(
    Case,
    times=small,
    dp=small,
    tp=st.integers(1, 2),
    ranks=small,
    group=small,
    parts=st.integers(1, 4),
    micro=small,
    least=st.sampled_from((1, 1, 1, 7, 40)),
)


def offered(finding: Finding) -> list[tuple[str, int]]:
    lines = [re.fullmatch(r"set (\w+) to ([\d or]+): .*", text) for text in finding.help]
    return [(m[1], int(number)) for m in lines if m for number in m[2].split(" or ")]


def finding_keys(report: Report) -> set[tuple[object, ...]]:
    return {(f.code, f.primary.span, re.split(" = |, but", f.message)[0]) for f in report}


@given(cases, st.integers(1, 300), st.integers(1, 9))
def test_exactly_the_violated_demands_are_reported(case: Case, b: int, r: int) -> None:
    report = case.check(b, r)
    assert report.ok is case.works(b, r), str(report)
    assert report.warnings == ()
    assert set(report.codes) <= {"HF310", "HF313", "HF322"}


@given(cases, st.integers(1, 300), st.integers(1, 9))
def test_every_offered_size_removes_its_finding_and_adds_none(case: Case, b: int, r: int) -> None:
    before = case.check(b, r)
    for finding in before:
        for dim, number in offered(finding):
            sizes: Mapping[str, int] = {"B": b, "R": r} | {dim: number}
            after = case.check(sizes["B"], sizes["R"])
            assert finding_keys(after) < finding_keys(before), f"{finding.help}\n{after}"


@given(cases.filter(lambda case: case.least == 1), st.integers(1, 300))
def test_the_nearest_sizes_on_both_sides_are_offered(case: Case, b: int) -> None:
    numbers = [number for finding in case.check(b, 4) for _, number in offered(finding)]
    below = next((n for n in range(b - 1, 0, -1) if case.works(n, 4)), None)
    above = next(n for n in range(b + 1, 10_000) if case.works(n, 4))
    assert numbers == ([] if case.works(b, 4) else [n for n in (below, above) if n is not None])


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_either_of_two_sizes_may_be_changed(dp: int, b: int, n: int) -> None:
    @hf.dataflow
    def program(table: Table, actor: Actor) -> None:
        actor.read(table)

    deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([dp]), mesh=hf.Mesh(dp=dp)))
    report = program.check(deployment, dims={B: b, N: n})
    assert report.ok is (b * n % dp == 0)
    for finding in report:
        fixes = offered(finding)
        assert {dim for dim, _ in fixes} == {"B", "N"}
        for dim, number in fixes:
            assert program.check(deployment, dims={B: b, N: n} | {{"B": B, "N": N}[dim]: number}).findings == ()


@settings(max_examples=examples(50))
@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 3), st.integers(1, 12), st.integers(1, 24))
def test_an_offered_mesh_fills_the_pool_and_splits_the_rows(pp: int, dp: int, tp: int, slots: int, b: int) -> None:
    @hf.dataflow
    def program(rows: Rows, actor: Actor) -> Rows:
        return actor.generate(rows)

    def check(dp: int, slots: int) -> Report:
        mesh = hf.Mesh(pp=pp, dp=dp, tp=tp)
        placed: Any = hf.place(Actor, pool=hf.ResourcePool([slots]), mesh=mesh)
        return program.check(hf.Deployment(actor=placed), dims={B: b})

    before = check(dp, slots)
    assert ("HF501" in before.codes) is (pp * dp * tp != slots)
    for finding in before:
        for text in finding.help:
            if m := re.match(r"set dp to (\d+)(?: and give .* (\d+) slots: processes)?", text):
                after = check(int(m[1]), int(m[2] or slots))
                assert "HF501" not in after.codes
                assert set(after.codes) <= set(before.codes)
