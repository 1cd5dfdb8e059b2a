"""Syntax trees: their nodes, which rules ask for hundreds of times, the parts of an index, and comparisons."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

COMPARISON_OPERATORS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
"""The functions of the comparisons that two known values decide."""


@lru_cache(maxsize=2**15)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """A tree and every node below it, level by level, in the order of ``ast.walk``; the tree must not change.

    >>> [type(node).__name__ for node in nodes_of(ast.parse("-x", mode="eval"))]
    ['Expression', 'UnaryOp', 'USub', 'Name', 'Load']
    """
    nodes = [tree]
    for node in nodes:  # it grows meanwhile
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
    return tuple(nodes)


def index_parts(index: ast.expr) -> list[ast.expr]:
    """The expressions of an index, one for each dim that it names.

    >>> [ast.unparse(part) for part in index_parts(ast.parse("x[1:, 0]", mode="eval").body.slice)]
    ['1:', '0']
    """
    return index.elts if isinstance(index, ast.Tuple) else [index]
