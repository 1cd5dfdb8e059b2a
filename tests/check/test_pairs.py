# mypy: disable-error-code="empty-body"
"""Two sizes at once, and what no size satisfies: against brute force over a box of sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, Mul, register
from hfdsl.check.findings import Report
from hfdsl.check.repair.search import Demand, PairSearch, conflict
from hfdsl.check.run import check
from hfdsl.types.dims import Dim, Size, atom_size, constant


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


@settings(max_examples=200)
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
        assert not any(case.works(one, n) for one in range(1, 25))
        assert not any(case.works(b, other) for other in range(1, 13))


def test_a_pair_mends_what_either_size_breaks() -> None:
    report = Case(micro=3, most=20, part=1, widest=12, ranks=8).check(10, 3)
    assert report.codes == ("HF310", "HF318")
    words = "set B to 12 and N to 2"
    assert [finding.help for finding in report] == [(f"{words}: every split and requirement then works out",)] * 2


numbers = st.integers(-12, 12)
linear = st.builds(lambda a, c: atom_size(B) * constant(a) + constant(c), st.integers(1, 4), numbers)
divides = st.builds(Demand, linear, st.sampled_from((1, 2, 3, 4, 5, 6, 8, 12)))
bounds = st.builds(
    lambda sign, edge, strict: Demand(atom_size(B) * constant(sign) - constant(sign * edge), None, strict),
    st.sampled_from((1, -1)),
    st.integers(0, 60),
    st.booleans(),
)
BOX = range(1, 121 + 60)  # 120 is a multiple of all divisors, and no bound is above 60: beyond it all repeats


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(divides, divides, bounds), min_size=1, max_size=6))
def test_a_conflict_is_one_and_without_any_one_of_it_there_is_a_size(demands: list[Demand]) -> None:
    def sizes(kept: tuple[Demand, ...]) -> bool:
        return any(all(met(demand, b) for demand in kept) for b in BOX)

    found = conflict(B, demands)
    assert bool(found) is not sizes(tuple(demands))
    assert not found or not sizes(found)
    for i in range(len(found)):
        assert sizes(found[:i] + found[i + 1 :]), found


def met(demand: Demand, b: int) -> bool:
    """Plain arithmetic, without the checker's own."""
    terms = dict(demand.size.terms)
    value = terms.get((), Fraction(0)) + sum(factor * b for atoms, factor in terms.items() if atoms)
    if demand.divisor is not None:
        return value % demand.divisor == 0
    return value > 0 or (value == 0 and not demand.strict)


@settings(max_examples=100)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(1, 9)), max_size=3),
)
def test_the_search_for_two_sizes_finds_the_nearest(b: int, n: int, found: list[tuple[int, int, int, int]]) -> None:
    one, other = atom_size(B), atom_size(N)

    def size(x: int, y: int, xy: int) -> Size:
        return one * constant(x) + other * constant(y) + one * other * constant(xy)

    demands = [Demand(size(x, y, xy), divisor) for x, y, xy, divisor in found if x or y or xy]
    dims: tuple[type[Dim], type[Dim]] = (B, N)
    search = PairSearch(dims, (b, n), demands, lambda *_: True)
    near = [
        (search.change(x, y), x, y)
        for x, y in product(range(1, 60), repeat=2)
        if x != b and y != n and all((p * x + q * y + r * x * y) % d == 0 for p, q, r, d in found)
    ]
    pair = search.nearest()
    assert pair is not None
    assert search.change(*pair) == min(near)[0]


small = st.integers(1, 6)


@settings(max_examples=60)
@given(small, small, small, small, small)
@example(b=4, n=1, x=1, y=3, xy=4)
def test_pairs_are_tried_by_how_much_they_change(b: int, n: int, x: int, y: int, xy: int) -> None:
    one, other, tried = atom_size(B), atom_size(N), list[tuple[int, int]]()
    demands = [Demand(one * one, x), Demand(other * other, y), Demand(one * other, xy)]
    search = PairSearch((B, N), (b, n), demands, lambda *pair: bool(tried.append(pair)))  # type: ignore[func-returns-value]
    assert search.nearest() is None
    assert all(p * p % x == q * q % y == p * q % xy == 0 and p != b and q != n for p, q in tried)
    changes = [search.change(*pair) for pair in tried]
    assert changes == sorted(changes)
    box = product(range(1, b + 60), range(1, n + 60))
    met = (p for p in box if p[0] ** 2 % x == p[1] ** 2 % y == p[0] * p[1] % xy == 0 and p[0] != b and p[1] != n)
    assert changes[0] == min(search.change(*pair) for pair in met)


case = Case(micro=3, most=20, part=1, widest=12, ranks=8)
placed = hf.place(Actor, case.micro, case.most, case.part, case.widest, pool=hf.ResourcePool([8], use_gpu=False))
experiment = hf.Experiment(program, hf.Deployment(actor=placed), dims={B: 10, N: 3})


def test_a_pair_is_one_fix_with_two_edits() -> None:
    for finding in check(program.body, experiment.deployment, {B: 10, N: 3}, asked=experiment.span):
        [fix] = finding.fixes
        assert (fix.title, [edit.text for edit in fix.edits]) == ("set B to 12 and N to 2", ["12", "2"])
