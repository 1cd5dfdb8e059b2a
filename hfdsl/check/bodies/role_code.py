"""The code of a role: all that its methods may run, read without running it.

A rule about what a role does *not* do, such as talking to its peers, has to know all that it does. So a class is read
with its bases, the functions and classes that it mentions, and what these mention in turn. Code of torch, NumPy and the
like is known by its names; anything else that cannot be read leaves the code incomplete, and such a rule silent::

    class Policy(hf.Worker):
        def __init__(self, rate: float) -> None:
            self.model = build_model()                     read, if it is a function in a user's module
            self.optimizer = torch.optim.Adam(...)         known
            self.model = accelerator.prepare(self.model)   code of another library: incomplete
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import chain
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from hfdsl.check.bodies.names import MISSING, full_name, imported_names, local_names, value_of
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.spans import Span, definition_span
from hfdsl.protocols.worker import Worker

KNOWN: Final = frozenset(
    {"abc", "argparse", "array", "base64", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "csv"}
    | {"dataclasses", "datetime", "decimal", "difflib", "einops", "enum", "fractions", "functools", "gc", "genericpath"}
    | {"glob", "hashlib", "heapq", "html", "itertools", "json", "logging", "math", "ntpath", "numbers", "numpy"}
    | {"operator", "os", "pathlib", "platform", "posixpath", "pprint", "random", "re", "safetensors", "secrets"}
    | {"shutil", "statistics", "string", "struct", "tempfile", "textwrap", "time", "tokenizers", "torch", "tqdm"}
    | {"traceback", "transformers", "types", "typing", "typing_extensions", "unicodedata", "uuid", "warnings"}
    | {"weakref", "zlib"}
)
"""Packages whose code does nothing that its names do not say."""

UNREAD: Final = ("engines", "models", "workers")
"""Folders of ``hfdsl.rl`` whose code is not read: their roles are ready."""

DYNAMIC: Final = frozenset({"__import__", "eval", "exec", "getattr", "globals", "locals", "open", "vars"})
"""Built-in functions that reach what no name in the code says."""

DEPTH: Final = 8
"""How deep data may lie in other data; some holds itself."""

MOST: Final = 200
"""How many functions of a role are read at most."""


@dataclass(frozen=True, slots=True)
class ReadFunction:
    """A function or method, its ``def``, and the parts of all names in it."""

    body: Callable[..., Any]
    definition: Function
    names: frozenset[str] = frozenset()

    def path(self, expression: ast.expr) -> str:
        """The full name that an expression has in the function: ``torch.optim.Adam`` for ``Adam``; empty for others."""
        match expression:
            case ast.Attribute(value, name):
                path = self.path(value)
                return f"{path}.{name}" if path else ""
            case ast.Name(name):
                return imported_names(self.definition).get(name) or full_name(value_of(self.body, name)) or name
        return ""

    def has(self, place: Span) -> bool:
        """Whether a place is in the function."""
        last = self.definition.end_lineno or self.definition.lineno
        return place.file == definition_span(self.body).file and self.definition.lineno <= place.line <= last

    @property
    def module(self) -> str:
        """The module that the function is written in."""
        return str(self.body.__module__)


@dataclass(frozen=True, slots=True, eq=False)
class RoleCode:
    """All functions that a role may run, by name and in the order of reading; read once, it is known by identity."""

    functions: Mapping[str, tuple[ReadFunction, ...]]
    is_whole: bool
    """Whether all code was read."""

    @property
    def all_functions(self) -> list[ReadFunction]:
        """The functions of all names."""
        return [*chain.from_iterable(self.functions.values())]

    @property
    def names(self) -> frozenset[str]:
        """The names in all functions."""
        return frozenset[str]().union(*(function.names for function in self.all_functions))

    def reached(self, *names: str) -> Iterator[ReadFunction]:
        """The functions with these names, and all that they mention; each once."""
        waiting, seen = [*names], set[str]()
        while waiting:
            name = waiting.pop()
            for function in self.functions.get(name, ()) if name not in seen else ():
                yield function
                waiting += sorted(function.names)
            seen.add(name)


@lru_cache(maxsize=256)
def code_of(role: type) -> RoleCode:
    """The code of a role's class."""
    reader = _Reader()
    reader.read_class(role)
    return reader.code()


def own_functions(code: RoleCode, role: type) -> list[ReadFunction]:
    """The functions of a role's code that are methods of its class or of its bases, and of no object that it keeps."""
    members = [member for base in role.__mro__ for member in vars(base).values()]
    plain = (getattr(member, "__func__", getattr(member, "fget", member)) for member in members)
    methods = {function for function in plain if isinstance(function, FunctionType)}
    return [function for function in code.all_functions if function.body in methods]


@lru_cache(maxsize=256)
def code_of_function(function: FunctionType) -> RoleCode:
    """The code of a function of a dataflow."""
    reader = _Reader()
    reader.read(function)
    return reader.code()


