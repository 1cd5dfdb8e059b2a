"""Interpretation of a body in tokens with padding: where does it take the padding of responses for tokens?

A worked example, of mini-batches in an update::

    for rows in torch.randperm(len(gains)).split(8):        indices of rows
        gain = gains[rows]                                  tokens, and padding
        gain = (gain - gain.mean()) / gain.std()            padding counts in both
        zeroed = gain * mask[rows]                          0 at padding

A branch whose test may say that there is no padding is followed, but no mistake in it counts, and none behind an end.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple, Self

from hfdsl.check.bodies.calls import bound_arguments, call_name
from hfdsl.check.bodies.flow import ENDS, IN_PLACE, FlowInterpretation
from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Operation
from hfdsl.check.bodies.names import last_name, value_of
from hfdsl.check.bodies.padded_columns import (
    columns_with_width,
    has_width,
    is_mask,
)
from hfdsl.check.bodies.row_indices import Indices, called_indices
from hfdsl.check.bodies.row_tensors import ELEMENTWISE, FORMS, TESTS, dim_numbers
from hfdsl.check.bodies.token_tensors import (
    MiniBatches,
    PaddedStatistic,
    PerResponse,
    RepeatedTokens,
    TokenTensor,
    TokenValue,
    combined,
    loaded_batches,
    of_rows,
    zeroed,
)
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.signatures import PortType, RecordType, Signature, StaticType
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Size

FORMULAS = "hfdsl.rl."
"""The package whose formulas take the mask of the tokens as ``mask``."""

OF_PADDING = re.compile(r"dense|fixed|full|length|mask|pack|pad|ragged|trunc|var")
"""Words for whether there is padding."""

SCORES = re.compile(r"(.*_)?(costs?|rewards?|scores?)")
"""The names of numbers that every response has, be it cut or not."""

WITH_PADDING = frozenset({"overlong_penalty", "token_rewards", "whitened"})
"""The formulas whose numbers at tokens depend on whether the mask has padding, too."""

OF_TOKENS = frozenset({"discounted_returns", "kl_estimate", "kl_penalized", "masked", "token_rewards", "whitened"})
"""The formulas that return a number for each token."""

LOWER_BOUNDS = frozenset({"clamp", "clamp_min", "clip"})
"""The functions of a tensor that keep a spread from 0."""

SAME_VALUES = frozenset(
    {"bool", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "int", "long", "to"}
)
"""The functions of a tensor whose result is ones if the tensor is."""


class Mistake(NamedTuple):
    """A place in a body, what stands there, what the body does, and advice."""

    place: Span
    label: str
    effect: str
    advice: str
    of_own: bool = False
    """Whether it is one in users' columns, too."""


