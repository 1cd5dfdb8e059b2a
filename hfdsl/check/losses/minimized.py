"""The values that a body takes gradients of, whatever its losses mean: the part that interpretations of losses share.

A worked example. An interpretation of this body, whose role has ``beta = 0.1``, says what ``loss`` and ``kl`` are, and
this class that the value which the role minimizes is ``loss``, and that the number before ``kl`` is positive::

    loss, kl = self.losses(rows)
    total = loss + self.beta * kl
    accelerator.backward(loss)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.names import value_of
from hfdsl.check.bodies.objects import KnownObject
from hfdsl.check.losses.gradients import OPTIONS
from hfdsl.check.losses.sides import words_of
from hfdsl.check.losses.slopes import Model, number
from hfdsl.check.losses.terms import Dictionary, Several
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.signatures import PortType
from hfdsl.graph.spans import Span, definition_span

V = TypeVar("V")


class Minimized(NamedTuple, Generic[V]):
    """A value that gradients are taken of, with its place."""

    value: V
    place: Span


class MinimizedLosses(FlowInterpretation[V]):
    """An interpretation of the losses of a body, whose values include ``Number``, ``Model`` and tables of values.

    ``numbers`` are those of attributes of the role. Without them, a coefficient is positive if ``trusts_coefficients``.
    """

    numbers: Mapping[str, float]
    trusts_coefficients: bool = True

    def begin(self) -> None:
        """Begin without losses."""
        self.minimized, self.numbers = list[Minimized[V]](), {}
        self.file = definition_span(self.body).file

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls, which collects into the same list."""
        inner = super().inner(body, definition, ports)
        inner.minimized, inner.numbers = self.minimized, self.numbers
        inner.trusts_coefficients = self.trusts_coefficients
        return inner

    def enter(self, owner: KnownObject, name: str) -> None:
        """Begin a method of an object, which has other attributes than the role."""
        super().enter(owner, name)
        self.names[name] = cast("V", Model(frozenset(words_of(owner.path))))
        if owner.path != "self":
            self.numbers = {}

    def several(self, values: Sequence[V | None]) -> V | None:
        """A tuple of values."""
        return cast("V", Several(tuple(values)))

    def table(self, entries: Mapping[str, V | None]) -> V | None:
        """A dictionary of values."""
        return cast("V", Dictionary(dict(entries)))

    def entries(self, value: V | None) -> Mapping[str, V | None] | None:
        """The values of a dictionary by key."""
        return value.entries if isinstance(value, Dictionary) else None

    def value(self, node: ast.expr) -> V | None:
        """The value of an expression: also a literal number, or a constant of the module."""
        match node:
            case ast.Constant(int() | float() as literal):
                return cast("V", number(literal))
            case ast.Name(name) if name not in self.names and not self.scope.sets(name):
                constant = value_of(self.body, name)
                return cast("V", number(constant)) if isinstance(constant, (int, float)) else None
            case ast.Attribute(owner, name) if name != "tensor":
                return self.attribute(node, owner, name)
        return super().value(node)

    def attribute(self, node: ast.Attribute, owner: ast.expr, name: str) -> V | None:
        """An attribute other than a column's tensor; None if unknown."""
        return None

    def minimize(self, operation: Operation[V]) -> None:
        """Note the value that gradients are taken of, as they are: ``loss.backward()``, ``scaler.backward(loss)``."""
        source, positional, others = operation.source, operation.positional, operation.others
        value = None
        if operation.named.keys() <= OPTIONS:
            if isinstance(source, (Model, type(None))):
                value = others[0] if len(positional) == 1 else None
            elif not positional or operation.function != "backward":
                value = source
        self.minimized.append(Minimized(cast("V", value), self.place(operation.node)))

    def place(self, node: ast.expr) -> Span:
        """Where an expression is written."""
        return span_of(self.file, node)
