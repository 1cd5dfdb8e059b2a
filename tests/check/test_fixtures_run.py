"""For every code that no check reports: a program that raises it where it is run, and the same program mended."""

from __future__ import annotations

import ast
import re

import pytest

from hfdsl.check.codes import CODES
from tests.check.fixture_programs import FIXTURES_RUN, config_names, marked_line, mended, mended_folder
from tests.check.pages import read
from tests.check.raising import NAMES, raised, run, shown
from tests.check.test_fixtures import NAMES as REPORTED
from tests.check.test_messages import expected, steady

pytestmark = pytest.mark.usefixtures("forked_engines")

ON_RAY = ("hf520", "hf521", "hf522", "hf801", "hf840", "hf842", "hf930", "hf931")  # what the local backend cannot show


LOCAL = [name for name in NAMES if not name.startswith(ON_RAY)]
RAY = [name for name in NAMES if name.startswith(ON_RAY)]


OF_TOOLS = {"HF992", "HF993"}
"""Findings of tools themselves, which no program raises: ``tests/tools/test_mcp.py``."""


def test_every_code_has_a_failing_program() -> None:
    """Or, of configurations of other libraries, a page whose snippets are checked (``test_codes``)."""
    shown_by_page = {code for code in CODES if read(code).language in ("bash", "yaml")}
    programs = {name[:5].upper() for name in (*REPORTED, *NAMES, *config_names())}
    assert programs | shown_by_page | OF_TOOLS == set(CODES)
    assert not programs & OF_TOOLS


def test_a_code_that_a_check_reports_is_shown_by_a_check() -> None:
    assert {name[:5] for name in NAMES} & {name[:5] for name in REPORTED} == set()


@pytest.mark.parametrize("name", NAMES)
def test_the_mended_program_differs_by_the_fix(name: str) -> None:
    text = (FIXTURES_RUN / f"{name}.py").read_text("utf-8")
    bad, good = ast.parse(text), ast.parse(mended(text))
    assert ast.get_docstring(bad)
    assert ast.dump(good) != ast.dump(bad)
    common = [ast.dump(statement) for statement in bad.body if ast.dump(statement) in map(ast.dump, good.body)]
    assert len(common) >= len(bad.body) - 3


def holds_at_the_mark(name: str) -> None:
    """The code, the whole text, and the marked line: where the program stands, or the line of a body that is named."""
    error = raised(name)
    marked = marked_line(FIXTURES_RUN / f"{name}.py")
    text, file = steady(shown(error)), rf"check/fixtures_run/{name}\.py"
    assert error.code == name[:5].upper(), text
    assert re.search(rf'{file}(:|", line ){marked}\b', text), text
    assert text == expected(name, text)


@pytest.mark.parametrize("name", LOCAL)
def test_the_failing_program_raises_its_code_at_the_marked_line(name: str) -> None:
    holds_at_the_mark(name)


@pytest.mark.parametrize("name", RAY)
def test_the_failing_program_raises_its_code_on_ray(name: str, ray_cluster: object) -> None:
    holds_at_the_mark(name)


@pytest.mark.parametrize("name", LOCAL)
def test_the_mended_program_runs(name: str) -> None:
    run(mended_folder(FIXTURES_RUN) / f"{name}.py")


@pytest.mark.nightly
@pytest.mark.parametrize("name", RAY)
def test_the_mended_program_runs_on_ray(name: str, ray_cluster: object) -> None:
    run(mended_folder(FIXTURES_RUN) / f"{name}.py")
