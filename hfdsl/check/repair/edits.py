"""Edits: from a repair to the letters of the user's file that change.

Every function gives None where it does not see what it looks for: a name that is made up at run time, a size that comes
out of a variable. A repair whose text cannot be told stays advice.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
from collections.abc import Iterable, Sequence

from hfdsl.check.findings import Edit
from hfdsl.check.sources import call_at, keyword_span, span_of
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
    lines = [line.encode() for line in lines_of(text)]
    for edit in sorted(edits, key=lambda e: (e.span.line, e.span.column, e.span.end_line, e.span.end_column))[::-1]:
        span = edit.span
        first, last = span.line - 1, span.end_line - 1
        head, tail = lines[first][: span.column], lines[last][span.end_column :]
        lines[first : last + 1] = [head + edit.text.encode() + tail]
    return b"".join(lines).decode()


def overlap(one: Sequence[Edit], other: Sequence[Edit]) -> bool:
    """Whether two fixes cannot both be made: they touch the same letters, or the same place."""
    return any(
        a.span.file == b.span.file
        and (a.span.line, a.span.column) <= (b.span.end_line, b.span.end_column)
        and (b.span.line, b.span.column) <= (a.span.end_line, a.span.end_column)
        for a in one
        for b in other
    )


def rename(place: Span, old: str, new: str) -> Edit | None:
    """``x.old`` becomes ``x.new``, or ``f(old=...)`` becomes ``f(new=...)``, in the expression at ``place``."""
    size = len(old.encode())
    keyword = keyword_span(place, old)
    if keyword != place:
        found = Span(place.file, keyword.line, keyword.column, keyword.line, keyword.column + size)
        return Edit(found, new) if _text(found) == old else None
    found = Span(place.file, place.end_line, place.end_column - size, place.end_line, place.end_column)
    before = Span(place.file, place.end_line, found.column - 1, place.end_line, found.column)
    attribute = found.column > 0 and _text(found) == old and _text(before) == "."
    return Edit(found, new) if attribute else None


def spelt(call: Span, old: str, new: str) -> Edit | None:
    """A name that is given to a call as text."""
    found = call_at(call)
    nodes = [node for node in ast.walk(found) if isinstance(node, ast.Constant) and node.value == old] if found else []
    written = _text(span_of(call.file, nodes[0])) if len(nodes) == 1 else None
    if written is None or written[1:-1] != old:
        return None  # in three quotes, with a prefix or an escape
    return Edit(span_of(call.file, nodes[0]), f"{written[0]}{new}{written[-1]}")


def keywords(call: Span, signature: Signature, name: str) -> tuple[Edit, ...]:
    """The keyword-only port ``name``, and all that are given by position after it, are given by name instead."""
    found = call_at(call)
    if found is None or any(isinstance(argument, ast.Starred) for argument in found.args):
        return ()
    given = {keyword.arg for keyword in found.keywords}
    first = sum(not port.keyword_only for port in signature.ports)
    spare = [port.name for port in signature.ports if port.keyword_only and port.name not in given]
    pairs = list(zip(spare, found.args[first:], strict=False))
    later = pairs[spare.index(name) :] if name in spare else []
    places = [(port, span_of(call.file, argument)) for port, argument in later]
    return tuple(Edit(Span(p.file, p.line, p.column, p.line, p.column), f"{port}=") for port, p in places)


def wrap(argument: Span, function: str, number: int) -> tuple[Edit, Edit] | None:
    """``x`` becomes ``hf.repeat(x, number)`` or another such call, in the words of the user's imports."""
    name = spelling(argument.file, function)
    if name is None or not argument.end_column or _stands(argument, r"\*"):
        return None
    start = Span(argument.file, argument.line, argument.column, argument.line, argument.column)
    end = Span(argument.file, argument.end_line, argument.end_column, argument.end_line, argument.end_column)
    return Edit(start, f"{name}("), Edit(end, f", {number})")


