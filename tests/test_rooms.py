"""A room imports only rooms before it, no file is part of an import circle, and early rooms load no heavy library."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hfdsl"
ROOT = ""  # hfdsl/__init__.py

ORDER = (
    "types",
    "protocols",
    "graph",
    "deploy",
    "check",
    "plan",
    "single_controller",
    "runtime",
    "rl",
    "interop",
)

# What a room may import beside itself. Testing and tools may use all, and only each other use them.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    **{room: frozenset({"errors", *ORDER[:place]}) for place, room in enumerate(ORDER)},
    "single_controller": frozenset({"errors", "types", "protocols"}),
    "rl": frozenset({ROOT, "errors", *ORDER[:-2]}),  # ready-made programs are written as a user would write them
    "testing": frozenset({ROOT, "errors", "tools", *ORDER}),
    "tools": frozenset({ROOT, "errors", "testing", *ORDER}),
    ROOT: frozenset({"errors", *ORDER}),
}

# Imports inside a function that reach upwards: a method of an early room that hands over to a later one.
UPWARD = {
    "graph/dataflow.py": {"check", "plan"},
    "plan/compiled.py": {"runtime", "tools"},
}

HEAVY = {"torch", "ray", "networkx", "numpy"}
LIGHT = {ROOT, "errors", "types", "protocols", "graph", "deploy", "check", "plan"}


@dataclass(frozen=True)
class Import:
    line: int
    target: str  # "hfdsl.types.dims", "torch.nn"
    in_function: bool


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports(node: ast.AST, package: str, in_function: bool = False) -> Iterator[Import]:
    """Every import under ``node`` that happens at run time; ``package`` is what a leading dot stands for."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=test) if is_type_checking(test):
                for statement in child.orelse:
                    yield from imports(ast.Module([statement], []), package, in_function)
            case ast.Import():
                for alias in child.names:
                    yield Import(child.lineno, alias.name, in_function)
            case ast.ImportFrom():
                above = package.split(".")[: package.count(".") + 2 - child.level] if child.level else []
                base = ".".join([*above, *([child.module] if child.module else [])])
                # "from hfdsl import types" may name a room or a name of hfdsl/__init__.py: keep both parts.
                for alias in child.names:
                    yield Import(child.lineno, f"{base}.{alias.name}", in_function)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(child.lineno, name, in_function)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from imports(child, package, in_function=True)
            case _:
                yield from imports(child, package, in_function)


def room_of(path: str) -> str:
    """The room of a file, from its path inside the package: "types", "errors", or ROOT."""
    first = path.partition("/")[0].removesuffix(".py")
    return {"__init__": ROOT, "__main__": "tools"}.get(first, first)


def room_named(target: str, rooms: set[str]) -> str | None:
    """The room that an import loads, or None where it is not hfdsl's."""
    package, _, rest = target.partition(".")
    if package != "hfdsl":
        return None
    first = rest.split(".")[0]
    return first if first in rooms else ROOT


def violations(path: str, source: str) -> list[str]:
    """What a module does against the rules; ``path`` is relative to the package."""
    room = room_of(path)
    if room not in ALLOWED:
        return [f"{path}: '{room}' is not a room; give it a place in ALLOWED"]
    package = ".".join(["hfdsl", *path.split("/")[:-1]])
    excused = {target for prefix, targets in UPWARD.items() if path.startswith(prefix) for target in targets}
    errors = []
    for item in imports(ast.parse(source), package):
        target = room_named(item.target, set(ALLOWED))
        if target is None:
            library = item.target.split(".")[0]
            if library in HEAVY and room in LIGHT and not item.in_function:
                errors.append(f"{path}:{item.line}: loads {library} when it is imported")
        elif target not in ALLOWED[room] | {room} and not (item.in_function and target in excused):
            name = target or "the root"
            errors.append(f"{path}:{item.line}: {room or 'the root'} may not import {name} ({item.target})")
    return errors


