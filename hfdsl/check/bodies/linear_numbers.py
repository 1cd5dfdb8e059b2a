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

from hfdsl.check.bodies.names import local_names, value_of
from hfdsl.check.bodies.scopes import FunctionScope
from hfdsl.check.bodies.syntax import assigned_names


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


class LinearNumbers:
    """The names of a function that are known as linear numbers."""

    def __init__(self, scope: FunctionScope) -> None:
        self.scope, self.forms = scope, dict[str, Linear]()

    # -- expressions

    def of(self, node: ast.expr | None) -> Linear | None:
        """An expression as a linear number; None if it is none that is certain."""
        match node:
            case ast.Constant(int() | float() as number) if not isinstance(number, bool):
                return Linear(float(number))
            case ast.UnaryOp(ast.USub(), operand):
                form = self.of(operand)
                return None if form is None else form.times(-1.0)
            case ast.BinOp(left, operator, right):
                return _combined(operator, self.of(left), self.of(right))
            case ast.Name(name):
                return self._of_name(name)
            case ast.Attribute() | ast.Subscript(_, ast.Constant()):
                return self.named(ast.unparse(node))
            case ast.Call(ast.Name("float"), [number]) | ast.Call(
                ast.Attribute(ast.Name("torch"), "as_tensor" | "tensor") | ast.Attribute(_, "new_tensor"), [number, *_]
            ):
                return self.of(number)
            case ast.Call(ast.Attribute(ast.Name("torch"), "full_like"), [_, number, *_]):
                return self.of(number)
            case ast.Call(ast.Attribute(ast.Name("torch"), "ones_like"), _):
                return Linear(1.0)
        return None

    def named(self, text: str) -> Linear:
        """A number that is written so in this function, and may be another one elsewhere."""
        if text.startswith("self."):
            return Linear.of(self.scope.receiver + text.removeprefix("self"))
        return Linear.of(text if self.scope.depth == 0 else f"{self.scope.definition.name}.{text}")

    def _of_name(self, name: str) -> Linear:
        if name in self.forms or name in local_names(self.scope.definition):
            return self.forms.get(name, self.named(name))
        value = value_of(self.scope.body, name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return Linear(float(value)) if is_number else self.named(name)  # type: ignore[arg-type]  # a number

    # -- names

    def assigned(self, target: ast.expr, node: ast.expr) -> Mapping[str, Linear]:
        """The names that have a form once an expression is assigned, which has not happened yet."""
        assigned = dict(self._assigned(target, node))
        return {name: form for name, form in assigned.items() if self.forms.get(name, form) == form}

    def _assigned(self, target: ast.expr, node: ast.expr) -> Iterator[tuple[str, Linear]]:
        match target, node:
            case ast.Name(name), _:
                form = self.of(node)
                if form is not None:
                    yield name, form
            case ast.Tuple(targets), ast.Tuple(parts) if len(targets) == len(parts):
                for inner, part in zip(targets, parts, strict=True):
                    yield from self._assigned(inner, part)

    def set(self, target: ast.expr) -> None:
        """Set a name, which stands for itself from here on."""
        self.forms |= {name: self.named(name) for name in assigned_names(target)}

    def give(self, inner: LinearNumbers, arguments: Mapping[str, ast.expr]) -> None:
        """Give a function that is called its arguments."""
        inner.forms |= {name: self.of(value) or inner.named(name) for name, value in arguments.items()}

    def enclose(self, inner: LinearNumbers) -> None:
        """Give a function that this one defines the names of this one."""
        own = local_names(inner.scope.definition)
        outer = (local_names(self.scope.definition) | self.forms.keys()) - own
        inner.forms |= {name: self.forms.get(name, self.named(name)) for name in outer}


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
