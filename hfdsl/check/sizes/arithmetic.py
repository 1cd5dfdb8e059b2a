"""Requirements as arithmetic: those of the forms "a number divides a size" and "a size is at least zero".

They are solved together with every split of the program; the others can only be evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from hfdsl.check.sizes.requirements import Scope, evaluate, parsed
from hfdsl.errors import DefinitionError
from hfdsl.types.dims import Answer, Size, constant


@dataclass(frozen=True, slots=True)
class CallScope:
    """The names of a requirement at a call: ``sizes`` as the call binds its dims, ``numbers`` as far as known.

    ``chunks`` divides the call's ``rows`` because they are split into as many chunks.
    """

    sizes: Mapping[str, Size]
    numbers: Scope
    rows: Size | None = None
    chunks: int = 1

    def exact(self, size: Size, divisor: Size) -> bool:
        """Whether ``size // divisor`` has no remainder, because of the split or for all sizes."""
        number = divisor.value
        if number is None or number.denominator != 1 or number < 1:
            return False
        return size.divisible_by(int(number)) is Answer.PROVED or (size == self.rows and self.chunks % number == 0)


def divisibility(text: str, scope: CallScope) -> tuple[Size, int] | None:
    """The size and the divisor of a requirement ``size % number == 0``; None for any other.

    >>> from hfdsl.types.dims import Dim, size
    >>> class P(Dim): ...
    >>> class R(Dim): ...
    >>> scope = CallScope({"P": size(P), "R": size(R)}, Scope({}, None, config=False))
    >>> [str(part) for part in divisibility("(P + R) % 4 == 0", scope) or ()]
    ['P+R', '4']
    """
    match parsed(text):
        case ast.Compare(ast.BinOp(left, ast.Mod(), right), [ast.Eq()], [ast.Constant(0)]):
            try:
                size, divisor = _polynomial(left, scope), evaluate(right, scope.numbers)
            except (DefinitionError, ZeroDivisionError):
                return None  # reported where requirements are evaluated
            if size is not None and size.atoms and isinstance(divisor, Fraction):
                return (size, int(divisor)) if divisor.denominator == 1 and divisor >= 1 else None
    return None


_ABOVE = {ast.GtE: False, ast.Gt: True}
_BELOW = {ast.LtE: False, ast.Lt: True}


def limit(text: str, scope: CallScope) -> tuple[Size, bool] | None:
    """A requirement ``a <= b`` (or <, >=, >) as a size that is at least 0 (True: above 0); None for any other.

    >>> from hfdsl.types.dims import Dim, size
    >>> class R(Dim): ...
    >>> bound = limit("R < 512", CallScope({"R": size(R)}, Scope({}, None, config=False)))
    >>> bound and str(bound[0]), bound and bound[1]
    ('-R+512', True)
    """
    match parsed(text):
        case ast.Compare(left, [op], [right]) if type(op) in _ABOVE or type(op) in _BELOW:
            try:
                a, b = _polynomial(left, scope), _polynomial(right, scope)
            except DefinitionError:
                return None
            if a is None or b is None or not (a - b).atoms:
                return None
            return (a - b, _ABOVE[type(op)]) if type(op) in _ABOVE else (b - a, _BELOW[type(op)])
    return None


def _polynomial(node: ast.expr, scope: CallScope) -> Size | None:
    """An expression as a size; None if it is not one, or if a name in it is not known yet.

    Raises:
        DefinitionError: HF323 for an unknown name.
    """
    match node:
        case ast.Name(name) if name in scope.sizes:
            return scope.sizes[name]
        case ast.Name() | ast.Constant():
            number = evaluate(node, scope.numbers)
            return constant(number) if isinstance(number, Fraction) else None
        case ast.BinOp(left, op, right):
            a, b = _polynomial(left, scope), _polynomial(right, scope)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv() if scope.exact(a, b):
                    return a / b
    return None
