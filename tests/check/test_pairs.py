# mypy: disable-error-code="empty-body"
"""Two sizes at once: against brute force over a box of sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, Mul, register
from hfdsl.check.repair.search import PairSearch
from hfdsl.check.report import Report
from hfdsl.check.run import check
from hfdsl.check.sizes.constraints import Constraint
from hfdsl.types.dims import atom_size, constant
from tests.nightly import examples


class B(hf.Dim): ...


class N(hf.Dim): ...


class Table(hf.Batch):
    ids: hf.i64[Mul[B, N]]


class Actor(hf.Worker):
    def __init__(self, micro: int, most: int, part: int, widest: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % micro == 0", "B <= most", "N % part == 0", "N <= widest")
    def read(self, table: Table) -> None: ...


@hf.dataflow
def program(table: Table, actor: Actor) -> None:
    actor.read(table)


@dataclass(frozen=True)
class Case:
    """The role's config and its ranks."""

    micro: int
    most: int
    part: int
    widest: int
    ranks: int

    def works(self, b: int, n: int) -> bool:
        alone = b % self.micro == 0 and b <= self.most and n % self.part == 0 and n <= self.widest
        return alone and b * n % self.ranks == 0

    def check(self, b: int, n: int) -> Report:
        pool = hf.ResourcePool([self.ranks], use_gpu=False)
        placed = hf.place(Actor, self.micro, self.most, self.part, self.widest, pool=pool)
        return program.check(hf.Deployment(actor=placed), dims={B: b, N: n})


cases = st.builds(
    Case,
    micro=st.integers(1, 6),
    most=st.integers(1, 24),
    part=st.integers(1, 4),
    widest=st.integers(1, 12),
    ranks=st.sampled_from((1, 2, 4, 8, 12, 16)),
)


def pairs(report: Report) -> list[tuple[int, int]]:
    lines = [re.match(r"set B to (\d+) and N to (\d+): ", line) for finding in report for line in finding.help]
    return [(int(m[1]), int(m[2])) for m in lines if m]


@settings(max_examples=examples(200))
@given(cases, st.integers(1, 30), st.integers(1, 14))
@example(Case(micro=3, most=20, part=1, widest=12, ranks=8), 10, 3)
def test_sizes_are_offered_where_there_are_any_and_a_pair_where_one_will_not_do(case: Case, b: int, n: int) -> None:
    assume(not case.works(b, n))
    report = case.check(b, n)
    assert not report.ok
    box = [(x, y) for x, y in product(range(1, 25), range(1, 13)) if case.works(x, y)]  # all that the limits allow
    assert not box or all(finding.help for finding in report), str(report)
    least = min((Fraction(abs(x - b), b) + Fraction(abs(y - n), n) for x, y in box), default=None)
    for x, y in pairs(report):
        assert case.check(x, y).findings == ()
        assert Fraction(abs(x - b), b) + Fraction(abs(y - n), n) == least
        assert not any(case.works(size, n) for size in range(1, 25))
        assert not any(case.works(b, size) for size in range(1, 13))


def test_a_pair_mends_what_either_size_breaks() -> None:
    report = Case(micro=3, most=20, part=1, widest=12, ranks=8).check(10, 3)
    assert report.codes == ("HF310", "HF318")
    words = "set B to 12 and N to 2: every split and requirement then holds"
    ranks = "give the pool of 'actor' 10 slots: processes [10]"  # B = 10 rows split over them; N = 3 is still wrong
    assert [finding.help for finding in report] == [(words, ranks), (words,)]


ONE, OTHER = atom_size(B), atom_size(N)
SIZES = st.integers(1, 20)
FACTORS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)).filter(any)
DIVISORS = st.sampled_from((1, 2, 3, 4, 6, 8))  # what works repeats every 24: it is in the box
small = st.integers(1, 6)


def joint(factors: tuple[int, int, int], divisor: int) -> Constraint:
    x, y, xy = map(constant, factors)
    return Constraint(ONE * x + OTHER * y + ONE * OTHER * xy, divisor)


def tried(b: int, n: int, demands: list[Constraint]) -> list[tuple[int, int]]:
    """The pairs that a search tries where none works."""
    pairs: list[tuple[int, int]] = []
    search = PairSearch((B, N), (b, n), demands, lambda *pair: bool(pairs.append(pair)))  # type: ignore[func-returns-value]
    assert search.nearest() is None
    return pairs


@settings(max_examples=examples(100))
@given(SIZES, SIZES, st.lists(st.tuples(FACTORS, DIVISORS), max_size=3))
def test_the_search_for_two_sizes_finds_the_nearest(
    b: int, n: int, demanded: list[tuple[tuple[int, int, int], int]]
) -> None:
    first, *_ = tried(b, n, [joint(*terms) for terms in demanded])
    box = [(p, q) for p, q in product(range(1, 60), repeat=2) if p != b and q != n]
    near = (
        abs(p - b) * n + abs(q - n) * b
        for p, q in box
        if all((x * p + y * q + xy * p * q) % d == 0 for (x, y, xy), d in demanded)
    )
    assert abs(first[0] - b) * n + abs(first[1] - n) * b == min(near)


@settings(max_examples=examples(60))
@given(small, small, small, small, FACTORS, small)
@example(b=4, n=1, x=1, y=3, factors=(0, 0, 1), divisor=4)
@example(b=1, n=1, x=6, y=6, factors=(0, 0, 1), divisor=1)
def test_pairs_are_tried_by_how_much_they_change(
    b: int, n: int, x: int, y: int, factors: tuple[int, int, int], divisor: int
) -> None:
    def works(p: int, q: int) -> bool:
        first, second, both = factors
        together = (first * p + second * q + both * p * q) % divisor
        return p * p % x == q * q % y == together == 0 and p != b and q != n

    def change(p: int, q: int) -> int:
        return abs(p - b) * n + abs(q - n) * b

    pairs = tried(b, n, [Constraint(ONE * ONE, x), Constraint(OTHER * OTHER, y), joint(factors, divisor)])
    assert all(works(*pair) for pair in pairs)
    changes = [change(*pair) for pair in pairs]
    assert changes == sorted(changes)
    assert changes[0] == min(change(*pair) for pair in product(range(1, b + 31), range(1, n + 31)) if works(*pair))


def test_pairs_that_meet_linear_demands_are_tried_by_the_second_size() -> None:
    pairs = tried(4, 10, [Constraint(ONE, 2)])
    assert {q for _, q in pairs} == {8, 9, 11, 12}
    assert sorted({p for p, _ in pairs})[:6] == [2, 6, 8, 10, 12, 14]


def test_a_pair_that_does_not_work_is_passed_over() -> None:
    assert PairSearch((B, N), (4, 10), [], lambda p, q: p > 4 and q > 10).nearest() == (5, 11)
    assert PairSearch((B, N), (4, 10), [], lambda p, q: p == 2).nearest() == (2, 9)


case = Case(micro=3, most=20, part=1, widest=12, ranks=8)
placed = hf.place(Actor, case.micro, case.most, case.part, case.widest, pool=hf.ResourcePool([8], use_gpu=False))
experiment = hf.Experiment(program, hf.Deployment(actor=placed), dims={B: 10, N: 3})


def test_a_pair_is_one_fix_with_two_edits() -> None:
    for finding in check(program.body, experiment.deployment, {B: 10, N: 3}, call_site=experiment.span):
        [fix] = finding.fixes
        assert (fix.title, [edit.text for edit in fix.edits]) == ("set B to 12 and N to 2", ["12", "2"])
