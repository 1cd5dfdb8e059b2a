"""Abstract interpretation of tables: dictionaries that a body builds of columns, and reads and writes by literal keys.

A worked example, a batch as a dictionary, of which mini-batches are cut::

    batch = {"gain": experience.gain.tensor, "old": old}     a table
    batch["ratio"] = (now - batch["old"]).exp()              with one more entry
    part = {name: x[rows] for name, x in batch.items()}      each entry is cut
    loss = -(part["ratio"] * part["gain"]).mean()            of the entries
    self.prepare(batch)                                      not known any more, if this cannot be read

A rule knows tables if its interpretation has values for them, by ``table`` and ``entries``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from hfdsl.check.bodies.names import last_name
from hfdsl.check.syntax_trees import nodes_of

V = TypeVar("V")

READS = frozenset({"dict", "isinstance", "len", "list", "print", "sorted", "type"})
"""Functions of Python that change no table."""


class Tabular(Protocol[V]):
    """The interpretation of a body that may have tables: ``FlowInterpretation``, which says what each of these is."""

    names: dict[str, V | None]
    views: dict[str, str]
    written: set[str]

    def table(self, entries: Mapping[str, V | None]) -> V | None:
        """The value of a table."""
        ...

    def entries(self, value: V | None) -> Mapping[str, V | None] | None:
        """The entries of a table by key; None of another value."""
        ...

    def value(self, node: ast.expr) -> V | None:
        """The value of an expression."""
        ...

    def set(self, target: ast.expr, value: V | None) -> None:
        """Set the value of a name."""
        ...

    def operation(self, operator: ast.AST, node: ast.expr, left: V | None, others: Sequence[V | None]) -> V | None:
        """The result of an operator."""
        ...


class TableResult(NamedTuple, Generic[V]):
    """The result of a call that makes or reads a table, which need not be known."""

    value: V | None


# -- expressions


def written_table(flow: Tabular[V], node: ast.Dict | ast.DictComp) -> V | None:
    """The table that an expression builds."""
    entries = _written_entries(flow, node)
    return None if entries is None else flow.table(entries)


def merged_table(flow: Tabular[V], left: ast.expr, right: ast.expr) -> V | None:
    """The table ``left | right``; None if they are none."""
    entries, others = _entries_of(flow, left), _entries_of(flow, right)
    return flow.table({**entries, **others}) if entries is not None and others is not None else None


def result_of_call(flow: Tabular[V], call: ast.Call) -> TableResult[V] | None:
    """The result of a call that makes a table, or reads an entry; None for other calls."""
    match call.func, call.args:
        case ast.Name("dict"), [*others] if len(others) < 2 and all(k.arg is not None for k in call.keywords):
            entries = flow.entries(flow.value(others[0])) if others else {}
            named = {str(keyword.arg): flow.value(keyword.value) for keyword in call.keywords}
            return TableResult(None if entries is None else flow.table({**entries, **named}))
        case ((ast.Name("TensorDict") | ast.Attribute(_, "TensorDict")), [source, *_]):
            return TableResult(flow.value(source) if _entries_of(flow, source) is not None else None)
        case ast.Attribute(owner, "get" | "pop" as function), [ast.Constant(str(key)), *default]:
            entries = _entries_of(flow, owner)
            if entries is not None:
                value = entries.get(key) if key in entries else flow.value(default[0]) if default else None
                _remove(flow, owner, key if function == "pop" else "")
                return TableResult(value)
        case ast.Attribute(owner, "copy"), [] if _entries_of(flow, owner) is not None:
            return TableResult(flow.value(owner))
    return None


def unpacked(flow: Tabular[V], call: ast.Call) -> Mapping[str, V | None]:
    """The arguments that a call takes from tables, as ``**batch`` gives them."""
    tables = (flow.entries(flow.value(keyword.value)) for keyword in call.keywords if keyword.arg is None)
    return {name: value for table in tables for name, value in (table or {}).items()}


def _entries_of(flow: Tabular[V], node: ast.expr) -> Mapping[str, V | None] | None:
    return flow.entries(flow.value(node))


def _written_entries(flow: Tabular[V], node: ast.expr) -> Mapping[str, V | None] | None:
    """The entries of a table that an expression builds; None if their keys are not known."""
    match node:
        case ast.Dict(keys, values):
            entries = dict[str, V | None]()
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    entries[key.value] = flow.value(value)
                elif key is None and (others := _entries_of(flow, value)) is not None:
                    entries |= others
                else:
                    return None
            return entries
        case ast.DictComp(
            ast.Name(key),
            value,
            [
                ast.comprehension(
                    ast.Tuple([ast.Name(name), ast.Name() as part]),
                    ast.Call(ast.Attribute(owner, "items"), []),
                    [],
                )
            ],
        ) if key == name:
            return _mapped(flow, owner, part, value)
    return None


def _mapped(flow: Tabular[V], owner: ast.expr, part: ast.Name, value: ast.expr) -> Mapping[str, V | None] | None:
    """The entries of a table, each through an expression of one."""
    entries = _entries_of(flow, owner)
    if entries is None:
        return None
    names, results = dict(flow.names), dict[str, V | None]()
    for key, entry in entries.items():
        flow.set(part, entry)
        results[key] = flow.value(value)
    flow.names = names
    return results


# -- statements


def runs_on_table(flow: Tabular[V], statement: ast.stmt) -> bool:
    """Run a statement if it changes a table; return whether it does."""
    name = _changed_name(statement)
    entries = flow.entries(flow.names.get(name))
    if entries is None:
        _forget_after(flow, statement)
        return False
    changed = _changed_entries(flow, statement)
    _replace(flow, name, None if changed is None else flow.table({**entries, **changed}))
    return True


def forget_taken(flow: Tabular[V], call: ast.Call) -> None:
    """Forget the tables that a call takes which cannot be read, as it may change them."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg is not None)):
        is_table = isinstance(argument, ast.Name) and flow.entries(flow.names.get(argument.id)) is not None
        if isinstance(argument, ast.Name) and is_table and last_name(call.func) not in READS:
            _replace(flow, argument.id, None)


