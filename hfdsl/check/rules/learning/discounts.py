"""Discounts: does a reward at the end of a response reach its first tokens?

A worked example, responses of R = 512 tokens, of which only the second trains them all::

    rewards = kl_penalized_rewards(rollout, ref, scores)                 # the score, at the last token
    generalized_advantages(rollout, rewards, values, gamma=0.9)          # 0.9 ** 511 = 4.1e-24 of it at the first
    generalized_advantages(rollout, rewards, values, gamma=1.0)

The rule knows that rewards are at the end if the ready-made functions put them there, or a user's function calls
``hfdsl.rl.rewards.token_rewards``. Others may come at every token, where a short horizon may be intended.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hfdsl.check.bodies.syntax import callee, certain_expressions, certain_statements, definition_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_numbers
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.learning.returns import DISCOUNTS
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.spans import Span
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import constant

VANISHES = 1e-3
"""The share of a reward below which it does not count as reaching a token."""

AT_THE_END = ("hfdsl.rl.rewards", "token_rewards")
"""The module and name of the formula that puts a score at the last token."""


def rewards_reach_the_first_tokens(context: Context) -> Iterator[Finding]:
    """HF948: a discount leaves something of a reward at the end of a response for its first tokens."""
    program = context.program
    sizes = {dim: constant(size) for dim, size in context.sizes.items()}
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        name = next((name for name in DISCOUNTS if signature.port(name) is not None), None)
        gamma: Any = None if name is None else call_numbers(node).get(name)
        if not isinstance(node.op, FunctionCall) or name is None or gamma is None or not 0 <= gamma < 1:
            continue
        for rewards in program.origins.columns(node.id):
            maker = _puts_at_the_end(program, rewards)
            width = rewards.spec.dims[-1].substitute(sizes).value if isinstance(rewards.spec, ColumnSpec) else None
            if maker is not None and width is not None and gamma ** (width - 1) < VANISHES:
                discount = Discount(node, argument_span(node.span, signature, name), name, gamma, int(width))
                yield _finding(context, discount, str(rewards.spec.dims[-1]), maker)
                break


@dataclass(frozen=True, slots=True)
class Discount:
    """A call that discounts rewards of responses of so many tokens, and the place of its discount."""

    call: Node
    place: Span
    name: str
    gamma: float
    width: int


def _finding(context: Context, discount: Discount, dim: str, maker: Node) -> Finding:
    gamma, steps = discount.gamma, discount.width - 1
    half = f"; half of it is lost every {math.log(0.5) / math.log(gamma):.3g} tokens" if gamma > 0.5 else ""
    finding = Finding(
        "HF948",
        f"'{discount.call.label}' has {discount.name} = {gamma:g}: of a reward at the last of {dim} = {discount.width} "
        f"tokens, {gamma:g} ** {steps} = {gamma**steps:.2g} reaches the first{half}",
        Label(discount.place),
        (Label(maker.span, "puts the reward at the last token"),),
    )
    least = math.ceil(0.5 ** (1 / steps) * 1e5) / 1e5
    advice = f"1 is usual if the reward comes at the end; {least:g} leaves half of it"
    return with_suggestions(context, finding, _undiscounted(discount.place, gamma), advice)


def _undiscounted(place: Span, gamma: float) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import number  # late: most programs need none

    yield from number(place, gamma, 1.0)


def _puts_at_the_end(program: Program, column: RowColumn) -> Node | None:
    """The call that made a column of token rewards by putting a score at the last token of a response."""
    stored = stored_column(program.graph, column.ref)
    node = program.graph.nodes[stored.node] if isinstance(stored, Ref) else None
    if node is None or not isinstance(node.op, (FunctionCall, RoleCall)) or not is_float_column(column.spec):
        return None
    return node if column.inner and _calls_token_rewards(node.op.signature.body) else None


@lru_cache(maxsize=256)
def _calls_token_rewards(body: Callable[..., Any]) -> bool:
    definition = definition_of(body)
    calls = (
        expression
        for statement in (certain_statements(definition) if definition is not None else ())
        for expression in certain_expressions(statement)
        if isinstance(expression, ast.Call)
    )
    formulas = (callee(body, definition, call) for call in calls if definition is not None)
    return any((formula.__module__, formula.__name__) == AT_THE_END for formula in formulas if formula is not None)
