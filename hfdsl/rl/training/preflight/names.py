"""Functions that a configuration names, as ``"module:name"`` or ``"file.py:name"``, looked up in the text of modules.

Nothing is imported: a module of rewards may load torch, or a model. So a name that a module may create at run time, by
``from other import *``, ``__getattr__`` or ``globals()``, counts as defined.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from hfdsl.types.similar_names import closest, nearest


@dataclass(frozen=True, slots=True)
class NameProblem:
    """The problem with a name, and the name that may be meant."""

    message: str
    near: str | None = None


def problem_of(text: str, arguments: int) -> NameProblem | None:
    """The problem with the name of a function that is called with ``arguments`` arguments; None if none is certain.

    >>> problem_of("math:sqrt", 1)
    >>> problem_of("json:dumpz", 1)
    NameProblem(message="there is no 'dumpz' in the module 'json'; did you mean 'dump'?", near='json:dump')
    >>> problem_of("nowhere/rewards.py:score", 2).message
    "there is no file 'nowhere/rewards.py'"
    """
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        return NameProblem(f"'{text}' is read as 'module:name' or 'file.py:name'")
    if module.endswith(".py"):
        file = Path(module)
        return _problem_in(file, text, arguments) if file.is_file() else _no_file(file, name)
    if not all(part.isidentifier() for part in module.split(".")):
        return NameProblem(f"'{text}' is read as 'module:name', and '{module}' is not a dotted name")
    spec, missing = _spec(module)
    if missing is not None:
        return replace(missing, near=f"{missing.near}:{name}" if missing.near else None)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    if _spec(f"{module}.{name}")[0] is not None:  # a module of the package
        return None
    return _problem_in(Path(spec.origin), text, arguments)


def problem_in_sources(text: str, arguments: int, folder: Path) -> NameProblem | None:
    """The problem with a name for a run on another machine: in a file that is here, and so comes with the others.

    A file is looked up from the current folder and from ``folder``, that of the configuration; a module is left out
    if it is not below the current folder. A missing target may exist there.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        return problem_of(text, arguments)
    if module.endswith(".py"):
        file = next((base / module for base in (Path(), folder) if (base / module).is_file()), None)
        return None if file is None else _problem_in(file, text, arguments)
    spec = _spec(module)[0] if all(part.isidentifier() for part in module.split(".")) else None
    is_here = spec is not None and spec.origin is not None and Path(spec.origin).is_relative_to(Path.cwd())
    return problem_of(text, arguments) if is_here else None


def _problem_in(file: Path, text: str, arguments: int) -> NameProblem | None:
    """The problem with a name, by the text of its file."""
    place, _, name = text.partition(":")
    tree = _tree(file)
    if tree is None or _is_open(tree):
        return None
    names = {bound: node for node in tree.body for bound in _bound(node)}
    if name not in names:
        options = closest(name, sorted(names)) if names else "it is empty"
        candidate = nearest(name, sorted(names))
        kind = "file" if place.endswith(".py") else "module"
        near = candidate and f"{place}:{candidate}"
        return NameProblem(f"there is no '{name}' in the {kind} '{place}'; {options}", near)
    wrong = _no_function(names[name], text) or _wrong_arguments(names[name], text, arguments)
    return None if wrong is None else NameProblem(wrong)


def near_target(text: str, targets: Sequence[str]) -> str | None:
    """The target that is nearest to a text, or that has it as its last name.

    >>> known = ["hfdsl.rl.dataflows.grpo:grpo", "hfdsl.rl.dataflows.ppo:ppo"]
    >>> near_target("grpo", known), near_target("hfdsl.rl.dataflow.ppo:ppo", known), near_target("flows.py:flow", known)
    ('hfdsl.rl.dataflows.grpo:grpo', 'hfdsl.rl.dataflows.ppo:ppo', None)
    """
    if ":" not in text:
        return next((target for target in targets if target.rpartition(":")[2].lower() == text.lower()), None)
    matches = difflib.get_close_matches(text, targets, n=1, cutoff=0.85)
    return matches[0] if matches else None


