"""Types, choices and bounds of values, in the facts of the tables and in findings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.check.findings import Label
from hfdsl.graph.spans import Span
from hfdsl.interop.library_tables import table
from hfdsl.interop.reporting import Problem
from hfdsl.interop.settings import Configuration, Setting
from hfdsl.interop.value_types import ValueBounds, bounds_problem, choice_problem, type_problem

PLACE = Span("run.sh", 3, 1, 3, 9)


def configuration(value: object) -> Configuration:
    setting = Setting("key", value, PLACE, PLACE, "text")
    return Configuration("verl", {"key": 1}, {"key": setting}, Span("run.sh", 1))


def advice(problem: Problem | None) -> str:
    assert problem is not None
    assert problem.finding.code == "HF972"
    assert problem.finding.primary.span == PLACE
    return "; ".join(problem.finding.notes)


@pytest.mark.parametrize(
    ("value", "facts", "refused"),
    [
        (4, {"type": "int"}, False),
        (True, {"type": "int"}, False),
        (4.5, {"type": "int"}, True),
        (4, {"type": "float"}, False),
        ("4", {"type": "float"}, True),
        ([4], {"type": "int"}, True),
        (None, {"type": "int"}, True),
        (None, {"type": "int", "none": True}, False),
        ("any", {"choices": ["any"]}, False),
    ],
)
def test_types_are_those_with_which_python_computes(value: object, facts: dict[str, object], refused: bool) -> None:
    assert (type_problem(configuration(value), "key", facts) is not None) == refused


@given(st.integers(-5, 5), st.integers(-5, 5), st.booleans(), st.floats(-9, 9) | st.integers(-9, 9))
def test_bounds_hold_what_lies_between_them_and_the_nearest_is_one_of_it(
    low: int, more: int, is_open: bool, number: float
) -> None:
    bounds, high = ValueBounds(low, low + abs(more), open=is_open), low + abs(more)
    inside = number <= high and (number > low if is_open else number >= low)
    assert (number in bounds) == inside
    near = bounds.nearest(number)
    if not inside and near is not None and (not is_open or more):
        assert near in bounds
        assert abs(near - number) <= min(abs(low - number), abs(high - number))
    assert (bounds_problem(configuration(number), "key", bounds) is None) == inside


def test_a_finding_names_the_nearest_value() -> None:
    assert advice(type_problem(configuration(42.5), "key", {"type": "int"})) == "set key to 42"
    assert advice(bounds_problem(configuration(1.5), "key", ValueBounds(0, 1))) == "set key to 1"
    assert advice(bounds_problem(configuration(-3), "key", ValueBounds(0, open=True))) == ""
    problem = choice_problem(configuration("VANILLA"), "key", ["gspo", "vanilla"])
    assert advice(problem) == "set key to vanilla"
    assert problem is not None
    assert problem.finding.primary == Label(PLACE, "key = VANILLA")


@pytest.mark.parametrize("library", ["verl", "trl", "openrlhf"])
def test_the_defaults_of_a_library_have_the_types_of_its_table(library: str) -> None:
    library_table = table(library)
    kinds = {"int": int, "float": int | float}
    for keys in library_table.engines.values():
        for key, facts in library_table.options.items():
            value, kind = keys.get(key), facts.get("type")
            is_one = "values" not in facts and not isinstance(value, str)  # no list, and no interpolation
            if kind in kinds and value is not None and is_one:
                assert isinstance(value, kinds[kind]), key
