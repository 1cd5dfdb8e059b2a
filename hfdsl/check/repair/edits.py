"""Edits: the characters of the user's file that a fix changes.

Every function returns None if it does not find what it looks for: a name may be computed at run time, a size may come
from a variable. A repair without an edit remains advice.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile

from hfdsl.check.findings import Edit
from hfdsl.check.sources import assigned_pairs, call_at, keyword_span, source_text, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span
from hfdsl.types.dims import Dim


def lines_of(text: str) -> list[str]:
    r"""Lines with their ends, as Python's own reader counts them.

    >>> lines_of("a\r\nb\x0cc\n")
    ['a\r\n', 'b\x0cc\n']
    """
    return list(io.StringIO(text, newline=""))


def apply(text: str, edits: Iterable[Edit]) -> str:
    r"""``text`` with its edits, which do not overlap.

    >>> apply("é = x.a\n", [Edit(Span("f", 1, 7, 1, 8), "b")])
    'é = x.b\n'
    """
    lines = [line.encode() for line in lines_of(text)] or [b""]
    for edit in sorted(edits, key=lambda e: (e.span.line, e.span.column, e.span.end_line, e.span.end_column))[::-1]:
        span = edit.span
        first, last = span.line - 1, span.end_line - 1
        head, tail = lines[first][: span.column], lines[last][span.end_column :]
        lines[first : last + 1] = [head + edit.text.encode() + tail]
    return b"".join(lines).decode()


def line_before(line: int, edits: Iterable[Edit]) -> int:
    r"""The line of a text that its edits have made ``line``; of a line that they add, the line before it.

    >>> edits = [Edit(Span("f", 2, 5, 2, 5), "\nb = 1"), Edit(Span("f", 4, 0, 4, 1), "c")]
    >>> [line_before(line, edits) for line in range(1, 6)]
    [1, 2, 2, 3, 4]
    """
    added = 0
    for edit in sorted(edits, key=lambda e: (e.span.line, e.span.column)):
        if line <= edit.span.line + added:
            break
        more = edit.text.count("\n") - (edit.span.end_line - edit.span.line)
        added += min(more, line - added - edit.span.line)
    return line - added


def overlap(edits: Sequence[Edit], others: Sequence[Edit]) -> bool:
    """Whether two fixes cannot both be applied: they touch the same characters, or the same place."""
    return any(
        a.span.file == b.span.file
        and (a.span.line, a.span.column) <= (b.span.end_line, b.span.end_column)
        and (b.span.line, b.span.column) <= (a.span.end_line, a.span.end_column)
        for a in edits
        for b in others
    )


def rename(place: Span, old: str, new: str) -> Edit | None:
    """``x.old`` becomes ``x.new``, or ``f(old=...)`` becomes ``f(new=...)``, in the expression at ``place``."""
    size = len(old.encode())
    keyword = keyword_span(place, old)
    if keyword != place:
        named = Span(place.file, keyword.line, keyword.column, keyword.line, keyword.column + size)
        return Edit(named, new) if source_text(named) == old else None
    first, last = place.end_column - size, place.end_column
    written = source_text(Span(place.file, place.end_line, first - 1, place.end_line, last))
    return Edit(Span(place.file, place.end_line, first, place.end_line, last), new) if written == f".{old}" else None


def spelt(call: Span, old: str, new: str) -> Edit | None:
    """A name that is passed to a call as a string."""
    written = call_at(call)
    match [n for n in nodes_of(written) if isinstance(n, ast.Constant) and n.value == old] if written else []:
        case [node]:
            place = span_of(call.file, node)
            for quote in ("'", '"'):  # three of them, a prefix or an escape are left alone
                if source_text(place) == f"{quote}{old}{quote}":
                    return Edit(place, f"{quote}{new}{quote}")
    return None


def keywords(call: Span, signature: Signature, name: str) -> tuple[Edit, ...] | None:
    """The keyword-only port ``name``, and all ports passed by position after it, are passed by name instead."""
    written = call_at(call)
    named = {keyword.arg for keyword in written.keywords} if written else set()
    if written is None or None in named or any(isinstance(argument, ast.Starred) for argument in written.args):
        return None  # with * or ** it is unknown which argument goes where
    first = sum(not port.keyword_only for port in signature.ports)
    spare = [port.name for port in signature.ports if port.keyword_only and port.name not in named]
    later = dropwhile(lambda pair: pair[0] != name, zip(spare, written.args[first:], strict=False))
    places = [(port, span_of(call.file, argument)) for port, argument in later]
    return tuple(Edit(Span(p.file, p.line, p.column, p.line, p.column), f"{port}=") for port, p in places)


def wrap(argument: Span, function: str, count: int) -> tuple[Edit, Edit] | None:
    """``x`` becomes ``hf.repeat(x, count)`` or another such call, spelled as the user's imports require."""
    name = spelling(argument.file, function)
    if name is None or not argument.end_column:
        return None
    start = Span(argument.file, argument.line, argument.column, argument.line, argument.column)
    end = Span(argument.file, argument.end_line, argument.end_column, argument.end_line, argument.end_column)
    return Edit(start, f"{name}("), Edit(end, f", {count})")