def is_plain(value: object, depth: int = 0) -> bool:
    """Whether a constructor argument is data: a role does with it no more than its own code says."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return True
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [*value]
    elif isinstance(value, dict):
        parts = [*value.values()]
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in fields(value)]
    else:
        return False
    return depth < DEPTH and all(is_plain(part, depth + 1) for part in parts)


class _Reader:
    """Functions as they are found, the names in the one that is being read, and whether all could be read."""

    def __init__(self) -> None:
        self.functions, self.names, self.is_whole = list[ReadFunction](), set[str](), True
        self._seen = set[object]()

    def code(self) -> RoleCode:
        """All that has been read."""
        functions = dict[str, tuple[ReadFunction, ...]]()
        for function in self.functions:
            name = function.definition.name
            functions[name] = (*functions.get(name, ()), function)
        return RoleCode(functions, self.is_whole)

    def read_class(self, read: type) -> None:
        """Read the methods of a class and of its bases."""
        overridden, names = list[FunctionType](), set[str]()
        for base in read.__mro__:
            if base in (object, Worker) or base in self._seen or self._is_known(base.__module__):
                continue
            self._seen.add(base)
            for name, member in vars(base).items():
                function = getattr(member, "__func__", getattr(member, "fget", member))
                if isinstance(function, FunctionType):
                    overridden.append(function) if name in names else self.read(function)
            names |= vars(base).keys()
        for function in overridden if any("super" in read.names for read in self.functions) else ():
            self.read(function)

    def read(self, function: FunctionType) -> None:
        """Read a function, and what it mentions."""
        if function in self._seen:
            return
        self._seen.add(function)
        if self._is_known(function.__module__):
            return
        definition = definition_of(function)
        if definition is None and function.__code__.co_filename == "<string>":
            return  # of a dataclass
        if definition is None or len(self.functions) == MOST:
            self.is_whole = False
            return
        outer, self.names = self.names, set()
        self._read_names(function, definition)
        self.functions.append(ReadFunction(function, definition, frozenset(self.names)))
        self.names = outer

    def _read_names(self, function: FunctionType, definition: Function) -> None:
        local, named = local_names(definition), _attributes_by_name(definition)
        self.names |= set(named.values())
        for node in code_nodes(definition):
            match node:
                case ast.Name() if node in named:
                    pass
                case ast.Import(imported):
                    self._import(*(alias.name for alias in imported))
                case ast.ImportFrom(module, imported, level):
                    self.names |= {alias.name for alias in imported}
                    self._import("." * level + (module or ""))
                case ast.Attribute(owner, attribute):
                    self.names.add(attribute)
                    if isinstance(owner, ast.Name) and owner.id not in local:
                        self._mention_of(value_of(function, owner.id), attribute)
                case ast.Name(name):
                    self.names.add(name)
                    if name not in local:
                        self.mention(value_of(function, name))

    def mention(self, value: object) -> None:
        """Read what a name of a module stands for, if it is code."""
        self.names |= set(full_name(value).split("."))
        if isinstance(value, FunctionType):
            self.read(value)
        elif isinstance(value, type):
            self.names |= {name for name, member in vars(value).items() if isinstance(member, FunctionType)}
            self.read_class(value)
        elif isinstance(value, BuiltinFunctionType):
            self.is_whole &= value.__name__ not in DYNAMIC
        elif value is MISSING:
            self.is_whole = False
        elif not isinstance(value, ModuleType) and not is_plain(value):
            self.read_class(type(value))

    def _mention_of(self, module: object, attribute: str) -> None:
        """Read what a user's module has under a name."""
        if isinstance(module, ModuleType) and not self._is_known(module.__name__):
            self.mention(getattr(module, attribute, MISSING))

    def _import(self, *modules: str) -> None:
        """An import within a function; an unknown module counts as code that cannot be read."""
        for module in modules:
            self.names |= set(module.split("."))
            if not self._is_known(module):
                self.is_whole = False

    def _is_known(self, module: str) -> bool:
        """Whether the code of a module needs no reading; code of other libraries makes the role's code incomplete."""
        root, *inner = module.split(".")
        if root == "hfdsl":
            self.is_whole &= inner[:1] != ["rl"] or inner[1:2] == [] or inner[1] not in UNREAD
            return True
        if root not in KNOWN and _is_installed(root):
            self.is_whole = False
            return True
        return root in KNOWN


def is_of_user(module: str) -> bool:
    """Whether a module is the user's own, and of no library."""
    root = module.partition(".")[0]
    return root not in (*KNOWN, "hfdsl") and not _is_installed(root)


@lru_cache(maxsize=256)
def _is_installed(package: str) -> bool:
    """Whether a package is not the user's own code: installed, or of Python itself."""
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file


def _attributes_by_name(definition: ast.AST) -> dict[ast.expr, str]:
    """Each ``getattr`` with a literal name and a default, as in ``getattr(config, "rate", 0.1)``, and the name.

    A value that is called at once may be anything that a wrapper adds to a model, so it is left out.
    """
    called = {node.func for node in nodes_of(definition) if isinstance(node, ast.Call)}
    named = dict[ast.expr, str]()
    for node in nodes_of(definition):
        match node:
            case ast.Call(ast.Name("getattr") as function, [_, ast.Constant(str(name)), _]) if node not in called:
                named[function] = name
    return named


def code_nodes(definition: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without its annotations, which need not have a value where it runs."""
    for name, value in ast.iter_fields(definition):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from code_nodes(child)
