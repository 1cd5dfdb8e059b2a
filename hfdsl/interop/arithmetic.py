"""Integer expressions of shells, as in ``$((MAX_PROMPT + MAX_RESPONSE))``."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

from hfdsl.check.syntax_trees import COMPARISON_OPERATORS

MAX_BITS = 80

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),  # toward zero, as C has it
    ast.Mod: lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


def integer(expression: str, number: Callable[[str], str | None]) -> int | None:
    """The value of an expression; ``number`` gives the text of a variable. None if unknown.

    >>> integer("a * 2 + 7 / 2", {"a": "5"}.get)
    13
    >>> integer("b + 1", {}.get)
    """
    text = re.sub(r"\$\{?(\w+)\}?", r"\1", expression.strip())
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).replace("/", "//")
    if len(text) > 500 or not re.fullmatch(r"[\w\s+\-*/%()<>=!]+", text) or "**" in text or "///" in text:
        return None
    try:
        return _value(ast.parse(text, mode="eval").body, number)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, number: Callable[[str], str | None]) -> int | None:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            text = number(name)
            return int(text) if text is not None and re.fullmatch(r"-?(0|[1-9]\d{0,18})", text) else None
        case ast.UnaryOp(op=sign, operand=operand):
            inner = _value(operand, number)
            if inner is None:
                return None
            return {ast.USub: -inner, ast.UAdd: inner, ast.Not: int(not inner)}.get(type(sign))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            a, b = _value(left, number), _value(right, number)
            if a is None or b is None:
                return None
            result = _BINARY[type(sign)](a, b)
            return result if result.bit_length() <= MAX_BITS else None
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in COMPARISON_OPERATORS:
            a, b = _value(left, number), _value(right, number)
            return None if a is None or b is None else int(COMPARISON_OPERATORS[type(sign)](a, b))
        case ast.BoolOp(op=ast.And() | ast.Or() as sign, values=values):
            truths = [_value(value, number) for value in values]
            if any(truth is None for truth in truths):
                return None
            return int((all if isinstance(sign, ast.And) else any)(truths))
    return None
