"""Interpretation of a body in terms of a preference loss: does it fall as the preferred response gets likelier?

Which tokens are of which response, the names of columns say (``sides.py``); a score is what a model gives for them::

    chosen = self.log_probs(pairs.chosen_ids.tensor)                   a score, also of methods that can be read
    rejected = self.log_probs(pairs.rejected_ids.tensor)
    margin = (chosen - pairs.ref_chosen.tensor) - (rejected - pairs.ref_rejected.tensor)
    loss = -F.logsigmoid(self.beta * margin).mean()
    loss.backward()                                                    a loss, which falls with the margin

    both = self.log_probs(torch.cat([chosen_ids, rejected_ids]))       halves
    chosen, rejected = both.chunk(2)                                   the score of either

Of logits that nothing calls scores or rewards, only log-probs are scores: a model may give costs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, Final, Self

from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.objects import CalledFunction
from hfdsl.check.bodies.row_tensors import METADATA
from hfdsl.check.losses import slopes
from hfdsl.check.losses.functions import MASKED_FORMULAS
from hfdsl.check.losses.minimized import MinimizedLosses
from hfdsl.check.losses.names import COEFFICIENT, LOG_PROB
from hfdsl.check.losses.pair_scores import pair_result, stacked_scores
from hfdsl.check.losses.preference_operations import (
    PRODUCTS,
    REFERENCE_WORDS,
    SCORES,
    called_score,
    halves_of,
    joined_rows,
    of_model,
    operation_result,
    sides_of_values,
)
from hfdsl.check.losses.sides import words_of
from hfdsl.check.losses.slopes import (
    COUNT,
    Given,
    Halves,
    Model,
    Number,
    PairScores,
    PreferenceValue,
    ResponseOutput,
    Slope,
)
from hfdsl.check.losses.terms import Dictionary, Several
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import index_parts
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import PortType, RecordType, StaticType
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import Bool

COUNTED: Final = re.compile(r"(.*_)?(len|length|lengths|mask|num_tokens)")
"""The names of columns with numbers that are at least 0."""

HYPERPARAMETER: Final = re.compile(r"(.*_)?(eps|epsilon|gamma|offset|target|tau)(_.*)?")
"""The names of attributes that are numbers of any sign, besides coefficients."""


class PreferenceInterpretation(MinimizedLosses[PreferenceValue]):
    """The interpretation of a body in terms of a preference loss.

    ``sides`` are those of columns, by name; ``desirable`` is the name of one that says which responses are good. Of a
    role that ``learns_scores``, whatever its model gives is a score.
    """

    sides: Mapping[str, int]
    learns_scores: bool
    desirable: str

    def begin(self) -> None:
        """Begin without losses."""
        super().begin()
        self.sides, self.learns_scores = {}, False
        self.desirable = ""

    def know(
        self, sides: Mapping[str, int], numbers: Mapping[str, float], *, trusts_coefficients: bool, learns_scores: bool
    ) -> None:
        """Begin the method of a role with what is known of its columns and numbers."""
        self.sides, self.numbers, self.learns_scores = sides, numbers, learns_scores
        self.trusts_coefficients = trusts_coefficients
        records = [name for name, kind in self.ports.items() if isinstance(kind, RecordType)]
        self.names |= {name: Given(sides[name]) for name in records if name in sides}
        coefficient = COUNT if trusts_coefficients else Number()
        self.names |= {name: coefficient for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    # -- functions

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls, which collects into the same list."""
        inner = super().inner(body, definition, ports)
        inner.sides, inner.learns_scores, inner.desirable = self.sides, self.learns_scores, self.desirable
        return inner

    def evaluated(self, called: CalledFunction, call: ast.Call) -> PreferenceValue:
        """The value that a function returns: scores, if it says so by its name."""
        return called_score(super().evaluated(called, call), called.definition.name)

    # -- values

    def joined(self, left: PreferenceValue, right: PreferenceValue) -> PreferenceValue:
        """One of two values."""
        return slopes.either(left, right)

    def detached(self, value: PreferenceValue) -> PreferenceValue:
        """A value without its gradient: numbers that no score changes."""
        match value:
            case Slope(bound=bound):
                return Number(bound, is_base=True, bases=slopes.UNKNOWN_BASES)
            case ResponseOutput():
                return slopes.base_of(0)
            case Halves(first, second):
                return Halves(self.detached(first), self.detached(second))
            case PairScores():
                return None
            case Several(values):
                return Several(tuple(map(self.detached, values)))
            case Dictionary(entries):
                return Dictionary({key: self.detached(entry) for key, entry in entries.items()})
        return value

    def of_part(self, value: PreferenceValue, position: int) -> PreferenceValue:
        """The value at a position of a tuple; what a model returns together is all of its."""
        if isinstance(value, Several):
            part: PreferenceValue = value.values[position] if position < len(value.values) else None
            return part
        return value if isinstance(value, (ResponseOutput, Given)) else None

    def set_part(self, value: PreferenceValue, part: PreferenceValue) -> PreferenceValue:
        """A tensor after a part of it has been set: tokens remain those of their response."""
        parts = (value.first, value.second) if isinstance(value, Halves) else (value,)
        are_tokens = all(isinstance(tokens, Given) for tokens in parts)
        return value if are_tokens and isinstance(part, (Given, Number)) else None

    def of_column(self, spec: ColumnSpec, path: str) -> PreferenceValue:
        """The numbers of a column: tokens of a response, or numbers that no score changes."""
        root, _, name = path.partition(".")
        owner = self.names.get(root)
        if self.desirable and (name or root) == self.desirable:
            return Halves(slopes.number(1), slopes.number(0))
        if issubclass(spec.dtype, Bool) or COUNTED.fullmatch(name or root):
            return COUNT
        if is_float_column(spec):
            last = (name or root).removesuffix("_w").removesuffix("_l")
            if not REFERENCE_WORDS.isdisjoint(words_of(path)):
                return slopes.base_of(self.sides.get(name or root, 0))
            return slopes.base_of(0) if LOG_PROB.fullmatch(last) else Number()
        if self.desirable:
            return Halves(Given(1), Given(-1))  # as if the rows with good responses were the first ones
        return owner if isinstance(owner, Given) and owner.side else Given(self.sides.get(name or root, 0))

    def set(self, target: ast.expr, value: PreferenceValue) -> None:
        """Set the value of a name, which may say that it has scores."""
        super().set(target, called_score(value, target.id) if isinstance(target, ast.Name) else value)

    def attribute(self, node: ast.Attribute, owner: ast.expr, name: str) -> PreferenceValue:
        """An attribute: a number of the role, a model that it keeps, or a part of what a model gives."""
        if name in self.numbers and last_name(owner) == "self":
            return replace(slopes.number(self.numbers[name]), is_small=_is_smoothing(name, self.numbers[name]))
        source = self.value(owner)
        if name in METADATA:
            return COUNT
        if source is None or isinstance(source, Model):
            if COEFFICIENT.fullmatch(name) or name == "margin":
                return COUNT if self.trusts_coefficients else Number()
            if _is_smoothing(name):
                return Number(1, is_small=True) if self.trusts_coefficients else Number()
            if HYPERPARAMETER.fullmatch(name):
                return Number()
        match source:
            case Model(words):
                return Model(words.union(words_of(name)))
            case ResponseOutput():
                return called_score(source, name)
            case Halves(ResponseOutput() as first, ResponseOutput() as second):
                return Halves(called_score(first, name), called_score(second, name))
            case Given() | None:
                return source
            case Number(is_base=True) if name == "logits":
                return source
        return self.of_operation(Operation(name, node, source, is_method=True))

    # -- operations

    def of_operation(self, operation: Operation[PreferenceValue]) -> PreferenceValue:
        """The result of an operation: on halves, of either."""
        function, source, others = operation.function, operation.source, operation.others
        if function in ("backward", "grad"):
            self.minimize(operation)
            return None
        if function in ("detach", "item", "tolist"):
            return self.detached(source)
        if isinstance(source, PairScores):
            return pair_result(operation, source, self.place(operation.node))
        if len(others) == 1 and isinstance(others[0], PairScores) and function in PRODUCTS:
            return pair_result(replace(operation, others=[source]), others[0], self.place(operation.node))
        if self.desirable and isinstance(source, Halves) and _may_cut(operation):
            return None
        if any(isinstance(value, Halves) for value in (source, *others)):
            return halves_of(operation, self.of_operation, self.place(operation.node))
        if isinstance(source, Model) and isinstance(operation.node, ast.Call) and operation.is_method:
            return others[0] if function == "scale" and others else of_model(source.words, function, others)
        if isinstance(source, Model) and function == SUBSCRIPT:  # of a table, such as an embedding
            return of_model(source.words, "", others)
        if self.learns_scores and any(isinstance(value, ResponseOutput) for value in (source, *others)):
            scores = self.of_scores(operation)
            if scores is not None:
                return scores
        return operation_result(operation, self.place(operation.node))

    def of_scores(self, operation: Operation[PreferenceValue]) -> PreferenceValue:
        """The result of an operation on what a model gives, as scores; None if it is only one on logits."""
        values = [
            slopes.score_of(value.side) if isinstance(value, ResponseOutput) and value.kind == "any" else value
            for value in (operation.source, *operation.others)
        ]
        is_numeric = all(isinstance(value, (Slope, Number)) for value in values)
        if operation.function not in SCORES or not is_numeric:
            return None
        return operation_result(replace(operation, source=values[0], others=values[1:]), self.place(operation.node))

    # -- calls

    def call(self, call: ast.Call) -> PreferenceValue:
        """The result of a call: also of a model under a name, and of rows that are put after others."""
        match call.func, call.args:
            case ast.Name(name), _ if isinstance(model := self.names.get(name), Model):
                arguments = [self.value(argument) for argument in (*call.args, *(k.value for k in call.keywords))]
                return self._of_model(model.words, arguments)
            case ast.Attribute(_, "cat" | "concat" | "concatenate"), [ast.List(parts) | ast.Tuple(parts), *_]:
                return joined_rows(call, [self.value(part) for part in parts])
            case ast.Attribute(_, "stack"), [ast.List(parts) | ast.Tuple(parts), *_]:
                return stacked_scores(call, [self.value(part) for part in parts])
            case ast.Name("len"), _:
                return COUNT
            case ast.Attribute(_, "tensor" | "as_tensor"), [numbers]:
                return self.value(numbers)
            case ast.Attribute(_, "zeros" | "zeros_like"), _:
                return slopes.number(0)
            case ast.Attribute(_, "ones" | "ones_like"), _:
                return slopes.number(1)
            case ast.Attribute(_, "full" | "full_like"), [_, filled, *_]:
                return self.value(filled)
            case ((ast.Name("Categorical") | ast.Attribute(_, "Categorical")), _):
                logits = [self.value(argument) for argument in (*call.args, *(k.value for k in call.keywords))]
                side = sides_of_values(logits)
                return ResponseOutput(side, "categorical") if side and isinstance(logits[0], ResponseOutput) else None
        return super().call(call)

    def _of_model(self, words: frozenset[str], arguments: Sequence[PreferenceValue]) -> PreferenceValue:
        """The output of a model under a name for its arguments."""
        if any(isinstance(value, Halves) for value in arguments):
            halves = (of_model(words, "", [v[i] if isinstance(v, Halves) else v for v in arguments]) for i in (0, 1))
            return Halves(*halves)
        return of_model(words, "", arguments)

    def of_formula(
        self,
        call: ast.Call,
        formula: FunctionType,
        positional: Sequence[PreferenceValue],
        named: Mapping[str, PreferenceValue],
    ) -> PreferenceValue:
        """The result of a formula that masks numbers, or takes their mean."""
        first = next(iter(positional), None)
        return first if formula.__name__ in MASKED_FORMULAS and isinstance(first, (Slope, Number)) else None


def _may_cut(operation: Operation[PreferenceValue]) -> bool:
    """Whether an operation may take rows by their places, which are no halves where labels tell good responses."""
    if operation.function in ("chunk", "split", "tensor_split"):
        return True
    if operation.function != SUBSCRIPT:
        return False
    first = (index_parts(operation.positional[0]) or operation.positional)[0]
    return isinstance(first, ast.Slice) and ast.unparse(first) != ":"


def _is_smoothing(name: str, number: float = 0.0) -> bool:
    """Whether a number is the smoothing of labels: the share of pairs whose labels may be wrong, less than half."""
    return "smoothing" in name and 0 <= number < 0.5
