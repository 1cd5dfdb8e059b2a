"""The table of codes, the source, the explain pages and the documentation agree."""

from __future__ import annotations

import ast
import linecache
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.check.codes import CODES, explain
from hfdsl.check.report import Report
from hfdsl.errors import HfError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.interop.lowering import NotLowered
from hfdsl.interop.reading import Inputs
from hfdsl.interop.verl import reading as verl
from hfdsl.interop.verl.lowering import lower
from hfdsl.tools.interop import reports
from tests.check import prelude
from tests.check.pages import FOLDER, read

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"HF\d{3}")


@cache
def used() -> frozenset[str]:
    """The codes that stand as a string of their own in the package, outside of the table."""
    codes: set[str] = set()
    for file in (ROOT / "hfdsl").rglob("*.py"):
        text = file.read_text("utf-8")
        if file.name == "codes.py" or not CODE.search(text):
            continue
        strings = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        codes |= {text for text in strings if isinstance(text, str) and CODE.fullmatch(text)}
    return frozenset(codes)


def test_every_code_in_the_source_is_in_the_table() -> None:
    assert sorted(used() - set(CODES)) == []


def test_every_code_in_the_table_is_in_the_source() -> None:
    assert sorted(set(CODES) - used()) == []


def test_the_table_is_in_order() -> None:
    assert list(CODES) == sorted(CODES)


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert sorted(page.stem for page in FOLDER.glob("*.md")) == sorted(CODES)


@pytest.mark.parametrize("code", CODES)
def test_a_page_has_the_title_of_its_code(code: str) -> None:
    text = explain(code.lower())
    assert text is not None
    assert text.splitlines()[0] == f"# {code}: {CODES[code].title}" == read(code).title
    assert 10 <= len(text.splitlines()) <= 32
    assert max(map(len, text.splitlines())) <= 120


def test_there_is_no_page_of_an_unknown_code() -> None:
    assert explain("HF000") is None


@pytest.mark.parametrize("code", CODES)
def test_the_wrong_snippet_shows_the_code_and_the_right_one_does_not(code: str, tmp_path: Path) -> None:
    page = read(code)
    if page.language in LIBRARIES_OWN:
        suffix = LIBRARIES_OWN[page.language]
        codes_of = lowering_codes if code in OF_LOWERING else interop_codes
        assert not page.runs or codes_of(page.wrong, suffix, tmp_path) == {code}, page.wrong
        assert codes_of(page.right, suffix, tmp_path) == set() or not page.runs, page.right
    elif page.runs:
        assert outcome(page.wrong, code) == {code}, page.wrong
        assert outcome(page.right, code) == set(), page.right
    else:
        parse = tomllib.loads if page.language == "toml" else ast.parse
        parse(page.wrong)
        parse(page.right)


LIBRARIES_OWN = {"bash": ".sh", "yaml": ".yaml"}
"""The languages in which other libraries are configured, and their files."""


OF_LOWERING = ("HF981", "HF982")
"""The codes of configurations that are right, and have no counterpart in hfdsl."""


def lowering_codes(snippet: str, suffix: str, folder: Path) -> set[str]:
    """The codes that a plan of another library's configuration shows."""
    (folder / f"run{suffix}").write_text(snippet, "utf-8")
    codes_found = set[str]()
    for reading in verl.read(Inputs(str(folder / f"run{suffix}"))):
        try:
            lower(reading.configuration)
        except NotLowered as error:
            codes_found.add(error.code)
    return codes_found


def interop_codes(snippet: str, suffix: str, folder: Path) -> set[str]:
    """The codes that a check of another library's configuration finds."""
    file = folder / f"run{suffix}"
    file.write_text(snippet, "utf-8")
    try:
        library = next((name for name in ("openrlhf", "nemo-rl") if name in snippet), "verl")
        return {code for report in reports(str(file), library) for code in report.codes}
    except HfError as error:
        return {error.code}


def outcome(snippet: str, code: str) -> set[str]:
    """The codes that a snippet raises, or that a check of its dataflow finds with its ``deployment`` and ``dims``."""
    try:
        names = run(snippet, code)
    except HfError as error:
        return {error.code}
    except AssertionError:
        return {code}  # a page that shows its mistake by an assertion
    reports = [
        flow.check(names.get("deployment"), names.get("dims", {}), names.get("cluster")) for flow in flows(names)
    ]
    reports += [value.check() for value in names.values() if isinstance(value, hf.Experiment)]
    return {code for report in reports for code in report.codes}


def run(snippet: str, code: str) -> dict[str, Any]:
    """The names that a snippet makes; its text is where messages look for it."""
    file = f"<{code}.md, {hash(snippet)}>"
    linecache.cache[file] = (len(snippet), None, snippet.splitlines(keepends=True), file)
    names: dict[str, Any] = {name: getattr(prelude, name) for name in prelude.__all__} | {"__name__": prelude.__name__}
    exec(compile(snippet, file, "exec"), names)  # noqa: S102  # our own pages
    return names


def flows(names: dict[str, Any]) -> list[Dataflow[Any, Any]]:
    return [value for value in names.values() if isinstance(value, Dataflow)]


def test_the_documentation_lists_all_codes() -> None:
    text = (ROOT / "docs" / "diagnostics.md").read_text("utf-8")
    rows = re.findall(r"^\| (HF\d{3}) \| (\w+) \| (.*?) \|$", text, re.MULTILINE)
    assert rows == [(name, code.severity, code.title) for name, code in CODES.items()]


def test_a_report_knows_the_severity_of_its_codes() -> None:
    assert {code.severity for code in CODES.values()} == {"error", "warning"}
    assert Report("empty").ok
