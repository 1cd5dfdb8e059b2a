"""Padded tokens: does a body take the padding of responses for tokens?

A worked example, a function on the ready records, whose responses are padded on the right::

    rewards = rollout.log_probs.tensor - ref.ref_log_probs.tensor      tokens, and padding
    rewards[:, -1] += scores.score.tensor                              the last column: padding in shorter responses
    gains = (rewards - rewards.mean()) / rewards.std()                 padding counts in both
    whitened(gains, torch.ones_like(gains))                            and here: a mask of ones

Nothing fails, since padding has numbers, too. The dim ``hfdsl.rl.batches.R`` says that there is padding, and a mask
says where. For a user's dim a mask of responses says that there is; the rule then reports only a score in the last
column, and a mean or spread that counts masked padding as zeros.

The rule evaluates the statements that run in every call on tensors of tokens, and gives up where a mask may have played
a part: a sum of masked tokens, a mean of those that a mask picks and a number for the responses that fill the last
column are intended. So is a mean or a spread alone: the one may be a sum over a fixed length, the other a metric.

The rule follows columns that users' bodies compute only if each token has its own number: a score that is repeated for
all tokens has the same mean with padding. If a role samples with a mask of ones, its responses have no padding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple, TypeGuard

from hfdsl.check.bodies.interpretation import OPERATORS, SUBSCRIPT, Interpretation, Operation, RowGroups, ports_of
from hfdsl.check.bodies.row_tensors import ELEMENTWISE, FORMS, dim_numbers
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.bodies.token_tensors import (
    PaddedStatistic,
    PerResponse,
    RepeatedTokens,
    TokenTensor,
    TokenValue,
    combined,
    zeroed,
)
from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.masks import TESTS
from hfdsl.check.program import Program, signature_of
from hfdsl.check.rules.dataflow.formulas import bound_arguments, call_name
from hfdsl.check.rules.dataflow.renamed import VOCABULARY
from hfdsl.check.rules.rows.mixed_rows import may_get_a_part
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Ref
from hfdsl.graph.signatures import PortType, RecordType, Signature, StaticType
from hfdsl.graph.spans import definition_span
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Size
from hfdsl.types.dtypes import Bool

FORMULAS = "hfdsl.rl."
"""The package whose formulas take the mask of the tokens as ``mask``."""

OF_EACH_TOKEN = frozenset({"engine_log_probs", "log_probs", "ref_log_probs", "values"})
"""The columns of ready records that never repeat one number for all tokens of a response, in any role."""

MASKS = re.compile(r"(.*_)?(actions?|answers?|completions?|generated|outputs?|responses?)_mask")
"""The names of columns that say which tokens of a padded response are there."""

SCORES = re.compile(r"(.*_)?(costs?|rewards?|scores?)")
"""The names of numbers that every response has, be it cut or not."""

WITH_PADDING = frozenset({"overlong_penalty", "token_rewards", "whitened"})
"""The formulas whose numbers at tokens depend on whether the mask has padding, too."""

ONES_MAKERS = frozenset({"full", "full_like", "new_full", "new_ones", "ones", "ones_like"})
"""The functions that fill a tensor with one number."""

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

    place: ast.expr
    label: str
    effect: str
    advice: str
    of_own: bool = False
    """Whether it is one in users' columns, too."""


def padding_is_no_token(context: Context) -> Iterator[Finding]:
    """HF355: a body before an update leaves padding out of what it computes of tokens."""
    seen, graph = set[object](), context.program.graph
    for node, signature in graph.bodies if not graph.misuses else ():
        body = signature.body
        ready, masked = _padded_widths(columns_with_width(signature))
        if body in seen or signature.is_ready_made or is_decorated(body) or not ready | masked:
            continue
        seen.add(body)
        definition, update = definition_of(body), next(updates_after(graph, node), None)
        if definition is None or update is None:
            continue
        repeated = _repeated_columns(context.program, node)
        parts = may_get_a_part(node, signature)
        of_ready = _Body(signature, definition, repeated, ready, parts=parts).completed().mistakes
        of_masked = _Body(signature, definition, repeated, masked, parts=parts).completed().mistakes
        mistake = next(iter([*of_ready, *(mistake for mistake in of_masked if mistake.of_own)]), None)
        if mistake is not None:
            if any(samples_full_responses(sampler) for _, sampler in graph.bodies):
                return
            learns = [] if update is node else [Label(update.span, "learns from the result")]
            yield Finding(
                "HF355",
                f"'{node.label}' {mistake.effect}",
                Label(span_of(definition_span(body).file, mistake.place), mistake.label),
                (Label(node.span, "called here"), *learns),
                notes=(mistake.advice,),
            )


