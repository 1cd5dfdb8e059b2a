"""Views of rows: groups of a number of rows, a number of pieces, and groups as rows again.

Of eight rows of two questions, in a body that keeps groups of four together::

    y.view(-1, 4)                          two groups
    y.view(4, -1)                          four pieces, with rows of both questions
    y.view(-1, 4).flatten()                rows
    y.view(-1, 4).mean(1).repeat(4)        the numbers of both groups in turn, for eight rows
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from hfdsl.check.bodies.interpretation import Interpretation, sizes_of_view
from hfdsl.check.bodies.row_tensors import BodyValue, RowTensor


def viewed(
    rows: RowTensor, function: str, sizes: Sequence[ast.expr], body: Interpretation[BodyValue], *, is_called: bool
) -> BodyValue:
    """Rows in groups of a number, or in a number of pieces; groups as rows again, or repeated.

    ``body`` knows the numbers of sizes. Another function calls it if it ``is_called``; otherwise a dataflow does.
    """
    sizes = sizes_of_view(function, sizes)
    if function == "unflatten":
        if rows.dims != 1 or len(sizes) < 2:
            return None
        function = "reshape"
    in_groups = rows.first in ("groups", "cut groups")
    minus_one = ast.UnaryOp(ast.USub(), ast.Constant(1))
    shape = [ast.dump(size) == ast.dump(minus_one) for size in sizes]
    is_one = [isinstance(size, ast.Constant) and size.value == 1 for size in sizes]
    if function in ("view", "reshape") and shape[:1] == [True] and len(shape) > 1:
        if rows.dims == 1 and is_one[1:] == [True]:
            return RowTensor(2, rows.first, narrow=True)
        if rows.dims == 1 and len(sizes) == 2 and rows.first == "rows":
            whole = _keeps_whole(sizes[1], body, is_called=is_called)
            return None if whole is None else RowTensor(2, "groups" if whole else "cut groups")
        return RowTensor(len(sizes), narrow=is_one[-1])
    if function in ("view", "reshape") and shape == [False, True]:
        count = body.number(sizes[0])
        if rows.dims != 1 or (count is None and isinstance(sizes[0], ast.Name)):
            return None
        return RowTensor(2, "split groups" if count == body.group.size > 1 else "pieces")
    if function in ("view", "reshape") and shape == [False, True, False] and rows.dims == 2:
        is_split = rows.first == "rows" and body.number(sizes[0]) == body.group.size > 1
        return RowTensor(3, "split groups") if is_split else None
    if in_groups and rows.dims == 2 and (function == "flatten" or shape == [True]):
        return RowTensor(1)
    if in_groups and rows.dims == 1 and len(sizes) == 1 and not is_one[0]:
        return {
            "repeat": RowTensor(1, "repeated groups"),
            "tile": RowTensor(1, "repeated groups"),
            "repeat_interleave": RowTensor(1),
        }.get(function)
    return RowTensor(len(sizes), rows.first) if function == "expand" and in_groups else None


def _keeps_whole(size: ast.expr, body: Interpretation[BodyValue], *, is_called: bool) -> bool | None:
    """Whether a plan keeps groups of this size whole; None for an unknown size."""
    kept, parameter = body.group
    match size:
        case ast.Name(name) if name == parameter:
            return True
        case ast.Name(name) if name in body.parameters - body.assigned:
            return False if kept == 1 and parameter is None and not is_called else None
    count = body.number(size)
    return None if count is None or count < 1 else kept % count == 0
