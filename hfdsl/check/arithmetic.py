"""Requirements as arithmetic: those that say that a number divides a size, or that a size is at least zero.

They are solved together with every split of the program; the others can only be evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hfdsl.check.requirements import Known, evaluate, parsed
from hfdsl.errors import DefinitionError
from hfdsl.types.dims import Answer, Size, constant


@dataclass(frozen=True, slots=True)
class Terms:
    """What the names of a requirement stand for at a call: ``sizes`` are dims as the call binds them, known or not.

    ``chunks`` divides the call's ``rows`` because they are split into as many chunks.
    """

    sizes: Mapping[str, Size]
    known: Known
    rows: Size | None = None
    chunks: int = 1

    def exact(self, size: Size, divisor: Size) -> bool:
        """Whether ``size // divisor`` has no remainder, because of the split or for all sizes."""
        number = divisor.value
        if number is None or number.denominator != 1 or number < 1:
            return False
        return size.divisible_by(int(number)) is Answer.PROVED or (size == self.rows and self.chunks % number == 0)


def divisibility(text: str, terms: Terms) -> tuple[Size, int] | None:
    """The size and the divisor of a requirement ``size % number == 0``; None for any other.

    >>> from hfdsl.types.dims import Dim, size
    >>> class P(Dim): ...
    >>> class R(Dim): ...
    >>> terms = Terms({"P": size(P), "R": size(R)}, Known({}, None, config=False))
    >>> [str(part) for part in divisibility("(P + R) % 4 == 0", terms) or ()]
    ['P+R', '4']
    """
    match parsed(text):
        case ast.Compare(ast.BinOp(left, ast.Mod(), right), [ast.Eq()], [ast.Constant(0)]):
            try:
                size, divisor = _polynomial(left, terms), evaluate(right, terms.known)
            except (DefinitionError, ZeroDivisionError):
                return None  # reported where requirements are evaluated
            if size is not None and size.atoms and isinstance(divisor, Fraction):
                return (size, int(divisor)) if divisor.denominator == 1 and divisor >= 1 else None
    return None


_ABOVE = {ast.GtE: False, ast.Gt: True}
_BELOW = {ast.LtE: False, ast.Lt: True}


def limit(text: str, terms: Terms) -> tuple[Size, bool] | None:
    """A requirement ``a <= b`` (or <, >=, >) as a size that is at least 0 (True: above 0); None for any other.

    >>> from hfdsl.types.dims import Dim, size
    >>> class R(Dim): ...
    >>> bound = limit("R < 512", Terms({"R": size(R)}, Known({}, None, config=False)))
    >>> bound and str(bound[0]), bound and bound[1]
    ('-R+512', True)
    """
    match parsed(text):
        case ast.Compare(left, [op], [right]) if type(op) in _ABOVE or type(op) in _BELOW:
            try:
                a, b = _polynomial(left, terms), _polynomial(right, terms)
            except DefinitionError:
                return None
            if a is None or b is None or not (a - b).atoms:
                return None
            return (a - b, _ABOVE[type(op)]) if type(op) in _ABOVE else (b - a, _BELOW[type(op)])
    return None


def _polynomial(node: ast.expr, terms: Terms) -> Size | None:
    """An expression as a size; None if it is not one, or if a name in it is not known yet.

    Raises:
        DefinitionError: HF323 for an unknown name.
    """
    match node:
        case ast.Name(name) if name in terms.sizes:
            return terms.sizes[name]
        case ast.Name() | ast.Constant():
            number = evaluate(node, terms.known)
            return constant(number) if isinstance(number, Fraction) else None
        case ast.BinOp(left, op, right):
            a, b = _polynomial(left, terms), _polynomial(right, terms)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv() if terms.exact(a, b):
                    return a / b
    return None
