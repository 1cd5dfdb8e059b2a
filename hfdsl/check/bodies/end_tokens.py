"""End tokens in masks and labels as abstract values: which of them leave out the token that ends a response?

A worked example, of a role whose tokenizer has ``pad_token = eos_token``::

    ends = tokens == self.tokenizer.eos_token_id       true at end tokens
    ends.long().cumsum(-1)                             how many there are up to each token
    ends.long().cumsum(-1) == 0                        true before the first one, and not at it
    tokens != self.tokenizer.pad_token_id              likewise: it is the end token, too
    (ends.long().cumsum(-1) - ends.long()) == 0        not known: true at the first one, too
    labels[labels == self.tokenizer.pad_token_id] = -100        labels without end tokens

Names say what an end token is. Whatever moves tokens, or puts others among them, makes the result unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from hfdsl.check.bodies.flow import FlowInterpretation
from hfdsl.check.bodies.interpretation import SUBSCRIPT, Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import code_of
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.sources import Function, span_of
from hfdsl.check.syntax_trees import index_parts, nodes_of
from hfdsl.graph.signatures import PortType
from hfdsl.graph.spans import NOWHERE, Span, definition_span

END: Final = re.compile(r"(.*_)?eos(_tok(en)?)?(_id)?", re.IGNORECASE)
"""The names of the token that ends a response."""

PAD: Final = re.compile(r"(.*_)?pad(_tok(en)?)?(_id)?", re.IGNORECASE)
"""The names of the token behind the end of a response."""

IGNORED: Final = "-100"
"""The label of tokens that a loss leaves out."""

SAME: Final = functions("bool byte clone contiguous cpu cuda detach double float half int long to type")
"""Functions whose result has the numbers of their tensor."""

FORMS: Final = SAME | functions("chunk flatten index_select reshape split squeeze unbind unsqueeze view")
"""Functions whose result has the labels of their tensor."""

PRODUCTS: Final = functions("bitwise_and logical_and mul multiply")
"""Functions whose result is false where one of theirs is."""

LOSSES: Final = functions("cross_entropy nll_loss")
"""Functions that learn labels, which are their second argument."""


@dataclass(frozen=True, slots=True)
class EndTokens:
    """Numbers of tokens by what they are at end tokens, and where that is decided.

    They are true ``at`` end tokens and perhaps behind them, count them ``upto`` each token, or are false or without a
    label at each: ``without``. Tokens from ``before`` others, as ``ids[:, n - 1 : -1]``, say of each whether a response
    has ended before it.
    """

    kind: Literal["at", "upto", "without", "before"]
    place: Span = field(compare=False)


EndValue: TypeAlias = EndTokens | tuple[Any, ...] | None
"""The abstract value of an expression; None if unknown, and a tuple for several."""


class UnlearnedEnds(NamedTuple):
    """A mask that a body returns by the name of a column, or labels that it learns, without end tokens."""

    column: str
    place: Span


class EndInterpretation(FlowInterpretation[EndValue]):
    """The interpretation of a body in end tokens; ``pads`` are owners of a padding token that is the end token."""

    pads: AbstractSet[str] = frozenset()

    def begin(self) -> None:
        """Begin with nothing found."""
        self.unlearned, self.file = list[UnlearnedEnds](), definition_span(self.body).file

    def inner(self, body: Callable[..., Any], definition: Function, ports: Mapping[str, PortType]) -> Self:
        """The interpretation of a function that the body calls, which collects into the same list."""
        inner = super().inner(body, definition, ports)
        inner.unlearned, inner.pads = self.unlearned, self.pads
        return inner

    # -- statements

    def run(self, statement: ast.stmt) -> None:
        """Run a statement: also one that ignores labels, or returns a record."""
        match statement:
            case ast.Return(ast.Call(keywords=columns)):
                for column in columns:
                    value = self.value(column.value)
                    if isinstance(value, EndTokens) and value.kind == "without":
                        self.unlearned.append(UnlearnedEnds(column.arg or "", value.place))
            case ast.Assign([ast.Subscript(ast.Name(name), index)], value) | ast.Expr(
                ast.Call(ast.Attribute(ast.Name(name), "masked_fill_"), [index, value])
            ) if ast.unparse(value) == IGNORED:
                ignored = self.value(index)
                if isinstance(ignored, EndTokens) and ignored.kind == "at":
                    self.names[name] = self.without(index)
                return
        super().run(statement)

    def without(self, node: ast.expr) -> EndTokens:
        """Numbers that leave out end tokens, as an expression decides."""
        return EndTokens("without", span_of(self.file, node))

    # -- values

    def several(self, values: Sequence[EndValue]) -> EndValue:
        """A tuple of values."""
        return tuple(values)

    def of_part(self, value: EndValue, position: int) -> EndValue:
        """The value at a position of a tuple."""
        part: EndValue = value[position] if isinstance(value, tuple) and position < len(value) else None
        return part

    def value(self, node: ast.expr) -> EndValue:
        """The value of an expression: also a comparison with the token that ends a response."""
        match node:
            case ast.Compare(tokens, [ast.Eq() | ast.NotEq() as operator], [other]) if self.is_end(other):
                return self.compared(node, tokens, is_equal=isinstance(operator, ast.Eq))
            case ast.Call(ast.Attribute(owner, "eq" | "ne" as function), [*tokens, other]) if self.is_end(other):
                return self.compared(node, tokens[0] if tokens else owner, is_equal=function == "eq")
        return super().value(node)

    def compared(self, node: ast.expr, tokens: ast.expr, *, is_equal: bool) -> EndValue:
        """The comparison of tokens with the one that ends a response; nothing is known of those before others."""
        value = self.value(tokens)
        if isinstance(value, EndTokens) and value.kind == "before":
            return None
        return EndTokens("at" if is_equal else "without", span_of(self.file, node))

    def is_end(self, node: ast.expr) -> bool:
        """Whether an expression is the token that ends a response, by its name."""
        if END.fullmatch(last_name(node)):
            return True
        is_pad = isinstance(node, ast.Attribute) and PAD.fullmatch(node.attr) is not None
        return is_pad and last_name(getattr(node, "value", node)) in self.pads

    def of_operation(self, operation: Operation[EndValue]) -> EndValue:
        """The result of an operation on end tokens, or on labels of which they choose some."""
        function, source = operation.function, operation.source
        other = operation.other
        if function in LOSSES:
            self.learn(other)
            return None
        if function in ("masked_fill", "where"):
            return self.ignored(operation)
        if function == SUBSCRIPT and _leaves_out_last(operation.positional[0]):
            return EndTokens("before", span_of(self.file, operation.node))
        if function in PRODUCTS:
            return next((value for value in (source, other) if value == WITHOUT), None)
        if not isinstance(source, EndTokens):
            return None
        match source.kind:
            case "at" if function == "cumsum":
                return EndTokens("upto", source.place)
            case "at" if function in ("bitwise_not", "logical_not"):
                return EndTokens("without", source.place)
            case "upto" if _written(operation) in (("eq", "0"), ("lt", "1"), ("le", "0")):
                return self.without(operation.node)
            case "upto" if _written(operation) in (("gt", "0"), ("ge", "1"), ("ne", "0")):
                return EndTokens("at", source.place)
            case "without" if function in FORMS or function == SUBSCRIPT:
                return source
        return source if function in SAME else None

    def ignored(self, operation: Operation[EndValue]) -> EndValue:
        """Labels after some have been replaced by the one to ignore: none of end tokens is left if these are."""
        source, values = operation.source, operation.others
        written = [*map(ast.unparse, (*operation.positional, *operation.named.values()))]
        match operation.function, written:
            case "masked_fill", [_, number] if number == IGNORED:
                is_of_ends = isinstance(values[0], EndTokens) and values[0].kind == "at"
                return self.without(operation.node) if is_of_ends else source if source == WITHOUT else None
            case "where", [number, _] if number == IGNORED and isinstance(source, EndTokens) and source.kind == "at":
                return self.without(operation.node)
            case "where", [_, number] if number == IGNORED and source == WITHOUT:
                return source
        return None

    def learn(self, labels: EndValue) -> None:
        """Collect labels that a loss gets."""
        if isinstance(labels, EndTokens) and labels.kind == "without":
            self.unlearned.append(UnlearnedEnds("", labels.place))


WITHOUT: Final = EndTokens("without", NOWHERE)
"""Numbers that leave out end tokens, wherever that is decided."""


def _leaves_out_last(index: ast.expr) -> bool:
    """Whether an index takes tokens, but not the last ones: ``[:, :-1]``."""
    slices = [part for part in index_parts(index)[1:] if isinstance(part, ast.Slice)]
    return any(isinstance(part.upper, ast.UnaryOp) for part in slices)


def _written(operation: Operation[EndValue]) -> tuple[str, str]:
    """A comparison, and the number that it compares with, as it is written."""
    others = [*operation.positional, *getattr(operation.node, "comparators", ())]
    return operation.function, ast.unparse(others[0]) if others else ""


# -- padding


@lru_cache(maxsize=256)
def padded_with_ends(role: type) -> frozenset[str]:
    """The names of objects whose padding token a role sets to their end token, and to nothing else.

    A statement under a condition is none that certainly runs.
    """
    owners, others = set[str](), set[str]()
    for function in code_of(role).all_functions:
        certain = {*function.definition.body}
        for node in nodes_of(function.definition):
            match node:
                case ast.Assign([ast.Attribute(owner, pad)], value) if PAD.fullmatch(pad):
                    is_end = isinstance(value, ast.Attribute) and END.fullmatch(value.attr) is not None
                    is_own = is_end and ast.unparse(getattr(value, "value", value)) == ast.unparse(owner)
                    (owners if is_own and node in certain else others).add(last_name(owner))
    return frozenset(owners - others)


@lru_cache(maxsize=256)
def names_ends(role: type) -> bool:
    """Whether the code of a role names a token that ends responses."""
    return any(map(END.fullmatch, code_of(role).names))
