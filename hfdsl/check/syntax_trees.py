"""The nodes of syntax trees, found once: rules ask hundreds of times for those of the same function."""

from __future__ import annotations

import ast
from functools import lru_cache


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
