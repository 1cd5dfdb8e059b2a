"""Interpretation of a body in temperatures: by how much it has divided logits where it samples, or takes log-probs.

A worked example, of a role that is placed with ``temperature=0.7``::

    logits = self.model(ids).logits[:, -1] / self.temperature     logits at 0.7
    token = torch.multinomial(logits.softmax(-1), 1)              samples at 0.7
    log_probs = self.model(ids).logits.log_softmax(-1)            all log-probs at 1
    picked = log_probs.gather(-1, token)                          takes log-probs at 1

Numbers are known from literals, constants of the module, the call, and what a role is constructed with. Of what is not
known, the temperature is unknown, and so is that of logits which are cut or changed otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import FunctionType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation, RowGroups
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.known_values import Known, applied, computed, constructor_arguments, plain
from hfdsl.check.bodies.names import MISSING, value_of
from hfdsl.check.bodies.objects import CalledFunction
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.bodies.syntax import callee, definition_of
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.signatures import PortType
from hfdsl.graph.spans import Span, definition_span

ScaledKind: TypeAlias = Literal[
    "logits", "distribution", "chances", "sums", "chosen", "normalizer", "categorical", "settings"
]

TEMPERATURE: Final = re.compile(r"(.*_)?(tau|temp|temperature)s?(_.*)?")
"""The names of temperatures."""

SAME: Final = functions(
    "bfloat16 clone contiguous cpu cuda detach double expand flatten float half log_ logits masked_fill "
    "masked_fill_ max nan_to_num permute reshape squeeze to transpose type unsqueeze values view"
)
"""Functions and attributes that leave a temperature as it is."""

KINDS: Final[Mapping[str, ScaledKind]] = {
    "cumsum": "sums",
    "exp": "chances",
    "log": "distribution",
    "logsumexp": "normalizer",
}
"""By function what it makes of logits or what is made of them."""

DIVIDES, MULTIPLIES = functions("div div_ true_divide"), functions("mul mul_ multiply")
"""Functions that change the temperature of logits."""

PICKS: Final = functions("cross_entropy gather log_prob nll_loss take_along_dim")
"""Functions that take numbers of chosen tokens."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Logits, or what is made of them, at a temperature; None if it is unknown.

    ``distribution`` are log-probs of all tokens, and ``chances`` their exponentials, of which ``sums`` add up those of
    the tokens before, too. ``chosen`` are logits of given tokens, ``normalizer`` is what to subtract for log-probs.
    ``settings`` are for sampling.
    """

    kind: ScaledKind
    temperature: float | None


ScaledValue: TypeAlias = Known | Scaled | None
"""The abstract value of an expression; None if unknown."""


class Use(NamedTuple):
    """A place where logits are used, and their temperature there."""

    place: Span
    temperature: float | None


@dataclass(slots=True)
class Uses:
    """Where a body samples and takes log-probs.

    ``is_unclear`` says that the body reads something which is named after temperatures and not known.
    """

    sampled: list[Use] = field(default_factory=list)
    picked: list[Use] = field(default_factory=list)
    is_unclear: bool = False

    @property
    def samples(self) -> Use | None:
        """Where the body samples, if it does at one temperature that is known."""
        return self._certain(self.sampled)

    @property
    def picks(self) -> Use | None:
        """Where the body takes log-probs, likewise."""
        return self._certain(self.picked)

    def _certain(self, uses: Sequence[Use]) -> Use | None:
        temperatures = {use.temperature for use in uses}
        if len(temperatures) != 1 or None in temperatures or (temperatures == {1.0} and self.is_unclear):
            return None
        return uses[0]


class TemperatureInterpretation(FlowInterpretation[ScaledValue]):
    """The interpretation of a body in temperatures; ``attributes`` are what is known of those of ``self``."""

    def begin(self) -> None:
        """Begin with nothing used and no attribute known."""
        super().begin()
        self.file, self.uses = definition_span(self.body).file, Uses()
        self.attributes, self.constructors = dict[str, ScaledValue](), list[FunctionType]()

    def inner(
        self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]
    ) -> TemperatureInterpretation:
        """The interpretation of a function that the body calls, which collects into the same lists."""
        inner = super().inner(body, definition, ports)
        inner.uses, inner.attributes, inner.constructors = self.uses, self.attributes, self.constructors[1:]
        return inner

    # -- flow

    def branch(self, statement: ast.If) -> bool:
        """Run the branch that is taken, or both."""
        test = self.value(statement.test)
        if isinstance(test, Known):
            return self.run_block(statement.body if test.value else statement.orelse)
        return super().branch(statement)

    def joined(self, left: ScaledValue, right: ScaledValue) -> ScaledValue:
        """One of two values."""
        if left == right:
            return left
        both = [value for value in (left, right) if isinstance(value, Scaled)]
        return replace(both[0], temperature=None) if both else None

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Assign an expression; a model that is made with a temperature may divide by it."""
        super().assign(target, node)
        match target:
            case ast.Attribute(ast.Name("self"), name) if self.attributes[name] is None:
                is_tempered = any(map(_is_temperature, nodes_of(node)))
                self.attributes[name] = Scaled("logits", None) if is_tempered else None

    def set(self, target: ast.expr, value: ScaledValue) -> None:
        """Set a name, or an attribute of ``self``."""
        match target:
            case ast.Attribute(ast.Name("self"), name):
                self.attributes[name] = self.joined(self.attributes.get(name, value), value)
            case _:
                super().set(target, value)

    def run(self, statement: ast.stmt) -> None:
        """Run a statement, also one that changes a tensor in place."""
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method)) as call) if method.endswith("_"):
                self.names[name] = self.value(call)
            case _:
                super().run(statement)

    def set_part(self, value: ScaledValue, part: ScaledValue) -> ScaledValue:
        """Logits of which some have been set, such as those of tokens that are not to be sampled."""
        return value if isinstance(value, Scaled) and not isinstance(part, Scaled) else self.joined(value, part)

    # -- leaves

    def value(self, node: ast.expr) -> ScaledValue:
        """The value of an expression."""
        match node:
            case ast.Constant(literal):
                return Known(literal)
            case ast.Name(name) | ast.Attribute(attr=name):
                value = self.named(node)
                self.uses.is_unclear |= value is None and TEMPERATURE.fullmatch(name) is not None
                return value
            case ast.IfExp(test, left, right) if isinstance(known := self.value(test), Known):
                return self.value(left if known.value else right)
        return super().value(node)

    def named(self, node: ast.Name | ast.Attribute) -> ScaledValue:
        """The value of a name, of an attribute of ``self``, or of one of data that is known."""
        match node:
            case ast.Name(name) if name not in self.names and not self.scope.sets(name):
                return plain(value_of(self.body, name))
            case ast.Attribute(ast.Name("self"), name) if "self" in self.parameters:
                return self.attributes.get(name)
            case ast.Attribute(owner, name) if name != "tensor" and isinstance(data := self.value(owner), Known):
                return plain(getattr(data.value, name, MISSING))
        return super().value(node)

    # -- operations

    def of_operation(self, operation: Operation[ScaledValue]) -> ScaledValue:
        """The result of an operation on logits, or on numbers that are known."""
        function, source = operation.function, operation.source
        other = operation.other
        if isinstance(source, Known) and isinstance(other, Known):
            return computed(function, source.value, other.value)
        if isinstance(source, Known) and function == "neg":
            return computed("mul", -1, source.value)
        if isinstance(source, Known) and isinstance(other, Scaled) and function in MULTIPLIES:
            source, other = other, source
        if function in ("log_softmax", "softmax") and not isinstance(source, Known):
            kind: ScaledKind = "chances" if function == "softmax" else "distribution"
            return Scaled(kind, source.temperature if isinstance(source, Scaled) else None)
        if function == "where" and len(operation.others) == 2:
            scaled = [value for value in operation.others if isinstance(value, Scaled)]
            return self.joined(scaled[0], scaled[-1]) if scaled else None
        if function == "generate":
            self.generate(operation)
            return None
        if function == "logits" and source is None:
            return Scaled("logits", 1.0)
        return self.of_scaled(operation, source, other) if isinstance(source, Scaled) else None

    def of_scaled(self, operation: Operation[ScaledValue], source: Scaled, other: ScaledValue) -> ScaledValue:
        """The result of a function of logits."""
        function = operation.function
        if function in KINDS:
            return replace(source, kind=KINDS[function])
        is_index = function == SUBSCRIPT and source.kind == "distribution" and _picks(operation)
        if function in PICKS or is_index:
            if function in ("gather", "take_along_dim") and source.kind == "logits":
                return replace(source, kind="chosen")
            self.uses.picked.append(self.use(operation, source))
            return None
        if function in ("multinomial", "sample") or (source.kind == "sums" and _is_drawn(operation)):
            self.uses.sampled.append(self.use(operation, source))
            return None
        if function in ("sub", "subtract"):
            return self.normalized(operation, source, other)
        if function in DIVIDES | MULTIPLIES:
            factor = _number(other)
            if factor is None or source.temperature is None:
                return replace(source, temperature=None)
            temperature = source.temperature * factor if function in DIVIDES else source.temperature / factor
            return Scaled("logits", temperature)
        is_view = function in SAME or function == SUBSCRIPT
        return source if is_view else (replace(source, temperature=None) if function in ("add", "add_") else None)

    def normalized(self, operation: Operation[ScaledValue], source: Scaled, other: ScaledValue) -> ScaledValue:
        """Log-probs: logits less the logarithm of the sum of their exponentials."""
        if other == Scaled("normalizer", source.temperature):
            if source.kind != "chosen":
                return replace(source, kind="distribution")
            self.uses.picked.append(self.use(operation, source))
        return replace(source, temperature=None)

    def use(self, operation: Operation[ScaledValue], source: Scaled) -> Use:
        """A place where logits are used."""
        return Use(span_of(self.file, operation.node), source.temperature)

    def generate(self, operation: Operation[ScaledValue]) -> None:
        """Collect a call of a model or an engine that samples: by settings, or with a temperature of its own."""
        settings = [value for value in operation.others if isinstance(value, Scaled) and value.kind == "settings"]
        temperature = settings[0].temperature if len(settings) == 1 else _temperature(operation.named_values)
        self.uses.sampled.append(self.use(operation, Scaled("settings", temperature)))

    # -- calls

    def call(self, call: ast.Call) -> ScaledValue:
        """The result of a call: also of a model, and of what makes a distribution or settings."""
        name = str(getattr(call.func, "id", getattr(call.func, "attr", "")))
        match call.func:
            case ast.Name("float" | "max" | "min" as function):
                numbers = [self.value(argument) for argument in call.args]
                return applied(function, numbers)
            case ast.Attribute(ast.Call(ast.Name("super")), "__init__") if self.constructors:
                body, definition = self.constructors[0], definition_of(self.constructors[0])
                return (
                    None
                    if definition is None
                    else self.evaluated(CalledFunction(body, definition, is_bound=True), call)
                )
            case ast.Attribute(ast.Name("self"), attribute) if attribute not in self.scope.methods:
                return self.of_model(call)
            case ast.Attribute(ast.Attribute(ast.Name("self")), "forward"):
                return self.of_model(call)
        if name in ("Categorical", "GenerationConfig", "SamplingParams"):
            named = {keyword.arg: self.value(keyword.value) for keyword in call.keywords}
            match name:
                case "Categorical":
                    values = [*map(self.value, call.args), named.get("logits"), named.get("probs")]
                    scores = [value for value in values if isinstance(value, Scaled)]
                    return Scaled("categorical", scores[0].temperature if len(scores) == 1 else None)
                case "SamplingParams":
                    return Scaled("settings", _number(named.get("temperature", Known(1.0))))
            return Scaled("settings", _temperature(named))
        return super().call(call)

    def function_result(self, call: ast.Call) -> ScaledValue:
        """The result of a function, or of a record, whose columns are computed where it is made."""
        if callee(self.body, self.definition, call) is None:
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                self.value(argument)
        return super().function_result(call)

    def of_model(self, call: ast.Call) -> ScaledValue:
        """The logits that a model gives for tokens; what takes logits or a temperature may be a part of sampling."""
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(value, Scaled) for value in map(self.value, arguments)):
            return None
        is_tempered = self.value(call.func) is not None or any(map(_is_temperature, nodes_of(call)))
        return Scaled("logits", None if is_tempered else 1.0)

    def of_formula(
        self,
        call: ast.Call,
        formula: FunctionType,
        positional: Sequence[ScaledValue],
        named: Mapping[str, ScaledValue],
    ) -> ScaledValue:
        """The result of a formula, which takes no logits."""
        return None


