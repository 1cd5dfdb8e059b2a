"""check_placements: silent where placements agree; else it names the node, the column, the row and both placements."""

from __future__ import annotations

from math import copysign, isnan
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import RoleError
from hfdsl.testing import DivergedError, check_placements
from hfdsl.testing.compare import first_difference
from tests.testing import placement_programs as p


def test_placements_that_agree_pass() -> None:
    within = {"actor.update": 1e-6}  # a mean of means adds up in another order
    check_placements(
        p.program, [p.deployment(1), p.deployment(2), p.deployment(4)], p.batch(), p.batch(8), tolerance=within,
        on=("eager", "local"),
    )  # fmt: skip  # one argument a thought


def test_the_first_node_that_differs_is_named() -> None:
    with pytest.raises(DivergedError) as failure:
        check_placements(
            p.program,
            {"alone": p.deployment(1, wrong=True), "split": p.deployment(2, wrong=True)},
            p.batch(),
            on=("local",),
        )
    divergence = failure.value.divergence
    assert (divergence.node, divergence.difference.column, divergence.difference.row) == ("critic.values", "values", 1)
    lines = str(failure.value).splitlines()
    assert lines[0].startswith("'program' has other values in step 0, first in 'critic.values' (")
    assert lines[0].endswith("placement_programs.py:63): column 'values', row 1")
    assert lines[1].startswith("  local, 'alone'  [1] -0.")
    assert lines[2].startswith("  local, 'split'  [1] 0.")


def test_an_error_says_under_which_placement() -> None:
    with pytest.raises(RoleError, match="no values here") as failure:
        check_placements(p.program, [p.deployment(2, raises=True)], p.batch(), on=("eager", "local"))
    assert failure.value.__notes__ == [
        "on local, 'deployments[0]: actor Mesh(pp=1 dp=2 tp=1), critic Mesh(pp=1 dp=2 tp=1)'"
    ]


@pytest.mark.nightly
def test_on_ray(ray_cluster: Any) -> None:
    check_placements(p.program, [p.deployment(2)], p.batch(6), tolerance={"actor.update": 1e-6})
    with pytest.raises(DivergedError, match=r"(?s)'critic.values'.*eager.*ray, 'wrong'"):
        check_placements(p.program, {"wrong": p.deployment(2, wrong=True)}, p.batch(6), on=("eager", "ray"))


FLOATS = st.floats(width=32)


@given(st.lists(st.lists(FLOATS, min_size=2, max_size=2), min_size=1, max_size=4), st.data())
def test_bits_are_compared(rows: list[list[float]], data: st.DataObject) -> None:
    values = torch.tensor(rows)
    assert first_difference(p.Values(values=values), p.Values(values=values.clone())) is None
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 1))
    changed, value = values.clone(), data.draw(FLOATS)
    changed[row, column] = value
    was = rows[row][column]
    same = (isnan(was) and isnan(value)) or (was == value and copysign(1, was) == copysign(1, value))
    difference = first_difference(p.Values(values=values), p.Values(values=changed))
    assert (difference is None) is same
    assert difference is None or (difference.column, difference.row) == ("values", row)


@pytest.mark.parametrize(
    ("expected", "other", "where", "values"),
    [
        (hf.Obj(["a", "b"]), hf.Obj(["a", "c"]), "row 1", ("'b'", "'c'")),
        (hf.Obj(["a"]), hf.Obj(["a", "c"]), "the value", ("1 rows", "2 rows")),
        (hf.i64([torch.tensor([1])]), hf.i64([torch.tensor([1, 2])]), "row 0", ("1", "2")),
        (hf.PerRank([1, 2]), hf.PerRank([1, 3]), "entry 1", ("2", "3")),
        ({"w": torch.ones(2)}, {"w": torch.tensor([1.0, 2.0])}, "column 'w', row 1", ("1.0", "2.0")),
        (torch.ones(2), torch.ones(3), "the value", ("torch.float32 [2]", "torch.float32 [3]")),
        (1.0, float("nan"), "the value", ("1.0", "nan")),
        (None, hf.f32(torch.ones(1)), "the value", ("absent", "tensor([1.])")),
    ],
)
def test_where_values_differ(expected: Any, other: Any, where: str, values: tuple[str, str]) -> None:
    difference = first_difference(expected, other)
    assert difference is not None
    assert (str(difference), (difference.expected, difference.actual)) == (where, values)
    assert first_difference(expected, expected) is None


def test_a_tolerance_grows_with_the_numbers() -> None:
    assert first_difference(torch.tensor([1000.0]), torch.tensor([1000.5]), 1e-3) is None
    assert first_difference(torch.tensor([0.0]), torch.tensor([0.5]), 1e-3) is not None
    assert first_difference(1000.0, 1000.5, 1e-3) is None