def swap(first_place: Span, second_place: Span) -> tuple[Edit, Edit] | None:
    """Two expressions of one line each, each in the place of the other."""
    first_text, second_text = source_text(first_place), source_text(second_place)
    return (Edit(first_place, second_text), Edit(second_place, first_text)) if first_text and second_text else None


def operator_span(operand: Span) -> Span | None:
    """The operator in front of the right operand of a sum or a difference, if both are in one line."""
    for node in nodes_of(_tree(operand.file)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            left, right = span_of(operand.file, node.left), span_of(operand.file, node.right)
            if right == operand and left.end_line == right.line:
                between = replace(left, line=right.line, column=left.end_column, end_column=right.column)
                text = (source_text(between) or "").encode()
                spaces = len(text) - len(text.lstrip(b" )"))
                column = between.column + spaces
                return replace(between, column=column, end_column=column + 1)
    return None


def bound_name(value: Span) -> str | None:
    """The name that a statement gives to the expression at ``value``, as in ``name = critic.values(rollout)``."""
    statements = (node for node in nodes_of(_tree(value.file)) if isinstance(node, ast.Assign))
    lone = ((node.targets[0], node.value) for node in statements if len(node.targets) == 1)
    for target, expression in (pair for both in lone for pair in assigned_pairs(*both)):
        if isinstance(target, ast.Name) and replace(span_of(value.file, expression), calls=value.calls) == value:
            return target.id
    return None


def spelling(file: str, name: str) -> str | None:
    """Spell a name of hfdsl as a module's imports have it."""
    for statement in _tree(file).body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "hfdsl" and not statement.level:
            for alias in statement.names:
                if alias.name == name:
                    return alias.asname or name
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name == "hfdsl":
                    return f"{alias.asname or 'hfdsl'}.{name}"
    return None


def top_level_name(file: str, name: str) -> str | None:
    """Spell a class that a module defines or imports by its name."""
    for statement in _tree(file).body:
        match statement:
            case ast.ClassDef(name=defined) if defined == name:
                return name
            case ast.ImportFrom(names=names):
                for alias in names:
                    if alias.name == name:
                        return alias.asname or name
    return None


def size(call: Span, dim: type[Dim], old: int, new: int) -> Edit | None:
    """The number of ``dim`` in the ``dims={...}`` of a call, or in the module's variable that is passed there."""
    written = call_at(call)
    sizes = next((k.value for k in written.keywords if k.arg == "dims"), None) if written else None
    if isinstance(sizes, ast.Name):
        sizes = _variable(call.file, sizes.id)
    numbers = [
        value
        for key, value in (zip(sizes.keys, sizes.values, strict=True) if isinstance(sizes, ast.Dict) else ())
        if (isinstance(key, ast.Name) and key.id == dim.__name__)
        or (isinstance(key, ast.Attribute) and key.attr == dim.__name__)
    ]
    match numbers:
        case [node]:
            return literal(call.file, node, old, new)
    return None


def axis(call: Span, name: str, old: int, new: int) -> Edit | None:
    """The size of an axis in the ``mesh=hf.Mesh(...)`` of a call; an axis that is left out there is added."""
    written = call_at(call)
    mesh = next((k.value for k in written.keywords if k.arg == "mesh"), None) if written else None
    if not isinstance(mesh, ast.Call) or mesh.args or not mesh.keywords:
        return None
    sizes = {keyword.arg: keyword.value for keyword in mesh.keywords}
    if name in sizes:
        return literal(call.file, sizes[name], old, new)
    if None in sizes:  # Mesh(**sizes)
        return None
    first, *_ = mesh.keywords
    return Edit(Span(call.file, first.lineno, first.col_offset, first.lineno, first.col_offset), f"{name}={new}, ")


def requirement(function: Span, text: str, old: str, new: str) -> Edit | None:
    """A name in the text of the only ``hf.requires`` of a ``def`` with that text."""
    texts = [
        node
        for statement in nodes_of(_tree(function.file))
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.lineno == function.line
        for decorator in statement.decorator_list
        for node in nodes_of(decorator)
        if isinstance(node, ast.Constant) and node.value == text
    ]
    match texts:
        case [node]:
            place = span_of(function.file, node)
            written = source_text(place) or ""  # the name is not in it where it is written with an escape
            count = len(re.findall(rf"\b{old}\b", text))
            mended, replaced = re.subn(rf"\b{old}\b", new, written)
            return Edit(place, mended) if replaced == count else None
    return None


def _variable(file: str, name: str) -> ast.expr | None:
    """The expression that a module assigns to a name, if its file binds that name only once."""
    tree = _tree(file)
    named = [
        node
        for node in nodes_of(tree)
        if (isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.arg) and node.arg == name)
    ]
    for statement in tree.body:
        match statement:
            case ast.Assign([target], value) | ast.AnnAssign(target, value=value) if [target] == named:
                return value
    return None


def literal(file: str, node: ast.expr, old: int, new: int) -> Edit | None:
    """Another number in the place of a literal."""
    written = isinstance(node, ast.Constant) and type(node.value) is int and node.value == old
    return Edit(span_of(file, node), str(new)) if written else None


def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])
