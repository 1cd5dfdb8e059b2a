"""Changes of names: which an assignment or a loop changes, and what they may have from then on.

A worked example::

    for row, (share, gain) in enumerate(zip(shares, gains)):    share of shares, gain of gains
        total[row] = share                                      total of share
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def changed_names(target: ast.expr) -> Iterator[str]:
    """The names that an assignment changes.

    >>> list(changed_names(ast.parse("x[i], (y, *z) = rows").body[0].targets[0]))
    ['x', 'y', 'z']
    """
    match target:
        case ast.Name(name):
            yield name
        case ast.Tuple(parts) | ast.List(parts):
            for part in parts:
                yield from changed_names(part)
        case ast.Subscript(value) | ast.Starred(value):
            yield from changed_names(value)


def loop_values(target: ast.expr, iterated: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names that a loop sets, each with what it goes through for them: of ``zip``, one each."""
    match target, iterated:
        case ast.Tuple(targets), ast.Call(ast.Name("zip"), sources) if len(targets) == len(sources):
            for each, source in zip(targets, sources, strict=True):
                yield from loop_values(each, source)
        case ast.Tuple([_, value]), ast.Call(ast.Name("enumerate"), [source, *_]):
            yield from loop_values(value, source)
        case _:
            yield from ((name, iterated) for name in changed_names(target))