def _spec(module: str) -> tuple[ModuleSpec | None, NameProblem | None]:
    """The spec of a module, without importing its packages, or the missing part; neither if it cannot be known.

    Nothing is certain below packages outside of the current folder: they may create modules at run time.
    """
    top, *inner = module.split(".")
    spec = PathFinder.find_spec(top, [*sys.path, str(Path.cwd())])  # as workers find it
    if spec is None:
        return None, None if _has_other_finder(top) else _no_module("", top, inner, [str(Path.cwd())])
    dotted = top
    for number, part in enumerate(inner):
        above = dotted
        folders, dotted = list(spec.submodule_search_locations or ()), f"{dotted}.{part}"
        is_local = bool(folders) and all(Path(folder).is_relative_to(Path.cwd()) for folder in folders)
        # The last name alone: with the full name, Python would look for the package above, which is not imported.
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return None, _no_module(f"{above}.", part, inner[number + 1 :], folders) if is_local else None
    return spec, None


def _has_other_finder(top: str) -> bool:
    """Whether a module is built in, already loaded, or found by a hook, such as that of an editable installation."""
    try:
        return top in sys.modules or find_spec(top) is not None
    except (ImportError, ValueError):
        return True


def _no_module(above: str, part: str, below: Sequence[str], path: list[str]) -> NameProblem:
    """The problem with a module in none of the folders of a path, with one there of similar spelling."""
    entries = [entry for folder in map(Path, path) if folder.is_dir() for entry in folder.iterdir()]
    packages = {entry.name for entry in entries if (entry / "__init__.py").is_file()}
    candidate = nearest(part, sorted(packages | {entry.stem for entry in entries if entry.suffix == ".py"}))
    hint = f"; did you mean '{candidate}'?" if candidate else ""
    message = f"there is no module '{above}{part}' in the current folder or among the installed ones{hint}"
    return NameProblem(message, candidate and ".".join([f"{above}{candidate}", *below]))


def _no_file(file: Path, name: str) -> NameProblem:
    """The problem with a missing file, with one beside it of similar spelling."""
    beside = sorted(path.name for path in file.parent.glob("*.py")) if file.parent.is_dir() else []
    candidate = nearest(file.name, beside)
    nearest_path = candidate and file.with_name(candidate).as_posix()
    hint = f"; did you mean '{nearest_path}'?" if nearest_path else ""
    return NameProblem(f"there is no file '{file.as_posix()}'{hint}", nearest_path and f"{nearest_path}:{name}")


def _tree(file: Path) -> ast.Module | None:
    """The syntax tree of a file, if it can be read."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement of a module binds, in any of its branches."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)
        case ast.Lambda():
            return
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _bound(child)


def _is_open(tree: ast.Module) -> bool:
    """Whether a module may have names beyond those in its text."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
            case ast.FunctionDef(name="__getattr__") | ast.Name(id="globals" | "exec" | "setattr" | "vars" | "locals"):
                return True
            case ast.Global() | ast.Attribute(attr="__dict__"):
                return True
    return False


def _no_function(node: ast.AST, text: str) -> str | None:
    """Why a statement binds a name to something that returns no result when it is called."""
    match node:
        case ast.Assign(
            value=ast.Constant() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.JoinedStr() as value
        ):
            shown = ast.unparse(value)
            return f"'{text}' is no function, but {shown if len(shown) <= MAX_SHOWN else f'{shown[:MAX_SHOWN]}...'}"
        case ast.AsyncFunctionDef(decorator_list=[]):
            return f"'{text}' is an async function: a call returns a coroutine, which is never awaited"
        case ast.FunctionDef(decorator_list=[]) if _yields(node.body):
            return f"'{text}' is a generator: a call returns an iterator, not what it yields"
    return None


MAX_SHOWN = 40


def _yields(body: Iterable[ast.AST]) -> bool:
    """Whether statements of a function yield, apart from those of functions and classes in it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    nodes = [node for node in body if not isinstance(node, inner)]
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) or _yields(ast.iter_child_nodes(node)) for node in nodes)


def _wrong_arguments(node: ast.AST, text: str, count: int) -> str | None:
    """The problem of a plain function that cannot be called with ``count`` arguments."""
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return None
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    least = len(positional) - len(arguments.defaults)
    required = [
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    if least <= count and (arguments.vararg or count <= len(positional)) and not required:
        return None
    takes = ", ".join([*(argument.arg for argument in positional), *(f"*, {name}" for name in required)]) or "nothing"
    return f"'{text}' takes ({takes}), but is called with {count} arguments"
