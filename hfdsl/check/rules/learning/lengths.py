"""Lengths: are numbers of tokens in a loss or a penalty those of the responses?

A worked example, responses of at most R = 2048 tokens::

    shaped = length_penalized_scores(rollout, scores, longest=20480, buffer=4096)    # charges from token 16385 on
    actor.update(experience, loss=Clip(aggregation="sequence-mean-token-sum", constant=3000))    # 3000 for 2048
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.graph.program import Constant, FunctionCall, Node
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Dim, constant

PENALTY = "hfdsl.rl.functions", "length_penalized_scores"
"""The module and name of the ready-made function that charges responses close to the longest length."""

RESPONSE_MASK = "response_mask"
"""The column that has a place for each token of a response."""


@dataclass(frozen=True, slots=True)
class IdlePenalty:
    """A call that charges no response, since none is long enough."""

    call: Node
    longest: int
    buffer: int
    width: int

    @property
    def message(self) -> str:
        """The message of the finding."""
        free = self.longest - self.buffer
        return (
            f"'{self.call.label}' charges responses of more than {self.longest} - {self.buffer} = {free} tokens, "
            f"but none has more than R = {self.width}"
        )


IDLE_PENALTY = "set longest to R, and buffer to the length over which the penalty grows"
"""The advice for such a call."""


def penalties_can_act(context: Context) -> Iterator[Finding]:
    """HF718: some responses are long enough for the penalty on length."""
    for idle in idle_penalties(context.program, context.sizes):
        yield Finding("HF718", idle.message, Label(idle.call.span), notes=(IDLE_PENALTY,))


def idle_penalties(program: Program, sizes: Mapping[type[Dim], int]) -> Iterator[IdlePenalty]:
    """The calls that charge no response of these sizes."""
    for node, signature in program.graph.bodies:
        body, arguments = signature.body, dict(node.arguments)
        longest, buffer = arguments.get("longest"), arguments.get("buffer")
        if not isinstance(node.op, FunctionCall) or (body.__module__, body.__name__) != PENALTY:
            continue
        width = _response_width(program, node, sizes)
        if not isinstance(longest, Constant) or not isinstance(buffer, Constant) or width is None:
            continue
        if width <= longest.value - buffer.value:
            yield IdlePenalty(node, longest.value, buffer.value, width)


@dataclass(frozen=True, slots=True)
class OtherDivisor:
    """An update whose loss divides the sum over a response by another number than the longest length."""

    update: Node
    divisor: float
    width: int

    @property
    def message(self) -> str:
        """The message of the finding."""
        return (
            f"the loss of '{self.update.label}' divides the sum over a response by constant = {self.divisor:g}, but "
            f"the longest response has R = {self.width}"
        )


SMALL_UPDATES = "updates are as small as if responses were that long; without a constant, the divisor is R"
"""The effect of another divisor."""


def divisors_are_lengths(context: Context) -> Iterator[Finding]:
    """HF721: the divisor of the sum over a response is the longest length, or 1."""
    for divisor in other_divisors(context.program, context.sizes):
        notes = SMALL_UPDATES, f"set the constant to {divisor.width}"
        yield Finding("HF721", divisor.message, Label(divisor.update.span), notes=notes)


def other_divisors(program: Program, sizes: Mapping[type[Dim], int]) -> Iterator[OtherDivisor]:
    """The updates with another divisor than the width of their responses of these sizes."""
    for node, _ in program.graph.bodies:
        losses = (operand.value for _, operand in node.arguments if isinstance(operand, Constant))
        divisors = [divisor for loss in losses if isinstance(divisor := getattr(loss, "divisor", None), (int, float))]
        width = _response_width(program, node, sizes) if divisors else None
        for divisor in divisors:
            if width is not None and divisor not in (1, width):
                yield OtherDivisor(node, divisor, width)


def _response_width(program: Program, node: Node, sizes: Mapping[type[Dim], int]) -> int | None:
    """The most tokens of a response that a call reads; None if unknown."""
    constants = {dim: constant(size) for dim, size in sizes.items()}
    for column in program.origins.columns(node.id):
        if column.ref.column == RESPONSE_MASK and isinstance(column.spec, ColumnSpec):
            width = column.spec.dims[-1].substitute(constants).value
            return None if width is None else int(width)
    return None
