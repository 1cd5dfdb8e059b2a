# mypy: disable-error-code="empty-body"
"""A dim that has several sizes in turn: each of them must work, and a finding says which do not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, Mul, register


class B(hf.Dim): ...


class N(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B, R]


class Table(hf.Batch):
    ids: hf.i64[Mul[B, N], R]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("R <= 8")
    def score(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def read(self, table: Table) -> None: ...


@hf.dataflow
def program(rows: Rows, actor: Actor) -> Rows:
    return actor.score(rows)


@hf.dataflow
def reading(table: Table, actor: Actor) -> None:
    actor.read(table)


deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([16], use_gpu=False)))


def test_a_last_batch_is_reported_with_its_size() -> None:
    assert program.check(deployment, dims={B: (512, 96), R: 8}).findings == ()
    [finding] = program.check(deployment, dims={B: (100, 512, 90), R: 8}).findings
    assert finding.message.endswith("100 % 16 = 4"), "the first size that shows it"
    assert finding.notes == ("for B = 100 or 90 of 100, 512, 90",)
    [finding] = program.check(deployment, dims={B: (512, 100), R: 8}).findings
    assert finding.message.endswith("on Mesh(pp=1 dp=16 tp=1): 100 % 16 = 4")
    assert finding.notes == ("for B = 100 of 512, 100",)
    assert finding.help == ("set B = 100 to 96 or 112: every split and requirement then holds",)


def test_every_size_that_does_not_work_has_its_repair() -> None:
    [finding] = program.check(deployment, dims={B: (512, 100, 20), R: 8}).findings
    assert finding.notes[0] == "for B = 100 or 20 of 512, 100, 20"
    assert [line.partition(":")[0] for line in finding.help] == ["set B = 100 to 96 or 112", "set B = 20 to 16 or 32"]


class Exact(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B == 512")
    def read(self, rows: Rows) -> None: ...


@hf.dataflow
def two(rows: Rows, exact: Exact) -> Rows:
    exact.read(rows)
    return exact.score(rows)


def test_one_size_is_mended_beside_what_else_is_wrong_with_it() -> None:
    place = hf.Deployment(exact=hf.place(Exact, pool=hf.ResourcePool([16], use_gpu=False)))
    rows, limit = sorted(two.check(place, dims={B: (512, 100)}), key=lambda finding: finding.code)
    assert (rows.code, limit.code) == ("HF310", "HF322")
    assert rows.help == ("set B = 100 to 96 or 112: this then holds",)


def test_combinations_are_reported_by_the_dims_that_matter() -> None:
    rows, limit = program.check(deployment, dims={B: (512, 100), R: [8, 9]}).findings
    assert (rows.code, rows.notes[0]) == ("HF310", "for B = 100 of 512, 100")
    assert (limit.code, limit.notes) == ("HF322", ("for R = 9 of 8, 9",))
    assert limit.help == ("set R = 9 to 8: this then holds",)  # with B = 100 the rows do not


def test_findings_that_do_not_depend_on_sizes_stay_the_same() -> None:
    class Other(hf.Dim): ...

    single, both = (program.check(dims={B: b, R: 4, Other: 1}) for b in (4, (4, 2)))
    assert both.findings == single.findings
    assert both.codes == ("HF305",)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True), st.integers(1, 64))
def test_each_offered_size_works_with_all_sizes_of_the_others(sizes: list[int], n: int) -> None:
    report = reading.check(deployment, dims={B: tuple(sizes), N: n})
    assert report.ok is all(b * n % 16 == 0 for b in sizes)
    for finding in report:
        for line in finding.help:
            m = re.fullmatch(r"set (\w)(?: = (\d+))? to ([\d or]+): .*", line)
            if m is None:  # other numbers of ranks, which work with all sizes
                for ranks in re.findall(r"(\d+) slots", line):
                    placed = hf.place(Actor, pool=hf.ResourcePool([int(ranks)], use_gpu=False))
                    assert reading.check(hf.Deployment(actor=placed), dims={B: tuple(sizes), N: n}).ok
                assert line.startswith("give the pool of 'actor' ")
                continue
            for number in map(int, m[3].split(" or ")):
                if m[1] == "N":
                    assert reading.check(deployment, dims={B: tuple(sizes), N: number}).ok
                else:
                    assert m[2] is None or int(m[2]) in sizes
                    assert reading.check(deployment, dims={B: number, N: n}).ok


def test_a_size_that_is_none_among_several() -> None:
    for wrong in ((512, 0), (), (4, "8")):
        report = program.check(deployment, dims={B: wrong})  # type: ignore[dict-item]
        assert "HF302" in report.codes, str(report)


def test_a_plan_is_for_one_size() -> None:
    with pytest.raises(hf.CheckError, match=r"HF302.*\n\n.*a plan is for one size of a dim, got B = \(512, 96\)"):
        program.compile(deployment, dims={B: (512, 96)})
    experiment = hf.Experiment(program, deployment, dims={B: (512, 96)})
    assert experiment.check().ok
    with pytest.raises(hf.CheckError, match="leave B out: such a plan takes what its input has"):
        experiment.compile()
    assert program.compile(deployment, dims={B: (512,)}).dims == {B: 512}
    assert program.compile(deployment).dims == {}
