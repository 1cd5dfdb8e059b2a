"""A constructor of more than five fields is called by keyword: two fields of one type cannot be swapped unseen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("hfdsl", "tests", "benchmarks", "examples")
MOST = 5
"""Arguments that a call may give by position."""


def fields(definition: ast.ClassDef) -> int:
    """How many fields a dataclass or named tuple declares itself; 0 for any other class."""
    decorators = [ast.unparse(decorator) for decorator in definition.decorator_list]
    is_dataclass = any(text.partition("(")[0].endswith("dataclass") for text in decorators)
    if not is_dataclass and "NamedTuple" not in map(ast.unparse, definition.bases):
        return 0
    annotated = [statement for statement in definition.body if isinstance(statement, ast.AnnAssign)]
    return sum(
        "ClassVar" not in ast.unparse(statement.annotation)
        and not (statement.value and "init=False" in ast.unparse(statement.value))
        for statement in annotated
    )


def read(text: str) -> tuple[dict[str, int], list[tuple[int, str]]]:
    """The classes of a module with the number of fields of each, and the calls with more than ``MOST`` by position."""
    counts, calls = dict[str, int](), list[tuple[int, str]]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            counts[node.name] = fields(node)
        elif isinstance(node, ast.Call) and len(node.args) > MOST and isinstance(node.func, ast.Name | ast.Attribute):
            calls.append((node.lineno, node.func.id if isinstance(node.func, ast.Name) else node.func.attr))
    return counts, calls


def test_large_constructors_are_called_by_keyword() -> None:
    modules = {file: read(file.read_text("utf-8")) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    package = [counts for file, (counts, _) in modules.items() if file.is_relative_to(ROOT / "hfdsl")]
    large = {name for counts in package for name, count in counts.items() if count > MOST}
    assert len(large) > 50
    calls = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file, (counts, by_position) in modules.items()
        for line, name in by_position
        if name in large and counts.get(name, MOST + 1) > MOST
    ]
    assert calls == [], "\n".join(["give these fields by keyword:", *calls])


CLASS = "@dataclass(frozen=True)\nclass Point:\n" + "".join(f"    {name}: int\n" for name in "abcdef")


@pytest.mark.parametrize(
    ("call", "lines"),
    [("Point(1, 2, 3, 4, 5, 6)", [10]), ("m.Point(1, 2, 3, 4, *rest, 6)", [10]), ("Point(1, 2, 3, 4, 5, f=6)", [])],
)
def test_a_call_by_position_is_found(call: str, lines: list[int]) -> None:
    counts, calls = read(f"{CLASS}    fixed: ClassVar[int]\n{call}\n")
    assert counts == {"Point": 6}
    assert calls == [(line, "Point") for line in lines]
