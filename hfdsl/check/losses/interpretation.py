"""Interpretation of a body in terms of a policy's loss: what it takes gradients of, and what it returns.

What is an advantage, an old log-prob or one of a reference, the names of columns say; what is a log-prob of the policy,
how it is computed. Coefficients count as positive where the rule trusts them.

``FlowInterpretation`` follows the statements and calls of the body. What an operation means to a loss, the functions of
``TRANSFER_FUNCTIONS`` say, each in a module with an example. They know of the rest of the body what a ``CallFrame``
has::

    held = torch.clamp(ratio, 0.8, 1.2)             tensors.py, which has extremes.py collect the clip
    gain = torch.min(ratio * gains, held * gains)   arithmetic.py: two surrogates; extremes.py: the smaller one
    loss = 0.1 * kl.mean() - gain.mean()            tensors.py: means; arithmetic.py: a sum of terms
    loss.backward()                                 gradients.py: a loss
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any, Final, Self, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.names import value_of
from hfdsl.check.bodies.objects import CalledFunction, KnownObject
from hfdsl.check.bodies.row_indices import Indices, called_indices
from hfdsl.check.losses import joins, terms
from hfdsl.check.losses.arithmetic import arithmetic_result
from hfdsl.check.losses.collected import Collected
from hfdsl.check.losses.distributions import categorical, distributed, names_logits
from hfdsl.check.losses.epochs import epochs_of
from hfdsl.check.losses.extremes import extreme_of_stack, extreme_result, stacked, unstacked
from hfdsl.check.losses.formulas import formula_result
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import named_column, named_logits, of_tokens, root_of
from hfdsl.check.losses.gradients import collect_loss, gradient_result
from hfdsl.check.losses.log_probs import log_prob_result
from hfdsl.check.losses.masks import takes_some, tested
from hfdsl.check.losses.names import COEFFICIENT
from hfdsl.check.losses.ratios import collect_ratios
from hfdsl.check.losses.rows import dims_of, is_loaded, loaded_batches, row_index_result, takes_rows
from hfdsl.check.losses.tensors import container_result, tensor_result
from hfdsl.check.losses.terms import POSITIVE, Batches, Dictionary, PolicyValue, Quantity, Several, has_kind
from hfdsl.check.sources import Function
from hfdsl.graph.signatures import PortType, StaticType
from hfdsl.types.columns import ColumnSpec

TransferFunction: TypeAlias = Callable[[Operation[PolicyValue], CallFrame], PolicyValue]
"""A function from some operations to abstract values; None for others, and of an unknown result."""

TRANSFER_FUNCTIONS: Final[Sequence[TransferFunction]] = (
    arithmetic_result,  # x + y, x - y, x * y, x / y, -x
    log_prob_result,  # log_softmax, cross_entropy, kl_div, Categorical(...).entropy()
    extreme_result,  # min and max of two
    gradient_result,  # detach, requires_grad_
    container_result,  # tuples and dictionaries
    tensor_result,  # exp, gather, clamp, mean, views
    row_index_result,  # randperm, arange, nonzero, parts of what these give
)
"""The transfer functions of operations, in order: the first one with a result is the one that applies."""


class PolicyInterpretation(FlowInterpretation[PolicyValue]):
    """The interpretation of a body in terms of a policy's loss.

    ``numbers`` are those that attributes of ``self`` are known to have; without them, a coefficient is positive where
    ``trusts_coefficients``. Of ``unknown_columns`` nothing is known.
    """

    numbers: Mapping[str, float]
    trusts_coefficients: bool = True
    unknown_columns: AbstractSet[str] = frozenset()

    def begin(self) -> None:
        """Begin with nothing found, and numbers of the caller's that are positive."""
        self.frame, self.numbers, self.columns = CallFrame.of(self.scope), {}, dict[str, PolicyValue]()
        self.names |= {name: POSITIVE for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    @property
    def collected(self) -> Collected:
        """Findings on the way, also in the functions that the body calls."""
        return self.frame.collected

    # -- functions

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls, which collects into the same lists."""
        inner = super().inner(body, definition, ports)
        inner.numbers, inner.trusts_coefficients = self.numbers, self.trusts_coefficients
        inner.frame.begin_call(self.frame, len(self.followed))
        return inner

    def enter(self, owner: KnownObject, name: str) -> None:
        """Begin a method of an object, which has other attributes than the role."""
        super().enter(owner, name)
        if owner.path != "self":
            self.numbers = {}

    def give(self, inner: FlowInterpretation[PolicyValue], arguments: Mapping[str, ast.expr]) -> None:
        """Give the interpretation of a function its arguments; those that are named so are logits."""
        super().give(inner, arguments)
        if isinstance(inner, PolicyInterpretation):
            self.frame.linear.give(inner.frame.linear, arguments)
        for name, node in arguments.items():
            if inner is not self and inner.names.get(name) is None and names_logits(node, self.scope):
                inner.names[name] = of_tokens(Quantity("logits"), node)

    def enclose(self, inner: FlowInterpretation[PolicyValue]) -> None:
        """Give the interpretation of a function that the body defines the names of the body."""
        super().enclose(inner)
        if isinstance(inner, PolicyInterpretation):
            self.frame.enclose(inner.frame)

    # -- flow

    @contextmanager
    def without_gradient(self) -> Iterator[None]:
        """Statements whose numbers are metrics or weights."""
        outer, self.frame.collected = self.collected, self.collected.without_gradient()
        yield
        outer.clips.extend(clip for clip in self.collected.clips if not clip.is_of_tail)
        self.frame.collected = outer

    def run(self, statement: ast.stmt) -> None:
        """Run a statement; what a record is returned with is kept."""
        match statement:
            case ast.Return(ast.Call(keywords=columns)):
                self.columns |= {str(column.arg): self.value(column.value) for column in columns}
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "requires_grad_"))) | ast.Assign(
                [ast.Attribute(ast.Name(name), "requires_grad")]
            ):
                self.names[name] = joins.with_gradient(self.names.get(name))
        self.frame.origins.note(statement)
        super().run(statement)

    def runs_on_table(self, statement: ast.stmt) -> bool:
        """Run a statement if it changes a table, whose entries are other numbers from here on."""
        is_run = super().runs_on_table(statement)
        self.frame.origins.effects.extend([statement] if is_run else [])
        return is_run

    def run_compound(self, statement: ast.stmt) -> None:
        """Run a statement that has others; in a context, a model may have other weights."""
        outer = self.frame.epochs
        self.frame.epochs = epochs_of(statement, self.scope.methods, self.frame) or outer
        super().run_compound(statement)
        self.frame.epochs = outer
        self.frame.origins.note(statement)

    def assign(self, target: ast.expr, node: ast.expr) -> None:
        """Assign an expression, also as a linear number, and as logits of one maker."""
        linear, makers = self.frame.linear, self.frame.makers
        forms, maker = linear.assigned(target, node), makers.of(node)
        super().assign(target, node)
        linear.forms |= forms
        makers.by_name |= {target.id: maker} if isinstance(target, ast.Name) else {}

    def set(self, target: ast.expr, value: PolicyValue) -> None:
        """Set the value of a name, which stands for itself from here on."""
        super().set(target, value)
        self.frame.linear.set(target)

    def take_from(self, target: ast.expr, iterated: ast.expr) -> None:
        """Set the names of a loop: also those of a mini-batch of a loader."""
        is_loader = isinstance(iterated, ast.Name) or (isinstance(iterated, ast.Call) and is_loaded(iterated))
        batches = self.value(iterated) if isinstance(target, ast.Tuple) and is_loader else None
        if not isinstance(target, ast.Tuple) or not isinstance(batches, Batches):
            super().take_from(target, iterated)
            return
        for position, name in enumerate(target.elts):
            self.set(name, terms.part_of(self.of_element(batches), position))

    # -- values

    def joined(self, left: PolicyValue, right: PolicyValue) -> PolicyValue:
        """One of two values."""
        return joins.either(left, right)

    def detached(self, value: PolicyValue) -> PolicyValue:
        """A value without its gradient."""
        return joins.without_gradient(value)

    def several(self, values: Sequence[PolicyValue]) -> PolicyValue:
        """A tuple of values."""
        return Several(tuple(values))

    def table(self, entries: Mapping[str, PolicyValue]) -> PolicyValue:
        """A dictionary of values."""
        return Dictionary(dict(entries))

    def entries(self, value: PolicyValue) -> Mapping[str, PolicyValue] | None:
        """The values of a dictionary by key."""
        return value.entries if isinstance(value, Dictionary) else None

    def of_part(self, value: PolicyValue, position: int) -> PolicyValue:
        """The value at a position of a tuple."""
        return terms.part_of(value, position)

    def set_part(self, value: PolicyValue, part: PolicyValue) -> PolicyValue:
        """A tensor after a part of it has been set; of zeros, as a buffer is made, it is that part."""
        if value is None or has_kind(value, "number"):
            return part.masked(terms.UNKNOWN_PART) if isinstance(part, Quantity) else part
        changed = self.joined(value, part)
        return terms.of_each(changed, lambda term: term.masked(terms.UNKNOWN_PART))

    # -- leaves

    def of_column(self, spec: ColumnSpec, path: str) -> PolicyValue:
        """The numbers of a column, by its name."""
        value = None if path in self.unknown_columns else named_column(spec, path)
        return replace(value, dims=len(spec.dims)) if isinstance(value, Quantity) else value

    def of_element(self, value: PolicyValue) -> PolicyValue:
        """The numbers of one row, which a loop takes from those of a batch, or the next indices."""
        if isinstance(value, Indices):
            return value.element()
        if isinstance(value, Batches):
            return Several(value.columns)
        return replace(value, dims=None) if isinstance(value, Quantity) else value

    def value(self, node: ast.expr) -> PolicyValue:
        """The value of an expression: also a literal number, or a constant of the module."""
        match node:
            case ast.Constant(int() | float() as literal):
                return terms.number(literal)
            case ast.Name(name) if name not in self.names and not self.scope.sets(name):
                constant = value_of(self.body, name)
                return terms.number(constant) if isinstance(constant, (int, float)) else None
            case ast.Attribute(owner, name) if name != "tensor":
                return self.attribute(node, owner, name)
        value = super().value(node)
        if not isinstance(node, (ast.GeneratorExp, ast.ListComp)) or not isinstance(value, Indices):
            return value
        return Indices(value.dims + 1) if not any(loop.ifs for loop in node.generators) else None

    def attribute(self, node: ast.Attribute, owner: ast.expr, name: str) -> PolicyValue:
        """An attribute: the logits that a model gives, a coefficient, or a view of a tensor."""
        if name in self.numbers and isinstance(owner, ast.Name):
            return terms.number(self.numbers[name])
        if name == "logits":
            return Quantity("logits")
        source = POSITIVE if name in ("ndim", "shape") else self.value(owner)
        if source is None:
            is_coefficient = self.trusts_coefficients and root_of(owner) not in ("torch", "")
            is_coefficient = is_coefficient and COEFFICIENT.fullmatch(name) is not None
            may_be_mask = "weight" in name and root_of(owner) != "self"  # of single tokens, in a batch
            return POSITIVE.masked(*(terms.SOME if may_be_mask else ())) if is_coefficient else None
        return self.of_operation(Operation(name, node, source, is_method=True))

    # -- operations

    def of_operation(self, operation: Operation[PolicyValue]) -> PolicyValue:
        """The result of an operation, by the first transfer function that applies."""
        extreme = extreme_of_stack(operation, self.frame)
        if extreme is not None:
            return extreme
        operation = unstacked(operation)
        if operation.function in ("backward", "grad"):
            collect_loss(operation, self.frame)
            return None
        results = (transfer(operation, self.frame) for transfer in TRANSFER_FUNCTIONS)
        result = next((result for result in results if result is not None), None)
        result = self.frame.origins.traced(operation, result)  # what it is computed of
        result = distributed(operation, result, self.frame)  # whether it is of tokens
        collect_ratios(operation, result, self.frame)
        dims = dims_of(operation, self.frame)
        if result is None:
            test = tested(operation)
            return replace(test, dims=dims) if isinstance(test, Quantity) else test
        result = terms.selected(result) if takes_some(operation) and not takes_rows(operation) else result
        if not isinstance(result, Quantity):
            return result
        return replace(result, place=self.frame.place(operation.node), dims=dims)

    # -- calls

    def call(self, call: ast.Call) -> PolicyValue:
        """The result of a call: also of what Python or torch has under a name of its own."""
        match call.func, call.args:
            case ast.Name("sum"), [values]:
                summed = self.value(values)
                return terms.total(*summed.values) if isinstance(summed, Several) else summed
            case ast.Name("len"), _:
                return POSITIVE
            case ast.Name("max" | "min"), arguments if all(has_kind(self.value(a), "number") for a in arguments):
                return POSITIVE
            case ast.Attribute(_, "stack"), [ast.List([first, second]) | ast.Tuple([first, second]), *_]:
                return stacked(call, self.value(first), self.value(second)) or super().call(call)
            case ast.Name("Categorical"), _:
                return categorical(call, map(self.value, [*call.args, *(k.value for k in call.keywords)]), self.frame)
        result = super().call(call)
        if result is None:
            result = called_indices(call, self.value) or loaded_batches(call, self.value)
        return named_logits(call) if result is None else result

    def evaluated(self, called: CalledFunction, call: ast.Call) -> PolicyValue:
        """The value that a function returns; two calls that are written alike return the same."""
        origin = self.frame.origins.of(call)
        result = super().evaluated(called, call)
        return joins.with_origin(of_tokens(result, call), origin)

    def of_formula(
        self,
        call: ast.Call,
        formula: FunctionType,
        positional: Sequence[PolicyValue],
        named: Mapping[str, PolicyValue],
    ) -> PolicyValue:
        """The result of a formula in terms of a policy's loss."""
        return formula_result(call, formula.__name__, positional, named, self.frame)