def known_attributes(role: type, given: tuple[Sequence[Any], Mapping[str, Any]] | None) -> dict[str, ScaledValue]:
    """Known attributes of a role after its constructor, of those that no other method sets.

    ``given`` are the arguments of the constructor; None if they are unknown.
    """
    members = {name: value for base in reversed(role.__mro__) for name, value in vars(base).items()}
    attributes: dict[str, ScaledValue] = {name: plain(value) for name, value in members.items()}
    bodies = [body for base in role.__mro__ if isinstance(body := vars(base).get("__init__"), FunctionType)]
    definition = definition_of(bodies[0]) if bodies else None
    if definition is not None:
        constructor = TemperatureInterpretation(bodies[0], definition, RowGroups(1, None), {}, methods_of(role))
        constructor.constructors = bodies[1:]
        constructor.names |= {name: plain(value) for name, value in constructor_arguments(bodies[0], given).items()}
        attributes |= constructor.completed().attributes
    stored = _stored(role)
    changes_temperatures = any(map(TEMPERATURE.fullmatch, stored))  # of a configuration, perhaps
    return {} if changes_temperatures else {name: attributes[name] for name in attributes.keys() - stored}


def known_numbers(role: type, given: tuple[Sequence[Any], Mapping[str, Any]] | None) -> tuple[tuple[str, float], ...]:
    """The numbers among ``known_attributes``, by name."""
    known = known_attributes(role, given).items()
    return tuple(
        (name, float(value.value))
        for name, value in known
        if isinstance(value, Known) and isinstance(value.value, (int, float))
    )