def columns_with_width(signature: Signature) -> Iterator[tuple[str, ColumnSpec]]:
    """The dense columns of two dims that a body takes, each as the body names it."""
    for port in signature.ports:
        if isinstance(port.type, RecordType):
            yield from ((f"{port.name}.{column}", spec) for column, spec in _record_columns(port.type))
        elif _has_width(port.type):
            yield port.name, port.type


def _record_columns(kind: RecordType) -> Iterator[tuple[str, ColumnSpec]]:
    return ((column, spec) for column, spec in schema(kind.record).fields.items() if _has_width(spec))


def _has_width(spec: object) -> TypeGuard[ColumnSpec]:
    return isinstance(spec, ColumnSpec) and not spec.ragged and len(spec.dims) == 2


def _padded_widths(columns: Iterable[tuple[str, ColumnSpec]]) -> tuple[frozenset[Size], frozenset[Size]]:
    """The second dims of responses with padding: that of the ready records, and those of users' records with a mask."""
    ready, masked = set[Size](), set[Size]()
    for path, spec in columns:
        width = spec.dims[1]
        if [(getattr(dim, "__module__", ""), getattr(dim, "__name__", "")) for dim in width.atoms] == [
            (VOCABULARY, "R")
        ]:
            ready.add(width)
        elif is_mask(spec) and MASKS.fullmatch(path.rpartition(".")[2]):
            masked.add(width)
    return frozenset(ready), frozenset(masked)


def samples_full_responses(signature: Signature) -> bool:
    """Whether a user's body that takes no responses may return a mask of ones for those that it makes."""
    kind = signature.returns
    if (
        signature.is_ready_made
        or not isinstance(kind, RecordType)
        or any(_padded_widths(columns_with_width(signature)))
    ):
        return False
    columns = [*_record_columns(kind)]
    padded = frozenset[Size]().union(*_padded_widths(columns))
    makes_mask = any(is_mask(spec) and spec.dims[1] in padded for _, spec in columns)
    definition = definition_of(signature.body) if makes_mask else None
    calls = (call for call in nodes_of(definition) if isinstance(call, ast.Call)) if definition is not None else ()
    return any(call_name(call).rpartition(".")[2] in ONES_MAKERS for call in calls)


def _repeated_columns(program: Program, node: Node) -> frozenset[str]:
    """The columns with padding that a call takes from users' bodies, which may repeat one number in each row."""
    repeated = set[str]()
    for column in program.origins.columns(node.id):
        stored = stored_column(program.graph, column.ref)
        maker = program.graph.nodes[stored.node] if isinstance(stored, Ref) else None
        signature = None if maker is None else signature_of(maker)
        if signature is not None and not signature.is_ready_made and column.name not in OF_EACH_TOKEN:
            repeated.add(column.port if column.name is None else f"{column.port}.{column.name}")
    return frozenset(repeated)


def is_mask(spec: object) -> bool:
    """Whether a column is of booleans."""
    return isinstance(spec, ColumnSpec) and issubclass(spec.dtype, Bool)