def _changed_entries(flow: Tabular[V], statement: ast.stmt) -> Mapping[str, V | None] | None:
    """The entries that a statement sets; None if they are not known."""
    match statement:
        case ast.Assign([ast.Subscript(_, ast.Constant(str(key)))], value):
            return {key: flow.value(value)}
        case ast.AugAssign(ast.Subscript(owner, ast.Constant(str(key)) as index) as target, operator, value):
            old = flow.value(ast.copy_location(ast.Subscript(owner, index, ast.Load()), target))
            return {key: flow.operation(operator, target, old, [flow.value(value)])}
        case ast.Expr(ast.Call(ast.Attribute(_, "update"), given, keywords)) if len(given) < 2:
            others = flow.entries(flow.value(given[0])) if given else {}
            named = {str(keyword.arg): flow.value(keyword.value) for keyword in keywords}
            return None if others is None or "None" in named else {**others, **named}
    return None


def _forget_after(flow: Tabular[V], statement: ast.stmt) -> None:
    """Forget the tables after a statement that changes a tensor in place, which may be an entry."""
    if _changes_a_tensor(statement):
        for name in [name for name, value in flow.names.items() if flow.entries(value) is not None]:
            _replace(flow, name, None)


def _remove(flow: Tabular[V], owner: ast.expr, key: str) -> None:
    """Remove a key of a table of a name."""
    if key and isinstance(owner, ast.Name):
        entries = flow.entries(flow.names.get(owner.id)) or {}
        _replace(flow, owner.id, flow.table({name: entry for name, entry in entries.items() if name != key}))


def _replace(flow: Tabular[V], name: str, table: V | None) -> None:
    """Change a table, whatever its names are."""
    root = flow.views.get(name, name)
    for other in [name, root, *(view for view, source in flow.views.items() if source in (name, root))]:
        if flow.entries(flow.names.get(other)) is not None:
            flow.names[other] = table
            flow.written.add(other)


def _changed_name(statement: ast.stmt) -> str:
    """The name of what may be a table that a statement changes."""
    match statement:
        case ast.Assign([ast.Subscript(ast.Name(name))]) | ast.AugAssign(ast.Subscript(ast.Name(name))):
            return name
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "clear" | "popitem" | "setdefault" | "update"))):
            return name
        case ast.Delete([ast.Subscript(ast.Name(name))]):
            return name
    return ""


@lru_cache(maxsize=4096)
def _changes_a_tensor(statement: ast.stmt) -> bool:
    """Whether a simple statement changes a tensor in place."""
    simple = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Delete, ast.Expr)
    return isinstance(statement, simple) and any(map(_changes_in_place, nodes_of(statement)))


def _changes_in_place(node: ast.AST) -> bool:
    """Whether a node sets a part of something, or calls a method that changes a tensor."""
    match node:
        case ast.Subscript(ctx=ast.Store() | ast.Del()):
            return True
        case ast.Attribute(ast.Subscript(), ctx=ast.Store()):
            return True
        case ast.Call(ast.Attribute(_, method)):
            return method.endswith("_") and not method.startswith(("__", "clip_grad", "requires_grad"))
    return False
