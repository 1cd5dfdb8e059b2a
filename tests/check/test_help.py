"""A help line is a change that was made and checked again; all other advice is a note."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hfdsl
from hfdsl.check.context import Change, Tester
from hfdsl.check.findings import Finding
from hfdsl.check.repair import suggestions
from hfdsl.check.repair.suggestions import Suggestion, with_help
from hfdsl.check.repair.trials import Trials
from hfdsl.check.report import Report
from tests.check.test_fixtures import NAMES, checked
from tests.corpus.table import programs

ROOT = Path(hfdsl.__file__).parent
MAKES = {ROOT / "check" / "repair" / "suggestions.py", ROOT / "interop" / "reporting.py"}
"""Of programs of hfdsl, and of configurations of other libraries (tried in tests/interop)."""

PASS_ON = {
    ROOT / "check" / "raised.py",
    ROOT / "check" / "sizes" / "multiple_sizes.py",
    ROOT / "interop" / "lowered_runs.py",
    ROOT / "tools" / "fixing.py",
}
"""Those that pass on findings: of several sizes, of an error, of another library's run without lines, and of another
process."""

REPORTS: dict[str, Callable[[], Report]] = {name: (lambda name=name: checked(name)) for name in NAMES} | {
    program.file.stem: program.experiment.check for program in programs()
}


def gives_help(file: Path) -> Iterator[int]:
    """The lines of the calls that give a finding its help: by name, or as the sixth of its fields."""
    position = list(Finding.__dataclass_fields__).index("help")
    text = file.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if "Finding(" in text or "help=" in text else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        named = any(keyword.arg in ("help", None) for keyword in node.keywords)
        is_finding = node.func.id == "Finding" and (named or len(node.args) > position)
        if is_finding or (node.func.id == "replace" and any(keyword.arg == "help" for keyword in node.keywords)):
            yield node.lineno


def test_one_function_makes_help_lines() -> None:
    counts = {file: len(list(gives_help(file))) for file in ROOT.rglob("*.py")}
    assert {file for file, count in counts.items() if count} == MAKES | PASS_ON
    assert {counts[file] for file in MAKES} == {1}


@pytest.mark.parametrize("name", REPORTS)
def test_every_help_line_was_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[Change] = []
    changes_of: dict[str, tuple[Change, ...]] = {}
    removes = Trials.removes

    def watched(self: Trials, finding: Finding, change: Change) -> bool:
        if works := removes(self, finding, change):
            worked.append(change)
        return works

    def noting(tester: Tester, finding: Finding, suggestions: Iterator[Suggestion], most: int | None = None) -> Finding:
        used = []

        def passed() -> Iterator[Suggestion]:
            for suggestion in suggestions:
                used.append(suggestion)
                yield suggestion

        helped = with_help(tester, finding, passed(), most)
        changes = tuple(change for suggestion in used for change in suggestion.changes)
        changes_of.update(dict.fromkeys(helped.help[len(finding.help) :], changes))
        return helped

    monkeypatch.setattr(Trials, "removes", watched)
    monkeypatch.setattr(suggestions, "with_help", noting)
    for line in (line for finding in REPORTS[name]() for line in finding.help):
        assert any(change in worked and change.words in line for change in changes_of[line]), line