class _Body(Interpretation[TokenValue]):
    """The interpretation of a body on tokens.

    Of the columns ``repeated`` nothing is known. Columns whose second dim is one of ``padded`` have padding. ``parts``:
    a plan may give it some of the rows, so that a statistic of all rows is HF338.
    """

    def __init__(
        self,
        signature: Signature,
        definition: Function,
        repeated: AbstractSet[str],
        padded: AbstractSet[Size],
        *,
        parts: bool,
    ) -> None:
        super().__init__(signature.body, definition, RowGroups.of(signature), ports_of(signature))
        self.signature, self.repeated, self.padded, self.parts = signature, repeated, padded, parts
        self.names |= {name: 1.0 for name, kind in self.ports.items() if isinstance(kind, StaticType)}
        self.names |= dict.fromkeys(self.uncertain)
        self.mistakes = list[Mistake]()
        """The places where padding counts, in order."""

    def run(self, statement: ast.stmt) -> None:
        """Run a statement, also one that sets a part of a tensor, returns columns or computes in place."""
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(name), index)], value) | ast.AugAssign(
                ast.Subscript(ast.Name(name), index), ast.Add() | ast.Sub(), value
            ):
                self.set_part(name, index, value)
            case ast.Return(ast.Call(keywords=columns)) if columns:
                self.check_returned(columns)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), method)) as call) if method.endswith("_"):
                self.value(call)
                self.names[name] = None
            case ast.Expr(value) | ast.Return(ast.expr() as value):
                self.value(value)
            case ast.AugAssign(ast.Attribute() | ast.Subscript(), _, value):
                self.value(value)
            case _:
                super().run(statement)

    def set_part(self, name: str, index: ast.expr, part: ast.expr) -> None:
        """Set a part of a tensor: a number of each response in the last column is a mistake."""
        tensor, value = self.names.get(name), self.value(part)
        if isinstance(tensor, TokenTensor) and _is_last_column(index) and value == PerResponse():
            effect = (
                f"puts '{ast.unparse(part)}' in the last column of '{name}', not at the last token: no token of a "
                "shorter response gets it"
            )
            advice = "hfdsl.rl.rewards.token_rewards(scores, mask) puts a score at the last token of each response"
            self.mistakes.append(
                Mistake(part, "goes to padding in every shorter response", effect, advice, of_own=True)
            )
        self.names[name] = TokenTensor(masked=True) if isinstance(tensor, TokenTensor) else None

    def check_returned(self, columns: Sequence[ast.keyword]) -> None:
        """Evaluate what is returned: ones in the place of a mask are a mistake."""
        kind: PortType = self.signature.returns
        fields = schema(kind.record).fields if isinstance(kind, RecordType) else {}
        for column in columns:
            spec, value = fields.get(column.arg or ""), self.value(column.value)
            if is_mask(spec) and self.is_padded(spec) and isinstance(value, TokenTensor) and value.ones:
                effect = f"returns a '{column.arg}' of ones, so padding counts as tokens"
                self.mistakes.append(Mistake(column.value, ONES, effect, self.mask_advice))

    def is_padded(self, spec: object) -> bool:
        """Whether a column has a number for each token of responses and for their padding."""
        return _has_width(spec) and spec.dims[1] in self.padded

    @property
    def mask_advice(self) -> str:
        """The mask that a body takes, or has to take."""
        masks = [name for name, spec in columns_with_width(self.signature) if self.is_padded(spec) and is_mask(spec)]
        return f"write {masks[0]}.tensor" if masks else "take the response_mask of the responses, too"

    def value(self, node: ast.expr) -> TokenValue:
        """The value of an expression; all numbers that are the same for all rows are one."""
        match node:
            case ast.Constant(int() | float()) | ast.Attribute(ast.Name("torch")):
                return 1.0
            case ast.Attribute(source, "shape"):
                return self.value(source)
        return super().value(node)

    def of_column(self, spec: ColumnSpec, path: str) -> TokenValue:
        """A number for each token, or for each response."""
        if self.is_padded(spec):
            if is_mask(spec):
                return TokenTensor(masked=True, mask=path.endswith("mask"))
            return RepeatedTokens(path) if path in self.repeated else TokenTensor(column=path)
        is_score = SCORES.fullmatch(path.rpartition(".")[2])
        return PerResponse(not is_score, path) if len(spec.dims) == 1 else None

    def of_operation(self, operation: Operation[TokenValue]) -> TokenValue:
        """The result of an operation on tokens, on numbers of responses, or on statistics."""
        function, source = operation.function, operation.source
        if function == SUBSCRIPT:
            if isinstance(source, TokenTensor) and _is_last_column(operation.positional[0]):
                return PerResponse(source.masked)
            if isinstance(source, PerResponse) and ast.unparse(operation.positional[0]) in (":, None", "(:, None)"):
                return RepeatedTokens(source.column)
            return source if isinstance(source, PaddedStatistic) else None
        if isinstance(source, PaddedStatistic) and function in FORMS | LOWER_BOUNDS:
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
        if isinstance(source, PerResponse) and function == "unsqueeze":
            return RepeatedTokens(source.column) if dim_numbers(operation.positional[0]) in ((1,), (-1,)) else None
        return self.token_result(operation, source) if isinstance(source, TokenTensor) else None

    def computed(self, node: ast.expr, function: str, left: TokenValue, right: TokenValue) -> TokenValue:
        """A sum or quotient: tokens less a mean with padding, or over such a spread, are a mistake."""
        if isinstance(right, PaddedStatistic) and right.zeroed:
            return self.computed_of_zeroed(node, function, left, right)
        if isinstance(right, PaddedStatistic) and not (right.of_all and self.parts) and isinstance(left, TokenTensor):
            if right.is_spread and function == "div":
                effect = f"divides by a spread over tokens and padding, '{ast.unparse(right.place)}'"
                self.mistakes.append(Mistake(right.place, "padding counts", effect, WITH_A_MASK))
            elif not right.is_spread and function == "sub" and not left.masked:
                effect = f"subtracts a mean over tokens and padding, '{ast.unparse(node)}'"
                self.mistakes.append(Mistake(node, "a mean in which padding counts", effect, WITH_A_MASK))
            return left
        if isinstance(left, PaddedStatistic) and isinstance(right, float) and function == "add":
            return left
        return combined(left, right)

    def computed_of_zeroed(self, node: ast.expr, function: str, left: TokenValue, right: PaddedStatistic) -> TokenValue:
        """A sum or quotient with a statistic of numbers that are 0 at padding: of the same numbers, a mistake."""
        is_of_same = isinstance(left, (TokenTensor, RepeatedTokens)) and left.column == right.zeroed
        text = ast.unparse(right.place)
        if is_of_same and function == ("div" if right.is_spread else "sub") and not (right.of_all and self.parts):
            effect = f"subtracts a mean over tokens and padding, '{ast.unparse(node)}'"
            if right.is_spread:
                effect = f"divides by a spread over tokens and padding, '{text}'"
            self.mistakes.append(Mistake(right.place, "counts padding as zeros", effect, WITH_A_MASK, of_own=True))
        return left

    def token_result(self, operation: Operation[TokenValue], tokens: TokenTensor) -> TokenValue:
        """The result of a function of tokens."""
        argument = operation.named.get("dim", operation.positional[0] if operation.positional else None)
        dims = {0, 1} if argument is None else {dim % 2 for dim in dim_numbers(argument)}
        match operation.function:
            case "ones" | "ones_like":
                return TokenTensor(ones=True)
            case "zeros" | "zeros_like":
                return TokenTensor()
            case "cumsum" | "flip":
                return TokenTensor(tokens.masked)
            case "mean" | "std" as function if 1 in dims and (not tokens.masked or tokens.zeroed):
                column = tokens.column if tokens.zeroed else ""
                is_known = not tokens.zeroed or column
                return PaddedStatistic(function == "std", 0 in dims, operation.node, column) if is_known else None
            case "sum" if dims == {1}:
                return PerResponse(tokens.masked)
        return None

    def of_call(
        self,
        call: ast.Call,
        function: FunctionType,
        positional: Sequence[TokenValue],
        named: Mapping[str, TokenValue],
    ) -> TokenValue:
        """The result of a formula."""
        return self.formula_result(call, function) if (function.__module__ or "").startswith(FORMULAS) else None

    def formula_result(self, call: ast.Call, formula: Callable[..., Any]) -> TokenValue:
        """The result of a formula: a mask of ones is a mistake where padding changes the numbers at tokens."""
        arguments = bound_arguments(formula, call)
        values = {name: self.value(argument) for name, argument in arguments.items()}
        mask, x, name = values.get("mask"), values.get("x"), formula.__name__
        has_padding = isinstance(mask, TokenTensor) and mask.ones
        if has_padding and name == "masked_mean" and isinstance(x, TokenTensor) and not x.masked:
            return PaddedStatistic(is_spread=False, of_all="dim" not in arguments, place=call)
        if has_padding and name in WITH_PADDING:
            effect = f"gives '{call_name(call)}' a mask of ones, so padding counts as tokens"
            self.mistakes.append(Mistake(arguments["mask"], ONES, effect, self.mask_advice))
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