def swap(one: Span, other: Span) -> tuple[Edit, Edit] | None:
    """Two expressions of one line each, each in the place of the other."""
    texts = _text(one), _text(other)
    return (Edit(one, texts[1]), Edit(other, texts[0])) if texts[0] and texts[1] else None


def spelling(file: str, name: str) -> str | None:
    """How a module calls a name of hfdsl, by its imports at the top."""
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


def size(call: Span, dim: type[Dim], old: int, new: int) -> Edit | None:
    """The number of ``dim`` in the ``dims={...}`` of a call, or in the module's variable that is given there."""
    found = call_at(call)
    given = next((k.value for k in found.keywords if k.arg == "dims"), None) if found else None
    if isinstance(given, ast.Name):
        given = _variable(call.file, given.id)
    numbers = [
        value
        for key, value in (zip(given.keys, given.values, strict=True) if isinstance(given, ast.Dict) else ())
        if (isinstance(key, ast.Name) and key.id == dim.__name__)
        or (isinstance(key, ast.Attribute) and key.attr == dim.__name__)
    ]
    return number(call.file, numbers[0], old, new) if len(numbers) == 1 else None


def axis(call: Span, name: str, old: int, new: int) -> Edit | None:
    """The size of an axis in the ``mesh=hf.Mesh(...)`` of a call; an axis that is left out there is written."""
    found = call_at(call)
    mesh = next((k.value for k in found.keywords if k.arg == "mesh"), None) if found else None
    if not isinstance(mesh, ast.Call) or mesh.args or not mesh.keywords:
        return None
    sizes = {keyword.arg: keyword.value for keyword in mesh.keywords}
    if name in sizes:
        return number(call.file, sizes[name], old, new)
    if None in sizes:  # Mesh(**sizes)
        return None
    first = mesh.keywords[0]
    return Edit(Span(call.file, first.lineno, first.col_offset, first.lineno, first.col_offset), f"{name}={new}, ")


def requirement(function: Span, text: str, old: str, new: str) -> Edit | None:
    """A name in the text of the one ``hf.requires`` that a ``def`` has it in."""
    found = [
        node
        for statement in ast.walk(_tree(function.file))
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.lineno == function.line
        for decorator in statement.decorator_list
        for node in ast.walk(decorator)
        if isinstance(node, ast.Constant) and node.value == text
    ]
    written = _text(span_of(function.file, found[0])) if len(found) == 1 else None
    if written is None or len(re.findall(rf"\b{old}\b", written)) != len(re.findall(rf"\b{old}\b", text)):
        return None  # joined of several strings, or a name inside of an escape
    return Edit(span_of(function.file, found[0]), re.sub(rf"\b{old}\b", new, written))


def _variable(file: str, name: str) -> ast.expr | None:
    """What a module gives to a name, where it does so once."""
    tree = _tree(file)
    given: list[ast.expr | None] = []
    for node in ast.walk(tree):
        stored = isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        if stored or (isinstance(node, ast.arg) and node.arg == name):
            given.append(None)
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            given[:1] = [getattr(statement, "value", None)]
    return given[0] if len(given) == 1 else None


def number(file: str, node: ast.expr, old: int, new: int) -> Edit | None:
    """Another number where one is written."""
    written = isinstance(node, ast.Constant) and type(node.value) is int and node.value == old
    return Edit(span_of(file, node), str(new)) if written else None


def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def _text(span: Span) -> str | None:
    """What stands at a span of one line."""
    line = linecache.getline(span.file, span.line).encode()
    return line[span.column : span.end_column].decode(errors="replace") if span.line == span.end_line else None


def _stands(span: Span, pattern: str) -> bool:
    """Whether what begins at a span is of this form."""
    rest = linecache.getline(span.file, span.line).encode()[span.column :].decode(errors="replace")
    return re.match(pattern, rest) is not None