@lru_cache(maxsize=256)
def _stored(role: type) -> frozenset[str]:
    """The attributes that methods set, of anything, other than a constructor."""
    methods = [method for name, method in methods_of(role).items() if name != "__init__"]
    nodes = (node for method in methods for node in nodes_of(method.definition) if isinstance(node, ast.Attribute))
    return frozenset(node.attr for node in nodes if not isinstance(node.ctx, ast.Load))


def _is_temperature(node: ast.AST) -> bool:
    name = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", None)))
    return isinstance(name, str) and TEMPERATURE.fullmatch(name) is not None


def _number(value: ScaledValue) -> float | None:
    """A temperature that is known; at 0, the likeliest tokens are taken."""
    number: object = value.value if isinstance(value, Known) else None
    return float(number) if isinstance(number, (int, float)) and number > 0 else None


def _temperature(named: Mapping[str | None, ScaledValue]) -> float | None:
    """The temperature at which transformers sample with options."""
    return _number(named.get("temperature")) if named.get("do_sample") == Known(True) else None


def _picks(operation: Operation[ScaledValue]) -> bool:
    """Whether an index picks the numbers of tokens."""
    index = operation.positional[0]
    parts = index.elts if isinstance(index, ast.Tuple) else []
    return any(not isinstance(part, (ast.Constant, ast.Slice, ast.UnaryOp)) for part in parts)


def _is_drawn(operation: Operation[ScaledValue]) -> bool:
    """Whether sums of chances are compared with drawn numbers, which have a row for each response."""
    drawn = operation.positional[0] if operation.positional else None
    match operation.node:
        case ast.Compare(_, [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], [compared]):
            drawn = compared
    is_comparison = operation.function in ("lt", "le", "gt", "ge", "searchsorted")
    return is_comparison and isinstance(drawn, (ast.Call, ast.Subscript))