@pytest.mark.parametrize("path", sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py")))
def test_module_keeps_the_order_of_rooms(path: str) -> None:
    assert not violations(path, (PACKAGE / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("types/dims.py", "from hfdsl.graph.trace import Node", 1),
        ("types/dims.py", "from hfdsl import graph", 1),
        ("types/dims.py", "from hfdsl import Batch", 1),
        ("types/dims.py", "import hfdsl.plan", 1),
        ("types/dims.py", "from ..graph import trace", 1),
        ("types/__init__.py", "from ..graph import trace", 1),
        ("types/dims.py", "from .. import graph", 1),
        ("types/dims.py", "class A:\n    import hfdsl.graph", 2),
        ("types/dims.py", "def f():\n    from hfdsl.check import run", 2),
        ("types/dims.py", "def f():\n    return importlib.import_module('hfdsl.check')", 2),
        ("types/dims.py", "try:\n    import torch\nexcept ImportError:\n    pass", 2),
        ("types/dims.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import torch", 4),
        ("check/rows.py", "import networkx as nx", 1),
        ("__init__.py", "from ray import get", 1),
        ("__init__.py", "from hfdsl.tools.cli import main", 1),
        ("errors.py", "from hfdsl.types import Dim", 1),
        ("graph/dataflow.py", "from hfdsl.check import run", 1),
        ("graph/trace.py", "def f():\n    from hfdsl.check import run", 2),
        ("plan/launch.py", "def f():\n    import hfdsl.rl", 2),
        ("single_controller/group.py", "from hfdsl.plan import Plan", 1),
        ("runtime/local.py", "from hfdsl.testing import laws", 1),
    ],
)
def test_a_bad_module_is_found(path: str, source: str, line: int) -> None:
    [error] = violations(path, source)
    assert error.startswith(f"{path}:{line}: ")


def test_an_unknown_room_is_found() -> None:
    assert violations("misc/helpers.py", "") == ["misc/helpers.py: 'misc' is not a room; give it a place in ALLOWED"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("graph/trace.py", "from hfdsl.types import Dim\nfrom hfdsl.errors import HfError\nfrom hfdsl import types"),
        ("graph/trace.py", "from .program import Node\nfrom ..protocols import mesh"),
        ("graph/trace.py", "if TYPE_CHECKING:\n    import torch\n    from hfdsl.plan import Plan"),
        ("graph/trace.py", "if typing.TYPE_CHECKING:\n    from hfdsl.plan import Plan"),
        ("graph/trace.py", "def f():\n    import torch"),
        ("graph/dataflow.py", "def compile(self):\n    from hfdsl.plan import build"),
        ("plan/compiled.py", "def launch(self):\n    from hfdsl.runtime.local import Local"),
        ("runtime/local.py", "import ray\nimport torch\nfrom hfdsl.single_controller import RayWorkerGroup"),
        ("single_controller/group.py", "import ray\nfrom hfdsl.protocols import mesh"),
        ("rl/grpo.py", "import hfdsl as hf\nimport torch"),
        ("__main__.py", "from hfdsl.tools.cli import main"),
        ("tools/cli.py", "import hfdsl as hf\nfrom hfdsl.runtime import local"),
    ],
)
def test_a_good_module_passes(path: str, source: str) -> None:
    assert violations(path, source) == []


def imported_modules(source: str, modules: set[str]) -> set[str]:
    """Every module of ``modules`` that a source imports: at its top, in a function, or for type checkers alone."""
    imported = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            imported |= submodules or {node.module or ""}
    return imported & modules


def circles(sources: dict[str, str]) -> set[frozenset[str]]:
    """The sets of modules that import each other, directly or through others; ``sources`` by module."""
    direct = {module: imported_modules(source, set(sources)) for module, source in sources.items()}

    def reached_from(module: str) -> set[str]:
        reached, pending = set[str](), [module]
        while pending:
            new = direct[pending.pop()] - reached
            reached |= new
            pending += new
        return reached

    reached = {module: reached_from(module) for module in sources}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in sources
        if module in reached[module]
    }


def package_sources() -> dict[str, str]:
    sources = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        sources[".".join(part for part in parts if part != "__init__")] = file.read_text(encoding="utf-8")
    return sources


def test_no_file_takes_part_in_an_import_circle() -> None:
    """In a function or for types alone neither."""
    assert not circles(package_sources())


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"a": "import b", "b": "import c", "c": ""}, []),
        ({"a": "import b", "b": "def f():\n    import a"}, ["ab"]),
        ({"a": "import b", "b": "if TYPE_CHECKING:\n    from a import A"}, ["ab"]),
        ({"a": "from b import x", "b": "from c import x", "c": "from a import x", "d": "import a"}, ["abc"]),
        ({"a": "import b", "b": "import a", "c": "import d", "d": "import c\nimport a"}, ["ab", "cd"]),
    ],
)
def test_a_circle_is_found(sources: dict[str, str], expected: list[str]) -> None:
    assert circles(sources) == {frozenset(names) for names in expected}


def test_a_submodule_that_is_imported_by_name_is_not_its_package() -> None:
    sources = {"a": "", "a.b": "from a import c", "a.c": "from a import b, name"}
    assert circles(sources) == {frozenset({"a.b", "a.c"})}
