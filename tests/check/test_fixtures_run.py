"""For every code that no check reports: a program that raises it where it is run, and the same program mended."""

from __future__ import annotations

import ast
import re

import pytest

from hfdsl.check.codes import CODES
from tests.check.raising import BAD, FIXTURES, GOOD, raised, run, shown
from tests.check.test_fixtures import BAD as REPORTED
from tests.check.test_messages import expected, steady

ON_RAY = ("hf520", "hf521", "hf522", "hf801")  # what the local backend cannot show


def split(names: list[str], *, on_ray: bool) -> list[str]:
    return [name for name in names if name.startswith(ON_RAY) is on_ray]


def test_every_code_has_a_failing_program_and_its_twin() -> None:
    assert {name[:5].upper() for name in (*REPORTED, *BAD)} == set(CODES)
    assert {name.removesuffix("_bad") for name in BAD} == {name.removesuffix("_good") for name in GOOD}


def test_a_code_that_a_check_reports_is_shown_by_a_check() -> None:
    assert {name[:5] for name in BAD} & {name[:5] for name in REPORTED} == set()


@pytest.mark.parametrize("name", BAD)
def test_the_twin_differs_by_the_fix(name: str) -> None:
    bad, good = (ast.parse((FIXTURES / f"{stem}.py").read_text("utf-8")) for stem in (name, f"{name[:-3]}good"))
    assert ast.get_docstring(good) == f"The same, mended: {ast.get_docstring(bad)}"
    assert ast.dump(good) != ast.dump(bad)
    kept = [ast.dump(statement) for statement in bad.body[1:] if ast.dump(statement) in map(ast.dump, good.body)]
    assert len(kept) >= len(bad.body) - 4  # the docstring, and three more at most


def holds_at_the_mark(name: str) -> None:
    """The code, the whole text, and the marked line: where the program stands, or the line of a body that is named."""
    error = raised(name)
    lines = (FIXTURES / f"{name}.py").read_text("utf-8").splitlines()
    [marked] = [n for n, line in enumerate(lines, 1) if line.endswith("# <-")]
    text, file = steady(shown(error)), rf"check/fixtures_run/{name}\.py"
    assert error.code == name[:5].upper(), text
    assert re.search(rf'{file}(:|", line ){marked}\b', text), text
    assert text == expected(name.removesuffix("_bad"), text)


@pytest.mark.parametrize("name", split(BAD, on_ray=False))
def test_the_failing_program_raises_its_code_at_the_marked_line(name: str) -> None:
    holds_at_the_mark(name)


@pytest.mark.parametrize("name", split(BAD, on_ray=True))
def test_the_failing_program_raises_its_code_on_ray(name: str, ray_cluster: object) -> None:
    holds_at_the_mark(name)


@pytest.mark.parametrize("name", split(GOOD, on_ray=False))
def test_the_mended_program_runs(name: str) -> None:
    run(name)


@pytest.mark.parametrize("name", split(GOOD, on_ray=True))
def test_the_mended_program_runs_on_ray(name: str, ray_cluster: object) -> None:
    run(name)
