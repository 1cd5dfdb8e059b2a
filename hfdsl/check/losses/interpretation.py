"""Interpretation of a body in terms of a policy's loss: what it takes gradients of, and what it returns.

What is an advantage, an old log-prob or one of a reference, the names of columns say; what is a log-prob of the policy,
how it is computed. Coefficients count as positive where the rule trusts them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.bodies.linear_numbers import LinearInterpretation
from hfdsl.check.bodies.names import value_of
from hfdsl.check.losses import terms
from hfdsl.check.losses.collected import ClipBound, Collected, OwnRatio, RatioClip, Reversal
from hfdsl.check.losses.functions import (
    BACKWARD,
    CLIPS,
    COUNTS,
    GROWTHS,
    LEAST,
    MADE,
    MOST,
    SAME,
    base_of,
    distribution_of,
    exponent,
    is_hardly_negative,
    less_itself,
    named_column,
    named_result,
    of_tokens,
    root_of,
)
from hfdsl.check.losses.masks import TESTS, counted_by_mean, element, masks_of_test, takes_some
from hfdsl.check.losses.names import COEFFICIENT
from hfdsl.check.losses.origins import LogProbOrigins
from hfdsl.check.losses.terms import POSITIVE, PolicyValue, Quantity, Several, Sum, has_kind
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.signatures import PortType, StaticType
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.columns import ColumnSpec


class PolicyInterpretation(LinearInterpretation[PolicyValue]):
    """The interpretation of a body in terms of a policy's loss.

    ``numbers`` are those that attributes of ``self`` are known to have; without them, a coefficient is positive where
    ``trusts_coefficients``. Of ``unknown_columns`` nothing is known.
    """

    numbers: Mapping[str, float]
    trusts_coefficients: bool = True
    unknown_columns: AbstractSet[str] = frozenset()

    def begin(self) -> None:
        """Begin with nothing found, and numbers of the caller's that are positive."""
        super().begin()
        self.origins = LogProbOrigins(self.definition)
        self.own_bases = dict[str, Span]()
        self.file, self.numbers, self.found = definition_span(self.body).file, {}, Collected.nothing()
        self.columns = dict[str, PolicyValue]()
        self.names |= {name: POSITIVE for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    def inner(
        self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]
    ) -> PolicyInterpretation:
        """The interpretation of a function that the body calls, which collects into the same lists."""
        inner = super().inner(body, definition, ports)
        inner.found, inner.numbers, inner.trusts_coefficients = self.found, self.numbers, self.trusts_coefficients
        scope = len(self.followed)
        inner.origins, inner.own_bases = LogProbOrigins(definition, self.origins.effects, scope), self.own_bases
        return inner

    # -- flow

    @contextmanager
    def without_gradient(self) -> Iterator[None]:
        """Statements whose numbers are metrics or weights."""
        found, self.found = self.found, self.found.without_gradient()
        yield
        found.clips.extend(clip for clip in self.found.clips if not clip.is_of_tail)
        self.found = found

    def run(self, statement: ast.stmt) -> None:
        """Run a statement; what a record is returned with is kept."""
        match statement:
            case ast.Return(ast.Call(keywords=columns)):
                self.columns |= {str(column.arg): self.value(column.value) for column in columns}
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "requires_grad_"))) | ast.Assign(
                [ast.Attribute(ast.Name(name), "requires_grad")]
            ):
                self.names[name] = terms.with_gradient(self.names.get(name))
        self.origins.note(statement)
        super().run(statement)

    def run_compound(self, statement: ast.stmt) -> None:
        """Run a statement that has others; in a context, a model may have other weights."""
        super().run_compound(statement)
        self.origins.note(statement)

    def joined(self, left: PolicyValue, right: PolicyValue) -> PolicyValue:
        """One of two values."""
        return terms.either(left, right)

    def detached(self, value: PolicyValue) -> PolicyValue:
        """A value without its gradient."""
        return terms.without_gradient(value)

    def several(self, values: Sequence[PolicyValue]) -> PolicyValue:
        """A tuple of values."""
        return Several(tuple(values))

    def of_part(self, value: PolicyValue, position: int) -> PolicyValue:
        """The value at a position of a tuple."""
        values: tuple[PolicyValue, ...] = value.values if isinstance(value, Several) else ()
        return values[position] if position < len(values) else None

    def set_part(self, value: PolicyValue, part: PolicyValue) -> PolicyValue:
        """A tensor after a part of it has been set; of zeros, as a buffer is made, it is that part."""
        if value is None or has_kind(value, "number"):
            return part.masked(terms.UNKNOWN_PART) if isinstance(part, Quantity) else part
        return self.joined(value, part)

    # -- leaves

    def of_column(self, spec: ColumnSpec, path: str) -> PolicyValue:
        """The numbers of a column, by its name."""
        return None if path in self.unknown_columns else named_column(spec, path)

    def value(self, node: ast.expr) -> PolicyValue:
        """The value of an expression: also a literal number, or a constant of the module."""
        match node:
            case ast.Constant(int() | float() as literal):
                return terms.number(literal)
            case ast.Name(name) if name not in self.names and name not in self.parameters | self.assigned:
                constant = value_of(self.body, name)
                return terms.number(constant) if isinstance(constant, (int, float)) else None
            case ast.Attribute(owner, name) if name != "tensor":
                return self.attribute(node, owner, name)
        return super().value(node)

    def attribute(self, node: ast.Attribute, owner: ast.expr, name: str) -> PolicyValue:
        """An attribute: the logits that a model gives, a coefficient, or a view of a tensor."""
        if name in self.numbers and isinstance(owner, ast.Name):
            return terms.number(self.numbers[name])
        if name == "logits":
            return Quantity("logits")
        source = POSITIVE if name in ("ndim", "shape") else self.value(owner)
        if source is None:
            is_coefficient = self.trusts_coefficients and root_of(owner) not in ("torch", "")
            return POSITIVE if is_coefficient and COEFFICIENT.fullmatch(name) else None
        return self.of_operation(Operation(name, node, source, is_method=True))

    # -- operations

    def of_operation(self, operation: Operation[PolicyValue]) -> PolicyValue:
        """The result of an operation."""
        function, source = operation.function, operation.source
        if function in ("backward", "grad"):
            self.take_gradients(operation)
            return None
        result = self.sum_of(operation) or self.made_by(operation) or self.computed(operation)
        result = self.origins.traced(operation, result)
        self.collect_ratio(operation, result)
        if result is None and (function in TESTS or (function in COUNTS and not terms.has_terms(source))):
            masks = masks_of_test(operation) if function in TESTS else getattr(source, "masks", ())
            return POSITIVE.masked(*masks)
        result = terms.selected(result) if takes_some(operation) else result
        return replace(result, place=span_of(self.file, operation.node)) if isinstance(result, Quantity) else result

    def take_gradients(self, operation: Operation[PolicyValue]) -> None:
        """Collect what gradients are taken of: ``loss.backward()``, ``torch.autograd.grad(loss, ...)``."""
        source, positional, others = operation.source, operation.positional, operation.others
        if operation.named.keys() <= BACKWARD:
            is_of_argument = source is None and (operation.function == "grad" or len(positional) == 1)
            if is_of_argument and others:
                self.found.losses.append(others[0])
            elif not positional:
                self.found.losses.append(source)

    def sum_of(self, operation: Operation[PolicyValue]) -> PolicyValue:
        """The result of arithmetic with two values."""
        function, source = operation.function, operation.source
        other = operation.others[0] if operation.others else None
        if "alpha" in operation.named:
            other = terms.product(other, self.value(operation.named["alpha"]))
        divisor = None if isinstance(other, Quantity) and other.constant else other
        match function:
            case "add":
                return terms.added(source, other)
            case "sub" | "subtract":
                return terms.added(source, terms.negative(other))
            case "mul" | "multiply":
                return terms.product(source, other)
            case "div" | "true_divide" if isinstance(divisor, Quantity) and divisor.kind == "number":
                return terms.quotient(source, divisor)
            case "div" | "true_divide" if divisor is None and is_hardly_negative(operation):
                return terms.quotient(source, None)
            case "neg" | "negative":
                return terms.negative(source)
        return None

    def made_by(self, operation: Operation[PolicyValue]) -> PolicyValue:
        """The result of a function of torch that takes something which need not be known."""
        function, source, node = operation.function, operation.source, operation.node
        match function:
            case "log_softmax":
                return distribution_of(node)
            case "kl_div" | "kl_divergence":
                return Quantity("kl", base=base_of(node))
            case "entropy" | "log_prob" if has_kind(source, "categorical"):
                return Quantity(function)
            case "scale" if source is None and len(operation.others) == 1:
                return operation.others[0]  # of a scaler of gradients
            case "where" if len(operation.others) == 2:
                return self.joined(*operation.others)
        if function in MADE and not has_kind(source, "advantage"):
            return of_tokens(MADE[function], node)
        named = named_result(operation) if source is None and operation.is_method else None
        self.found.by_name.extend([function] if named is not None else [])
        return named

    def computed(self, operation: Operation[PolicyValue]) -> PolicyValue:
        """The result of a function of one tensor, or of two of which it takes one."""
        function, source, others = operation.function, operation.source, operation.others
        is_axis = any(isinstance(argument, ast.Constant) for argument in operation.positional)
        if function in LEAST | MOST and len(others) == 1 and not is_axis:
            return self.extreme(operation, source, others[0]) or self.extreme(operation, others[0], source)
        if function == "detach":
            return self.detached(source)
        if function == "requires_grad_":
            return terms.with_gradient(source)
        if isinstance(source, Sum):
            return terms.total(*(self.of_quantity(operation, term) for term in source.terms))
        return self.of_quantity(operation, source) if isinstance(source, Quantity) else None

    def of_quantity(self, operation: Operation[PolicyValue], source: Quantity) -> Quantity | None:
        """The result of a function of one tensor."""
        function, kind = operation.function, source.kind
        match function, kind:
            case "exp" | "expm1", _:
                if source.kind == "gap" and source.divisor == "width":
                    self.found.padded_ratios.append(span_of(self.file, operation.node))
                return terms.exponential(source, centered=function == "exp")
            case "log", "chances":
                return replace(source, kind="distribution")
            case "gather" | "take_along_dim", "distribution" | "logits":
                return Quantity("log_prob")
            case ("abs" | "square", "gap") | ("pow", "gap") if exponent(operation) % 2 == 0:
                return Quantity("kl", base=source.base, constant=source.constant)
        if function == SUBSCRIPT:
            return element(source, operation.positional[0])
        if function in GROWTHS and kind in ("number", "advantage", "old", "reference"):
            return POSITIVE.masked(*source.masks)
        if function in CLIPS:
            self.collect_clip(operation, source)
        if function in SAME:
            clipped = source.clipped or (function in CLIPS and kind == "ratio")
            has_mask = source.masks - terms.SOME and terms.SELECTION not in source.masks
            is_counted = source.statistic or source.divisor == "tokens"
            counts_padding = function == "mean" and has_mask and not is_counted
            divisor = (counted_by_mean(operation) if counts_padding else "") or source.divisor
            is_of_tokens = kind == "entropy" and not source.masks  # a sum over the vocabulary
            statistic = source.statistic or (function in ("mean", "sum") and not is_of_tokens)
            centered = source.centered and not (kind == "ratio" and function in ("nansum", "sum"))
            return replace(source, clipped=clipped, statistic=statistic, divisor=divisor, centered=centered)
        values = (source, *operation.others)
        if not all(has_kind(value, "number") for value in values) or function not in OPERATORS.values():
            return None
        masks = frozenset[str]().union(*(value.masks for value in values if isinstance(value, Quantity)))
        is_kept = function == "bitwise_and" or not masks
        return replace(source, masks=masks if is_kept else masks_of_test(operation))

    def collect_ratio(self, operation: Operation[PolicyValue], result: PolicyValue) -> None:
        """Collect what a ratio is of, where that is to be reported: log-probs and themselves, or a reference."""
        node = operation.node
        match result:
            case Quantity("gap", base="own", origin=origin) if isinstance(node, ast.BinOp):
                self.own_bases[origin] = span_of(self.file, node.right)
            case Quantity("gap", base="old"):
                pass  # of log-probs less themselves, as ratios on policy are
            case _ if less_itself(node):
                self.found.values_of_others.append(span_of(self.file, node))
            case Quantity("gap", base="reference", constant=True):
                self.found.constant_gaps.append(span_of(self.file, node))
        if has_kind(result, "surrogate"):
            for factor in (operation.source, *operation.others):
                if isinstance(factor, Quantity) and (factor.kind, factor.base) == ("ratio", "own"):
                    place = span_of(self.file, node)
                    self.found.own_ratios.append(OwnRatio(place, self.own_bases.get(factor.origin, place)))

    def collect_clip(self, operation: Operation[PolicyValue], source: Quantity) -> None:
        """Collect a clip of a ratio, or of the differences of log-probs that it is of, between two bounds."""
        is_ratio = source.kind == "ratio" and source.sign > 0
        if source.centered and (is_ratio or source.kind == "gap"):
            positional = dict(zip(("min", "max"), operation.positional, strict=False))
            low, high = (operation.named.get(name, positional.get(name)) for name in ("min", "max"))
            numbers = self.form(low), self.form(high)
            if low is not None and high is not None and numbers[0] is not None and numbers[1] is not None:
                low_bound = ClipBound(numbers[0], span_of(self.file, low))
                high_bound = ClipBound(numbers[1], span_of(self.file, high))
                place = span_of(self.file, operation.node)
                self.found.clips.append(RatioClip(is_ratio, low_bound, high_bound, place))

    def extreme(self, operation: Operation[PolicyValue], value: PolicyValue, other: PolicyValue) -> PolicyValue:
        """The smaller or the greater of two, of which the first says what it is."""
        if not isinstance(value, Quantity) or not isinstance(other, Quantity):
            return None
        if value.kind == "surrogate" and (other.kind, other.sign) == ("surrogate", value.sign):
            if (
                not value.constant
                and value.clipped != other.clipped
                and (operation.function in LEAST) is (value.sign < 0)
            ):
                self.found.reversals.append(Reversal(value.sign, span_of(self.file, operation.node)))
            return replace(value, clipped=False).masked(*other.masks)
        if value.kind == other.kind == "reference_surrogate" and value.sign == other.sign:
            self.found.reference_clips.extend(
                [span_of(self.file, operation.node)] if value.clipped != other.clipped else []
            )
            return replace(value, clipped=False)
        if value.kind == "surrogate" and other.kind == "advantage":
            return value  # the bound of a dual clip
        is_bounded = other.kind == "number" and value.kind in ("advantage", "number", "ratio")
        return replace(value, clipped=value.kind == "ratio") if is_bounded else None

    # -- calls

    def call(self, call: ast.Call) -> PolicyValue:
        """The result of a call: also of what Python or torch has under a name of its own."""
        match call.func, call.args:
            case ast.Name("sum"), [values]:
                return self.value(values)
            case ast.Name("len"), _:
                return POSITIVE
            case ast.Name("max" | "min"), arguments if all(has_kind(self.value(a), "number") for a in arguments):
                return POSITIVE
            case ast.Name("Categorical"), _:
                return of_tokens(MADE["Categorical"], call)
        return super().call(call)

    def evaluated(
        self, function: Callable[..., Any], definition: Function, call: ast.Call, *, is_method: bool
    ) -> PolicyValue:
        """The value that a function returns; two calls that are written alike return the same."""
        origin = self.origins.of(call)
        result = super().evaluated(function, definition, call, is_method=is_method)
        return terms.with_origin(of_tokens(result, call), origin)

    def of_call(
        self,
        call: ast.Call,
        function: FunctionType,
        positional: Sequence[PolicyValue],
        named: Mapping[str, PolicyValue],
    ) -> PolicyValue:
        """The result of a function of the user's, or of a formula of hfdsl's."""
        if not (function.__module__ or "").startswith("hfdsl."):
            return super().of_call(call, function, positional, named)
        first = positional[0] if positional else named.get("x")
        match function.__name__:
            case "whitened":
                return first
            case "aggregated" | "masked" | "masked_mean" | "masked_sum" as name:
                mask = positional[1] if len(positional) > 1 else named.get("mask")
                mask = mask if isinstance(mask, Quantity) else POSITIVE.masked(terms.UNKNOWN_PART)
                product = terms.product(first, replace(mask, kind="number", sign=1))
                return terms.quotient(product, replace(mask, statistic=True)) if name == "masked_mean" else product
            case "kl_estimate":
                is_of_both = any(has_kind(value, "reference") for value in positional) and None not in positional[:2]
                base: terms.Base = "reference" if is_of_both else ""
                constant = bool(base) and not any(has_kind(value, "log_prob") for value in positional)
                return Quantity("kl", base=base, constant=constant, place=span_of(self.file, call))
            case "entropy":
                return of_tokens(Quantity("entropy", place=span_of(self.file, call)), call)
            case "imitation":
                return terms.negative(first)
        return None
