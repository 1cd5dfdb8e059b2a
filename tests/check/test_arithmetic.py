# mypy: disable-error-code="empty-body"
"""Requirements and their repairs against brute force: plain Python evaluates the same text for every size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from math import lcm
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Add, Dispatch, register
from hfdsl.check.repair.search import Search, conflict
from hfdsl.check.report import Report
from hfdsl.check.sizes.arithmetic import CallScope, divisibility, limit
from hfdsl.check.sizes.constraints import Constraint, SizeSet
from hfdsl.check.sizes.requirements import Scope
from hfdsl.types.dims import constant, size
from tests.nightly import examples


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B, Add[P, R]]


small = st.integers(1, 6)
linear = st.builds(
    Constraint,
    st.builds(
        lambda a, c, d: size(B) * constant(a) / constant(d) + constant(c),
        st.integers(-4, 4).filter(bool),
        st.integers(-12, 12),
        small,
    ),
    st.none() | st.integers(1, 5),
    st.booleans(),
)
FAR = 500  # beyond every limit that these demands can set, and a whole period of all of their divisors further


def meeting(demands: Iterable[Constraint], numbers: range) -> list[int]:
    """The numbers that meet all demands, in the arithmetic of whole numbers."""
    numbers_left = list(numbers)
    for demand in demands:
        terms = dict(demand.size.terms)
        factor, rest = terms[((B, 1),)], terms.get((), Fraction(0))
        scale = lcm(factor.denominator, rest.denominator)
        a, c, divisor = int(factor * scale), int(rest * scale), (demand.divisor or 0) * scale
        numbers_left = [
            n for n in numbers_left if ((a * n + c) % divisor == 0 if divisor else a * n + c >= demand.strict)
        ]
    return numbers_left


def period(demands: list[Constraint]) -> int:
    return lcm(*(6 * (demand.divisor or 1) * demand.size.terms[0][1].denominator for demand in demands))


@settings(max_examples=examples(150))
@given(st.lists(linear, min_size=1, max_size=4, unique=True).filter(lambda ds: period(ds) < FAR - 200))
def test_a_conflict_is_one_and_without_any_one_of_it_there_is_a_size(demands: list[Constraint]) -> None:
    conflicting = conflict(B, demands)
    assert set(conflicting) <= set(demands)
    assert bool(conflicting) is not bool(meeting(demands, range(1, 2 * FAR)))
    assert not conflicting or not meeting(conflicting, range(1, 2 * FAR))
    for left_out in conflicting:
        assert meeting([demand for demand in conflicting if demand is not left_out], range(1, 2 * FAR)), conflicting


@given(st.lists(linear, max_size=3), st.integers(1, 200), st.integers(1, 5))
@example([Constraint(size(B), 9), Constraint(size(B), 4), Constraint(size(B), 25)], 1, 1)
def test_the_nearest_sizes_are_the_nearest(demands: list[Constraint], now: int, step: int) -> None:
    nearest = Search(B, now, demands, lambda n: n % step == 0).nearest()
    below = [n for n in meeting(demands, range(1, now)) if n % step == 0]
    beyond = now + FAR + step * period(demands)
    above = [n for n in meeting(demands, range(now + 1, beyond)) if n % step == 0]
    assert nearest == (*below[-1:], *above[:1])


b = size(B)


def test_two_remainders_leave_one() -> None:
    assert SizeSet(residue=1, step=3).satisfying(B, Constraint(b - constant(1), 6)) == SizeSet(residue=1, step=6)
    assert SizeSet(residue=3, step=6).satisfying(B, Constraint(b, 9)) == SizeSet(residue=9, step=18)
    assert SizeSet(residue=2, step=4).satisfying(B, Constraint(b, 6)) == SizeSet(residue=6, step=12)
    assert SizeSet(residue=1, step=2).satisfying(B, Constraint(b, 5)) == SizeSet(residue=5, step=10)


def test_of_remainders_that_exclude_each_other_none_is_left() -> None:
    odd, fours, few = Constraint(b + constant(1), 2), Constraint(b, 4), Constraint(constant(9) - b)
    assert conflict(B, [few, fours, odd]) == (fours, odd)
    half = Constraint(b * constant(2) + constant(1), 2)
    assert conflict(B, [few, half]) == (half,)
    assert Search(B, 5, [half], lambda n: True).nearest() == ()


def test_a_demand_above_zero_is_not_met_at_zero() -> None:
    square = b * b - constant(15)
    for number, met in {3: [False, False], 4: [True, True], 5: [True, True]}.items():
        assert [Constraint(square, strict=strict).met(B, number) for strict in (False, True)] == met
    assert [Constraint(square - constant(1), strict=strict).met(B, 4) for strict in (False, True)] == [True, False]


def test_nonlinear_demands_are_searched_size_by_size() -> None:
    assert Search(B, 9, [Constraint(b * b - constant(1), 24)], lambda n: True).nearest() == (7, 11)
    assert Search(B, 7, [Constraint(b * b + b, 10)], lambda n: True).nearest() == (5, 9)
    assert Search(B, 270, [Constraint(b * b, 10_000)], lambda n: True).nearest() == (200, 300)
    assert conflict(B, [Constraint(b * b + constant(1), 4)]) == ()  # none is, and it is not shown
    three, most = Constraint(b, 3), Constraint(constant(2) - b)
    assert conflict(B, [Constraint(b * b, 4), three, most]) == (three, most)


def test_a_requirement_is_read_as_the_size_that_it_is_about() -> None:
    terms = CallScope({"B": size(B), "P": size(P), "R": size(R)}, Scope({}, None, config=False))
    assert divisibility("(P - R) % 4 == 0", terms) == (size(P) - size(R), 4)
    assert divisibility("(P * R + 3) % 4 == 0", terms) == (size(P) * size(R) + constant(3), 4)
    assert divisibility("P // 2 % 4 == 0", terms) is None, "there may be a rest"
    assert divisibility("B % 1 == 0", terms) == (size(B), 1), "known without a size"
    assert divisibility("B % 0 == 0", terms) is None
    assert limit("P - R > B", terms) == (size(P) - size(R) - size(B), True)


@pytest.mark.parametrize(
    "text", ["P // 3 <= B", "B <= P // 3", "B < B + 1", "2 < 3", "B <= most", "most > B", "B <= wide"]
)
def test_a_demand_that_bounds_no_size_is_no_limit(text: str) -> None:
    unplaced = Scope({}, None, fields={"wide": "text"})  # nobody knows what the role's config will be
    assert limit(text, CallScope({"B": size(B), "P": size(P)}, unplaced)) is None
    placed = Scope({}, hf.place(hf.Worker, pool=hf.ResourcePool([1])))
    assert limit(text, CallScope({"B": size(B), "P": size(P)}, placed)) is None


def test_a_quotient_is_exact_only_by_a_whole_number() -> None:
    terms = CallScope({}, Scope({}, None, config=False), size(B), chunks=6)
    exact = [terms.exact(size(B), divisor) for divisor in map(constant, (1, 2, 3, 6, 4, 0, -2, Fraction(1, 2)))]
    assert exact == [True, True, True, True, False, False, False, False]
    assert not terms.exact(size(B), size(R))
    assert not terms.exact(size(P), constant(2)), "what is split is B"


def test_a_part_of_a_size_bounds_it_from_the_side_of_its_sign() -> None:
    half = size(B) / constant(2)
    assert SizeSet().satisfying(B, Constraint(constant(4) - half)) == SizeSet(most=8)
    assert SizeSet().satisfying(B, Constraint(constant(4) - half, strict=True)) == SizeSet(most=7)
    assert SizeSet().satisfying(B, Constraint(half - constant(4))) == SizeSet(least=8)
    assert SizeSet().satisfying(B, Constraint(half - constant(4), strict=True)) == SizeSet(least=9)


FORMS = (
    "B % (dp * micro) == 0",
    "B // dp % micro == 0",
    "B // world_size % micro == 0",
    "B % (mini * n) == 0",
    "(P + R) % cp == 0",
    "(P + R - 1) % cp == 0",
    "(2 * P + R) % (2 * cp) == 0",
    "B // 3 % micro == 0",
    "P + R <= most",
    "P + R < most",
    "most >= B * micro",
    "R >= micro * 4",
    "B % micro == 0 and P + R <= most",
    "B > mini or B % micro == 0",
    "micro == 1 or B % (micro - 1) == 0",
    "R % cp != 1",
)


def works(text: str, sizes: dict[str, int], config: dict[str, Any]) -> bool:
    if sizes["B"] % config["dp"]:
        return False
    try:
        return bool(eval(text, {}, {**sizes, **config, "world_size": config["dp"]}))  # our own texts
    except ZeroDivisionError:
        return False


def check(text: str, sizes: dict[str, int], config: dict[str, Any]) -> Report:
    class Actor(hf.Worker):
        def __init__(self, dp: int, micro: int, mini: int, n: int, cp: int, most: int) -> None: ...

        @register(Dispatch.THREE_D_PROTO)
        @hf.requires(text)
        def score(self, rows: Rows) -> Rows: ...

    def program(rows: Rows, actor: Actor) -> Rows:
        return actor.score(rows)

    program.__annotations__["actor"] = Actor
    dp = config["dp"]
    placed = hf.place(Actor, **config, pool=hf.ResourcePool([dp]), mesh=hf.Mesh(dp=dp))
    flow = hf.dataflow(program)
    return flow.check(hf.Deployment(actor=placed), dims={B: sizes["B"], P: sizes["P"], R: sizes["R"]})


configs = st.fixed_dictionaries(dict.fromkeys(("dp", "micro", "mini", "n", "cp"), small) | {"most": st.integers(1, 90)})


@pytest.mark.parametrize("text", FORMS)
@settings(max_examples=20)
@given(b=st.integers(1, 120), p=st.integers(1, 40), r=st.integers(1, 40), config=configs)
def test_a_requirement_is_what_python_says(text: str, b: int, p: int, r: int, config: dict[str, Any]) -> None:
    sizes = {"B": b, "P": p, "R": r}
    report = check(text, sizes, config)
    assert report.ok is works(text, sizes, config), str(report)
    assert report.warnings == ()
    offered = [m for f in report for line in f.help if (m := re.fullmatch(r"set (\w+) to ([\d or]+): .*", line))]
    for line in offered:
        for number in line[2].split(" or "):
            fixed = check(text, sizes | {line[1]: int(number)}, config)
            assert len(fixed.findings) < len(report.findings), f"{report}\n{fixed}"
    if "HF318" in report.codes:
        dim = re.findall(r"no size of (\w+)", str(report))[0]
        assert not any(works(text, sizes | {dim: n}, config) for n in range(1, 500))
    elif len(report.findings) == 1 and not offered:
        nearby = range(1, 60)
        assert not any(works(text, sizes | {dim: n}, config) for dim in sizes for n in nearby if dim in text)


def test_one_repair_satisfies_the_split_and_every_requirement() -> None:
    class Actor(hf.Worker):
        @register(Dispatch.THREE_D_PROTO)
        @hf.requires("B // 4 % 6 == 0", "B % (5 * 2) == 0", "B <= 500", "P + R <= 1024")
        def score(self, rows: Rows) -> Rows: ...

    def program(rows: Rows, actor: Actor) -> Rows:
        return actor.score(rows)

    program.__annotations__["actor"] = Actor
    flow, pool = hf.dataflow(program), hf.ResourcePool([4])
    deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
    findings = flow.check(deployment, dims={B: 502, P: 512, R: 600}).findings
    assert [finding.code for finding in findings] == ["HF310", "HF322", "HF322"]
    assert findings[0].help == findings[1].help == ("set B to 480: this then holds",)  # the lengths do not
    assert findings[2].help == ("set P to 424: this then holds", "set R to 512: this then holds")
    assert flow.check(deployment, dims={B: 480, P: 512, R: 512}).findings == ()


def test_a_conflict_needs_no_size() -> None:
    class Actor(hf.Worker):
        @register(Dispatch.DP_PROTO)
        @hf.requires("B <= 8", "B % 3 == 0")
        def score(self, rows: Rows) -> Rows: ...

    def program(rows: Rows, actor: Actor) -> Rows:
        return actor.score(rows)

    program.__annotations__["actor"] = Actor
    deployment = hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([16])))
    [finding] = hf.dataflow(program).check(deployment).errors
    assert finding.message == "no size of B satisfies all of this: 16 must divide B, B <= 8"


def test_a_count_that_a_config_makes_zero_divides_nothing() -> None:
    config = dict.fromkeys(("dp", "mini", "n", "cp", "most"), 1)
    report = check("B % (micro // 8) == 0", {"B": 8, "P": 1, "R": 1}, {**config, "micro": 1})
    assert report.codes == ("HF322",)


class Learner(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % 8 == 0", "B <= 2", "B * 3 != 9")
    def update(self, rows: Rows) -> None: ...


@hf.dataflow
def hiding(rows: Rows, learner: Learner) -> None:
    learner.update(learner.score(rows.id))  # type: ignore[attr-defined]  # the mistake
    learner.update()  # type: ignore[call-arg]  # and another


@pytest.mark.parametrize("sizes", [{B: 3}, {}])
def test_values_hidden_by_a_mistake_require_nothing(sizes: dict[Any, int]) -> None:
    assert hiding.check(dims=sizes).codes == ("HF201", "HF203")
