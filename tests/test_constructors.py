"""A constructor of more than five fields is called by keyword: two fields of one type cannot be swapped unseen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def classes(tree: ast.AST) -> dict[str, int]:
    """The classes of a module with the number of fields of each."""
    return {node.name: fields(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def called_by_position(tree: ast.AST, large: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the class of every call that gives more than ``MOST`` arguments by position."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in large and len(node.args) > MOST:
                yield node.lineno, name


def test_large_constructors_are_called_by_keyword() -> None:
    trees = {file: ast.parse(file.read_text("utf-8")) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    package = {file: classes(tree) for file, tree in trees.items() if file.is_relative_to(ROOT / "hfdsl")}
    large = {name for counts in package.values() for name, count in counts.items() if count > MOST}
    assert len(large) > 50
    calls = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file, tree in trees.items()
        for line, name in called_by_position(tree, large - {n for n, count in classes(tree).items() if count <= MOST})
    ]
    assert calls == [], "\n".join(["give these fields by keyword:", *calls])


CLASS = "@dataclass(frozen=True)\nclass Point:\n" + "".join(f"    {name}: int\n" for name in "abcdef")


@pytest.mark.parametrize(
    ("call", "lines"),
    [("Point(1, 2, 3, 4, 5, 6)", [10]), ("m.Point(1, 2, 3, 4, *rest, 6)", [10]), ("Point(1, 2, 3, 4, 5, f=6)", [])],
)
def test_a_call_by_position_is_found(call: str, lines: list[int]) -> None:
    tree = ast.parse(f"{CLASS}    fixed: ClassVar[int]\n{call}\n")
    assert classes(tree) == {"Point": 6}
    assert [line for line, _ in called_by_position(tree, {"Point"})] == lines
