"""What plain type checkers report of a dataflow, a check reports on the same line; what it does not is argued here."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hfdsl as hf
from tests.check.fixture_programs import FIXTURES
from tests.typing.checkers import CASES, PROGRAMS, said_by

CHECKERS = ("mypy", "pyright")
pytestmark = pytest.mark.xdist_group("checkers")  # one process: each checker is asked once

# Lines that a type checker refuses and a check does not, with the reason.
ARGUED = {
    # a check names the declaration that is wrong; a type checker each use of it
    ("hf102.py", "actor.score(prompts.ids)"): "the column it is wired to has no dtype: reported there",
    ("hf104_result.py", "return centre(actor.score(prompts))"): "the method has no result type: reported there",
    ("hf108_record.py", "values: hf.f32[B, n]"): "reported at the record that has the column",
    ("hf121.py", "return reward.score(prompts)"): "the method is a coroutine: reported there",
    ("hf121_generator.py", "return reward.score(prompts)"): "the method is a generator: reported there",
    ("hf109.py", "return actor.score(prompts)"): "the annotation of the port is not readable: reported there",
    # Python's own
    ("wirings.py", "result: Rollout = prompts"): "an annotated name is never wired anywhere",
}


def plain(file: str, first: int, last: int) -> dict[int, str]:
    """The lines of a piece of a program that mypy or pyright refuses, with their code."""
    lines = (CASES / file if (CASES / file).exists() else FIXTURES / file).read_text("utf-8").splitlines()
    reported = {line for checker in CHECKERS for line in said_by(checker).get(file, {}) if first <= line <= last}
    code = {line: lines[line - 1].partition("  # ")[0].strip() for line in reported}
    return {line: text for line, text in code.items() if (file, text) not in ARGUED}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # annotations are text: they are looked up there
    spec.loader.exec_module(module)
    return module


def reported_lines(report: hf.Report) -> set[int]:
    return {finding.primary.span.line for finding in report}


@pytest.mark.parametrize("name", sorted(file.stem for file in FIXTURES.glob("*.py")))
def test_a_check_says_of_a_fixture_what_checkers_say(name: str) -> None:
    lines = (FIXTURES / f"{name}.py").read_text("utf-8").splitlines()
    report: hf.Report = importlib.import_module(f"tests.check.fixtures.{name}").report()
    assert set(plain(f"{name}.py", 1, len(lines))) <= reported_lines(report), str(report)


SOLVED_WHERE_IT_IS_CHECKED = {"hf213": "no type checker solves the factor of a product"}
"""Mended programs that mypy refuses, with the reason."""


def test_mypy_finds_nothing_in_a_mended_program() -> None:
    refused = {name for _, name in PROGRAMS if f"{name}_mended.py" in said_by("mypy")}
    assert refused == set(SOLVED_WHERE_IT_IS_CHECKED), said_by("mypy")


def test_a_check_says_of_every_dataflow_what_checkers_say() -> None:
    module, tree = load(CASES / "wirings.py"), ast.parse((CASES / "wirings.py").read_text("utf-8"))
    flows = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    flows = [node for node in flows if isinstance(getattr(module, node.name), hf.Dataflow)]
    missed = {
        text
        for node in flows
        for line, text in plain("wirings.py", node.lineno, node.end_lineno or node.lineno).items()
        if line not in reported_lines(getattr(module, node.name).check())
    }
    assert len(flows) > 35
    assert missed == set()


def one_at_a_time() -> Iterator[tuple[int, str]]:
    """The dataflow of ``mistakes.py`` with each of its mistakes alone, without that of a body which a check finds."""
    lines = (CASES / "mistakes.py").read_text("utf-8").partition("@hf.dataflow\ndef nothing")[0].splitlines()
    start = lines.index(next(line for line in lines if line.startswith("def mistakes(")))
    mended = {', pad="last"': "", "(rows=8)": "", "return RefLogProbs()": "raise NotImplementedError"}
    head = lines[:start]
    for mistake, right in mended.items():
        head = [line.replace(mistake, right) for line in head]
    lines = head + lines[start:]
    marked = [i for i, line in enumerate(lines) if i > start and "# E: " in line]
    for marked_line in marked:
        yield (
            marked_line + 1,
            "\n".join(without(line) if i in marked and i != marked_line else line for i, line in enumerate(lines)),
        )


def without(line: str) -> str:
    code = line.partition("  # E: ")[0].strip()
    replacement = (
        "return scores" if code.startswith("return") else "for column in ():" if code.endswith(":") else "pass"
    )
    return line[: len(line) - len(line.lstrip())] + replacement


def test_a_check_says_of_every_mistake_alone_what_checkers_say(tmp_path: Path) -> None:
    refused, missed = plain("mistakes.py", 1, 10_000), {}
    programs = list(one_at_a_time())
    for line, text in programs:
        path = tmp_path / f"mistake_{line}.py"
        path.write_text(text, "utf-8")
        report: hf.Report = load(path).mistakes.check()
        assert {finding.primary.span.line for finding in report.errors} <= {line}, str(report)
        if line in refused and line not in reported_lines(report):
            missed[line] = refused[line]
    assert len(programs) > 35
    assert missed == {}


def test_every_argument_is_about_a_line_that_is_refused() -> None:
    for file, text in ARGUED:
        lines = (CASES / file if (CASES / file).exists() else FIXTURES / file).read_text("utf-8").splitlines()
        [line] = [n for n, written in enumerate(lines, 1) if written.partition("  # ")[0].strip() == text]
        assert any(line in said_by(checker).get(file, {}) for checker in CHECKERS), (file, text)
