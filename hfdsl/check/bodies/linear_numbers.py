"""Linear numbers: bounds and ranges that bodies compute of hyperparameters whose values a check need not know.

A worked example, of a role whose clip range is its user's to choose::

    def clipped(self, ratio, low, high):
        return ratio.clamp(low, 1 + high)                       low is -self.eps, 1 + high is 1 + self.eps

    eps = self.eps
    held = self.clipped(ratio, -eps, eps)

A name has a form if all that is assigned to it has this form; otherwise it stands for itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.names import local_names, value_of
from hfdsl.check.bodies.syntax import assigned_names

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Linear:
    """A number: an offset, and factors of other numbers, by what they are called.

    >>> Linear(1.0).plus(Linear.of("eps").times(-1.0))
    Linear(offset=1.0, factors=(('eps', -1.0),))
    """

    offset: float
    factors: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, name: str) -> Linear:
        """A number of which only the name is known."""
        return cls(0.0, ((name, 1.0),))

    def plus(self, other: Linear) -> Linear:
        """The sum with another one."""
        factors = dict(self.factors)
        for name, factor in other.factors:
            factors[name] = factors.get(name, 0.0) + factor
        return Linear(self.offset + other.offset, tuple(sorted((n, f) for n, f in factors.items() if f)))

    def times(self, number: float) -> Linear:
        """The product with a number that is known."""
        factors = ((name, factor * number) for name, factor in self.factors if number)
        return Linear(self.offset * number, tuple(factors))

    def given(self, values: Mapping[str, float]) -> Linear:
        """The number where some of the others are known.

        >>> Linear(1.0, (("eps", -1.0),)).given({"eps": 0.25})
        Linear(offset=0.75, factors=())
        """
        known = sum(factor * values[name] for name, factor in self.factors if name in values)
        return Linear(self.offset + known, tuple(pair for pair in self.factors if pair[0] not in values))


class LinearInterpretation(FlowInterpretation[V]):
    """An interpretation that also knows names as linear numbers."""

    def begin(self) -> None:
        """Begin without names that are known as linear numbers."""
        super().begin()
        self.forms = dict[str, Linear]()

    def give(self, inner: FlowInterpretation[V], arguments: Mapping[str, ast.expr]) -> None:
        """Give the interpretation of a function its arguments, also as linear numbers."""
        super().give(inner, arguments)
        if isinstance(inner, LinearInterpretation):
            inner.forms |= {name: self.form(value) or inner.named(name) for name, value in arguments.items()}

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Assign an expression, also as a linear number."""
        before, assigned = dict(self.forms), dict(self._assigned_forms(target, node))
        super().assign(target, node)
        self.forms |= {name: form for name, form in assigned.items() if before.get(name, form) == form}

    def set(self, target: ast.expr, value: V | None) -> None:
        """Set the value of a name, which stands for itself from here on."""
        super().set(target, value)
        self.forms |= {name: self.named(name) for name in assigned_names(ast.Expr(target))}

    def named(self, text: str) -> Linear:
        """A number that is written so in this function, and may be another one elsewhere."""
        is_anywhere = self.depth == 0 or text.startswith("self.")
        return Linear.of(text if is_anywhere else f"{self.definition.name}.{text}")

    def _assigned_forms(self, target: ast.expr, node: ast.expr) -> Iterator[tuple[str, Linear]]:
        match target, node:
            case ast.Name(name), _:
                form = self.form(node)
                if form is not None:
                    yield name, form
            case ast.Tuple(targets), ast.Tuple(parts) if len(targets) == len(parts):
                for inner, part in zip(targets, parts, strict=True):
                    yield from self._assigned_forms(inner, part)

    def form(self, node: ast.expr | None) -> Linear | None:
        """An expression as a linear number; None if it is none that is certain."""
        match node:
            case ast.Constant(int() | float() as number) if not isinstance(number, bool):
                return Linear(float(number))
            case ast.UnaryOp(ast.USub(), operand):
                form = self.form(operand)
                return None if form is None else form.times(-1.0)
            case ast.BinOp(left, operator, right):
                return _combined(operator, self.form(left), self.form(right))
            case ast.Name(name):
                return self._of_name(name)
            case ast.Attribute() | ast.Subscript(_, ast.Constant()):
                return self.named(ast.unparse(node))
            case ast.Call(ast.Name("float"), [number]):
                return self.form(number)
        return None

    def _of_name(self, name: str) -> Linear:
        if name in self.forms or name in local_names(self.definition):
            return self.forms.get(name, self.named(name))
        value = value_of(self.body, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return Linear(float(value)) if is_number else self.named(name)  # type: ignore[arg-type]  # a number


def _combined(operator: ast.operator, left: Linear | None, right: Linear | None) -> Linear | None:
    """The result of arithmetic with two numbers; None if it is not linear in what is not known."""
    if left is None or right is None:
        return None
    match operator:
        case ast.Add():
            return left.plus(right)
        case ast.Sub():
            return left.plus(right.times(-1.0))
        case ast.Mult() if not left.factors:
            return right.times(left.offset)
        case ast.Mult() if not right.factors:
            return left.times(right.offset)
        case ast.Div() if not right.factors and right.offset:
            return left.times(1.0 / right.offset)
    return None
