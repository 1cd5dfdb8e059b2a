"""What is public stands in one table, docs/public.md; the documentation and the examples use nothing else."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "hfdsl/check/explain").glob("*.md")]
EXAMPLES = list((ROOT / "examples").rglob("*.py"))
INTERNAL = {"architecture.md", "data-plane.md", "CHANGELOG.md"}
"""Pages that also cover names that are not public."""

IMPORT = re.compile(r"^ *(?:from hfdsl[\w.]* import (?:\([^)]*\)|[^\n(]+)|import hfdsl[^\n]*)", re.MULTILINE)

Name = tuple[str, str]
"""A module, and a name in it; "" is the module itself."""


def defined(module: ModuleType) -> list[str]:
    """The names that ``*`` stands for."""
    defined_here = [
        name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__
    ]
    return list(getattr(module, "__all__", None) or [name for name in defined_here if not name.startswith("_")])


def table() -> set[Name]:
    """Every public name."""
    rows = re.findall(r"^\| `(hfdsl[\w.]*)` \| (.*) \|$", (ROOT / "docs/public.md").read_text("utf-8"), re.MULTILINE)
    public = {(module, "") for module, _ in rows}
    for module, cells in rows:
        names = re.findall(r"`([\w*]+)`", cells)
        public |= {(module, name) for name in (defined(importlib.import_module(module)) if names == ["*"] else names)}
    return public


def imported(text: str) -> Iterator[Name]:
    """What a program imports of hfdsl."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "hfdsl":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "hfdsl")


def mentioned(page: str) -> Iterator[Name]:
    """What the blocks of a page import, and what its lines call by a dotted name."""
    for language, block in re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE):
        if language == "python":
            lines = re.findall(
                r"^ *(?:from hfdsl[\w.]* import (?:\([^)]*\)|[^\n(]+)|import hfdsl[^\n]*)", block, re.MULTILINE
            )
            for line in lines:
                yield from imported(textwrap.dedent(line).strip())
    for module, _, name in (text.rpartition(".") for text in re.findall(r"`(hfdsl\.[\w.]+\w)(?:`|\()", page)):
        yield module, name


def is_public(name: Name, public: set[Name]) -> bool:
    """Whether the table has it, or it is a module or package that the table has names of."""
    dotted = ".".join(filter(None, name))
    return name in public or any(module == dotted or module.startswith(f"{dotted}.") for module, _ in public)


def test_every_public_name_is_there() -> None:
    missing = {
        (module, name) for module, name in table() if name and not hasattr(importlib.import_module(module), name)
    }
    assert missing == set()


def test_all_of_hfdsl_is_public() -> None:
    import hfdsl as hf

    assert {name for module, name in table() if module == "hfdsl" and name} == set(hf.__all__)


@pytest.mark.parametrize("file", [*PAGES, *EXAMPLES], ids=lambda file: str(file.relative_to(ROOT)))
def test_pages_and_examples_use_public_names_alone(file: Path) -> None:
    text, public = file.read_text("utf-8"), table()
    used = set(imported(text) if file.suffix == ".py" else mentioned(text) if file.name not in INTERNAL else ())
    private = {name for name in used if not is_public(name, public)}
    assert private == set(), "add these to docs/public.md, or do without them"


def test_another_name_is_found() -> None:
    page = "Call `hfdsl.plan.rows.rows(x)`.\n```python\nfrom hfdsl.plan.routes import (\n    routes,\n)\nx = ?\n```\n"
    assert set(mentioned(page)) == {("hfdsl.plan.rows", "rows"), ("hfdsl.plan.routes", "routes")}
    assert set(imported("import hfdsl.plan.rows\nfrom hfdsl import repeat")) == {
        ("hfdsl.plan.rows", ""),
        ("hfdsl", "repeat"),
    }
    assert not any(is_public(name, table()) for name in [("hfdsl.plan.routes", "routes"), ("hfdsl.plan.rows", "")])
    assert is_public(("hfdsl", "repeat"), table())
    assert is_public(("hfdsl.rl", "workers"), table())


def test_every_public_function_has_an_example() -> None:
    functions = {
        getattr(importlib.import_module(module), name) for module, name in table() if is_function(module, name)
    }
    without = {f"{function.__module__}:{function.__name__}" for function in functions if not has_example(function)}
    assert without == set()


def has_example(function: FunctionType) -> bool:
    return ">>>" in (function.__doc__ or "")


def is_function(module: str, name: str) -> bool:
    return bool(name) and inspect.isfunction(getattr(importlib.import_module(module), name))