class TokenInterpretation(FlowInterpretation[TokenValue]):
    """The interpretation of a body on tokens, which collects the places where padding counts, in order.

    Of the columns ``repeated``, by name, nothing is known. Columns whose second dim is one of ``padded`` have padding.
    ``parts``: a plan may give the body some of the rows, so that a statistic of all rows is HF338.
    """

    signature: Signature | None = None
    repeated: AbstractSet[str] = frozenset()
    padded: AbstractSet[Size] = frozenset()
    parts: bool = False

    def begin(self) -> None:
        """Begin without mistakes, and with numbers of the caller."""
        self.mistakes, self.is_behind_end, self.options = list[Mistake](), False, set[str]()
        self.names |= {name: 1.0 for name, kind in self.ports.items() if isinstance(kind, StaticType)}

    def know(self, signature: Signature, repeated: AbstractSet[str], padded: AbstractSet[Size], *, parts: bool) -> Self:
        """This body with what is known of its columns and rows."""
        self.signature, self.repeated, self.padded, self.parts = signature, repeated, padded, parts
        return self

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls, which collects into the same list."""
        inner = super().inner(body, definition, ports)
        inner.mistakes, inner.is_behind_end = self.mistakes, self.is_behind_end
        inner.repeated, inner.padded, inner.parts = self.repeated, self.padded, self.parts
        return inner

    def collect(self, mistake: Mistake) -> None:
        """Collect a mistake, unless the body may have ended before it."""
        self.mistakes.extend([] if self.is_behind_end else [mistake])

    # -- statements

    def run(self, statement: ast.stmt) -> None:
        """Run a statement, also one that sets a part of a tensor, returns columns or computes in place."""
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(name), index)], value) | ast.AugAssign(
                ast.Subscript(ast.Name(name), index), ast.Add() | ast.Sub(), value
            ):
                self.set_column(name, index, value)
                return
            case ast.Return(ast.Call(keywords=columns)) if columns and self.signature is not None:
                self.check_returned(self.signature, columns)
        super().run(statement)
        match statement:
            case ast.Assign([ast.Name(name)], ast.Attribute(ast.Name("self"), option)) if not OF_PADDING.search(option):
                self.options.add(name)  # such as a configuration
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method))) if method.endswith("_"):
                self.names[name] = self.names.get(name) if method in IN_PLACE else None

    def branch(self, statement: ast.If) -> bool:
        """Run both branches: nothing is known of padding in a branch, or behind an end, that may be of full rows."""
        count, leaves = len(self.mistakes), super().branch(statement)
        if not self.is_of_any_rows(statement.test):
            del self.mistakes[count:]
            self.is_behind_end |= any(isinstance(node, ENDS) for node in nodes_of(statement))
        return leaves

    def is_of_any_rows(self, test: ast.expr) -> bool:
        """Whether a test is of options and the number of rows alone, and not of whether there is padding."""
        nodes = [*nodes_of(test)]
        names = {node.id for node in nodes if isinstance(node, ast.Name)} - {"len", "self", *self.options}
        are_options = all(isinstance(self.names.get(name), (float, Indices)) for name in names)
        return are_options and OF_PADDING.search(ast.unparse(test).lower()) is None

    def take_from(self, target: ast.expr, iterated: ast.expr) -> None:
        """Set the names of a loop: also those of a mini-batch of a loader."""
        batches = self.value(iterated) if isinstance(target, ast.Tuple) else None
        if not isinstance(target, ast.Tuple) or not isinstance(batches, MiniBatches):
            super().take_from(target, iterated)
            return
        for position, name in enumerate(target.elts):
            self.set(name, self.of_part(batches.rows, position))

    # -- values

    def several(self, values: Sequence[TokenValue]) -> TokenValue:
        """A tuple of values."""
        return tuple(values)

    def table(self, entries: Mapping[str, TokenValue]) -> TokenValue:
        """A dictionary of values."""
        return dict(entries)

    def entries(self, value: TokenValue) -> Mapping[str, TokenValue] | None:
        """The values of a dictionary by key."""
        return value if isinstance(value, dict) else None

    def of_part(self, value: TokenValue, position: int) -> TokenValue:
        """The value at a position of a tuple."""
        part: TokenValue = value[position] if type(value) is tuple and position < len(value) else None
        return part

    def of_element(self, value: TokenValue) -> TokenValue:
        """The mini-batch, or the indices, that a loop takes at a time; nothing is known of a row alone."""
        match value:
            case MiniBatches(rows):
                element: TokenValue = rows
                return element
            case Indices():
                return value.element()
        return None

    def place(self, node: ast.expr) -> Span:
        """Where an expression is written."""
        return span_of(definition_span(self.body).file, node)

    def statistic(self, node: ast.expr, function: str, of_all: bool, zeroed: str = "") -> PaddedStatistic:
        """A mean or a spread that an expression computes."""
        return PaddedStatistic(function != "mean", of_all, ast.unparse(node), self.place(node), zeroed)

    def set_part(self, value: TokenValue, part: TokenValue) -> TokenValue:
        """Tokens after a part of them has been set: perhaps those of a mask."""
        return TokenTensor(masked=True) if isinstance(value, TokenTensor) else None

    def set_column(self, name: str, index: ast.expr, part: ast.expr) -> None:
        """Set a part of a tensor: a number of each response in the last column is a mistake."""
        tensor, value = self.names.get(name), self.value(part)
        is_of_tokens = isinstance(tensor, (TokenTensor, RepeatedTokens))
        if is_of_tokens and _is_last_column(index) and value == PerResponse():
            effect = (
                f"puts '{ast.unparse(part)}' in the last column of '{name}', not at the last token: no token of a "
                "shorter response gets it"
            )
            advice = "hfdsl.rl.rewards.token_rewards(scores, mask) puts a score at the last token of each response"
            self.collect(
                Mistake(self.place(part), "goes to padding in every shorter response", effect, advice, of_own=True)
            )
        self.write_part(name, value)
        if isinstance(tensor, TokenTensor):
            self.names[name] = tensor.filled(index, self.value(index))

    def check_returned(self, signature: Signature, columns: Sequence[ast.keyword]) -> None:
        """Evaluate what is returned: ones in the place of a mask are a mistake."""
        kind = signature.returns
        fields = schema(kind.record).fields if isinstance(kind, RecordType) else {}
        for column in columns:
            spec, value = fields.get(column.arg or ""), self.value(column.value)
            if is_mask(spec) and self.is_padded(spec) and isinstance(value, TokenTensor) and value.ones:
                effect = f"returns a '{column.arg}' of ones, so padding counts as tokens"
                self.collect(Mistake(self.place(column.value), ONES, effect, self.mask_advice))

    def is_padded(self, spec: object) -> bool:
        """Whether a column has a number for each token of responses and for their padding."""
        return has_width(spec) and spec.dims[1] in self.padded

    @property
    def mask_advice(self) -> str:
        """The mask that a body takes, or has to take."""
        columns = columns_with_width(self.signature) if self.signature is not None else ()
        masks = [name for name, spec in columns if self.is_padded(spec) and is_mask(spec)]
        return f"write {masks[0]}.tensor" if masks else "take the response_mask of the responses, too"

    def value(self, node: ast.expr) -> TokenValue:
        """The value of an expression; all numbers that are the same for all rows are one."""
        match node:
            case ast.IfExp(test) if not self.is_of_any_rows(test):
                count, value = len(self.mistakes), super().value(node)
                del self.mistakes[count:]
                return value
            case ast.Constant(int() | float()) | ast.Attribute(ast.Name("torch")):
                return 1.0
            case ast.Name(name) if name not in self.names and not self.scope.sets(name):
                return 1.0 if isinstance(value_of(self.body, name), (int, float)) else None
            case ast.Attribute(source, "shape"):
                return self.value(source)
        return super().value(node)

    def of_column(self, spec: ColumnSpec, path: str) -> TokenValue:
        """A number for each token, or for each response."""
        if self.is_padded(spec):
            if is_mask(spec):
                return TokenTensor(masked=True, mask=path.endswith("mask"))
            return RepeatedTokens(path) if path.rpartition(".")[2] in self.repeated else TokenTensor(column=path)
        is_score = SCORES.fullmatch(path.rpartition(".")[2])
        return PerResponse(not is_score, path) if len(spec.dims) == 1 else None

    def of_operation(self, operation: Operation[TokenValue]) -> TokenValue:
        """The result of an operation on tokens, on numbers of responses, or on statistics."""
        function, source = operation.function, operation.source
        rows = of_rows(operation)
        if rows is not None:
            return rows
        if function == SUBSCRIPT:
            if isinstance(source, TokenTensor) and _is_last_column(operation.positional[0]):
                return PerResponse(source.masked)
            if isinstance(source, PerResponse) and ast.unparse(operation.positional[0]) in (":, None", "(:, None)"):
                return RepeatedTokens(source.column)
            return source if isinstance(source, PaddedStatistic) else None
        if isinstance(source, PaddedStatistic) and function in {"sqrt", *FORMS, *LOWER_BOUNDS}:
            return source
        product = zeroed(source, operation.others[0]) if function in ("mul", "multiply") and operation.others else None
        if product is not None:
            return replace(product, column=product.column or f"{operation.node.lineno}:{operation.node.col_offset}")
        if function in ("add", "div", "sub") and len(operation.others) == 1:
            return self.computed(operation.node, function, source, operation.others[0])
        if function in ELEMENTWISE.union(OPERATORS.values()):
            is_same = isinstance(source, (TokenTensor, RepeatedTokens)) and function in SAME_VALUES
            result = source if is_same else combined(source, *operation.others)
            return TokenTensor(result.masked) if isinstance(result, TokenTensor) and function in TESTS else result
        if function in ("zeros", "zeros_like") and isinstance(source, (TokenTensor, RepeatedTokens)):
            return TokenTensor(column=f"{operation.node.lineno}:{operation.node.col_offset}", buffer=True)
        if isinstance(source, PerResponse) and function == "unsqueeze":
            return RepeatedTokens(source.column) if dim_numbers(operation.positional[0]) in ((1,), (-1,)) else None
        return self.token_result(operation, source) if isinstance(source, TokenTensor) else None

    def computed(self, node: ast.expr, function: str, left: TokenValue, right: TokenValue) -> TokenValue:
        """A sum or quotient: tokens less a mean with padding, or over such a spread, are a mistake."""
        if isinstance(right, PaddedStatistic) and right.zeroed:
            return self.computed_of_zeroed(node, function, left, right)
        if isinstance(right, PaddedStatistic) and not (right.of_all and self.parts) and isinstance(left, TokenTensor):
            if right.is_spread and function == "div":
                effect = f"divides by a spread over tokens and padding, '{right.text}'"
                self.collect(Mistake(right.place, "padding counts", effect, WITH_A_MASK))
            elif not right.is_spread and function == "sub" and not left.masked:
                effect = f"subtracts a mean over tokens and padding, '{ast.unparse(node)}'"
                self.collect(Mistake(self.place(node), "a mean in which padding counts", effect, WITH_A_MASK))
            return left
        if isinstance(left, PaddedStatistic) and function == "add":
            is_number = isinstance(node, ast.BinOp) and "eps" in last_name(node.right).lower()
            return left if is_number or isinstance(right, float) else combined(left, right)
        return combined(left, right)

    def computed_of_zeroed(self, node: ast.expr, function: str, left: TokenValue, right: PaddedStatistic) -> TokenValue:
        """A sum or quotient with a statistic of numbers that are 0 at padding: of the same numbers, a mistake."""
        is_of_same = isinstance(left, (TokenTensor, RepeatedTokens)) and left.column == right.zeroed
        if is_of_same and function == ("div" if right.is_spread else "sub") and not (right.of_all and self.parts):
            effect = f"subtracts a mean over tokens and padding, '{ast.unparse(node)}'"
            if right.is_spread:
                effect = f"divides by a spread over tokens and padding, '{right.text}'"
            self.collect(Mistake(right.place, "counts padding as zeros", effect, WITH_A_MASK, of_own=True))
        return left

    def token_result(self, operation: Operation[TokenValue], tokens: TokenTensor) -> TokenValue:
        """The result of a function of tokens."""
        argument = operation.named.get("dim", operation.positional[0] if operation.positional else None)
        dims = {0, 1} if argument is None else {dim % 2 for dim in dim_numbers(argument)}
        match operation.function:
            case "ones" | "ones_like":
                return TokenTensor(ones=True)
            case "cumsum" | "flip":
                return TokenTensor(tokens.masked)
            case "mean" | "std" | "std_mean" | "var" | "var_mean" as function if 1 in dims:
                column = tokens.column if tokens.zeroed else ""
                if tokens.masked if not tokens.zeroed else not column:
                    return None
                parts = [self.statistic(operation.node, part, 0 in dims, column) for part in function.split("_")]
                return parts[0] if len(parts) == 1 else tuple(parts)
            case "sum" if dims == {1}:
                return PerResponse(tokens.masked)
        return None

    # -- calls

    def call(self, call: ast.Call) -> TokenValue:
        """The result of a call; of a data set of tensors, or a loader of one, mini-batches."""
        result = super().call(call)
        if result is not None:
            return result
        return called_indices(call, self.value) or loaded_batches(call, self.value)

    def of_call(
        self,
        call: ast.Call,
        function: FunctionType,
        positional: Sequence[TokenValue],
        named: Mapping[str, TokenValue],
    ) -> TokenValue:
        """The result of a formula, or of a user's function."""
        if (function.__module__ or "").startswith(FORMULAS):
            return self.formula_result(call, function)
        return super().of_call(call, function, positional, named)

    def formula_result(self, call: ast.Call, formula: Callable[..., Any]) -> TokenValue:
        """The result of a formula: a mask of ones is a mistake where padding changes the numbers at tokens."""
        arguments = bound_arguments(formula, call)
        values = {name: self.value(argument) for name, argument in arguments.items()}
        mask, x, name = values.get("mask"), values.get("x"), formula.__name__
        has_padding = isinstance(mask, TokenTensor) and mask.ones
        if has_padding and name == "masked_mean" and isinstance(x, TokenTensor) and not x.masked:
            return self.statistic(call, "mean", "dim" not in arguments)
        if has_padding and name in WITH_PADDING:
            effect = f"gives '{call_name(call)}' a mask of ones, so padding counts as tokens"
            self.collect(Mistake(self.place(arguments["mask"]), ONES, effect, self.mask_advice))
        return TokenTensor(masked=True) if name in OF_TOKENS else None


ONES = "1 at tokens and padding"
"""A mask of ones, in words."""

WITH_A_MASK = "hfdsl.rl.masked has masked_mean and whitened, which count the tokens of a mask alone"
"""What to do about a statistic."""


def _is_last_column(index: ast.expr) -> bool:
    """Whether an index takes the last column of all rows."""
    match index:
        case ast.Tuple([ast.Slice(None, None, None), ast.UnaryOp(ast.USub(), ast.Constant(1))]):
            return True
    return False
