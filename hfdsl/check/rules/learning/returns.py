"""Returns: does a critic learn the returns that the advantages of its policy are made of?

A worked example; both lines estimate over the values of one critic::

    policy = generalized_advantages(rollout, rewards, values, gamma=1.0)      # its advantages go to the policy
    critic = generalized_advantages(rollout, rewards, values, gamma=0.99)     # its returns go to the critic

The policy treats the values as those of undiscounted rewards, but they are of discounted ones. The same happens with
other rewards, and if the critic learns the rewards of single tokens themselves. Another ``lam`` is intended: it decides
how soon an estimate trusts the values, and both are of one return. Two different functions of users may do anything
with their numbers, so the rule compares only two calls of one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

from hfdsl.check.context import Context
from hfdsl.check.dependences import update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_numbers, signature_of
from hfdsl.check.rules.learning.mistaken_numbers import float_columns
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.check.sources import argument_span
from hfdsl.graph.equal_values import equal_values
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref
from hfdsl.graph.samples import is_float_column

DISCOUNTS = ("gamma", "discount")
"""The names of a discount."""


class Estimates(NamedTuple):
    """Two calls of one function over the values of a critic: one makes its returns, the other a policy's advantages."""

    returns: Node
    critic_update: Node
    advantages: Node
    policy_update: Node


def critics_learn_the_returns_of_advantages(context: Context) -> Iterator[Finding]:
    """HF351: the returns that a critic learns have the rewards and the discount of its policy's advantages."""
    program = context.program
    equal = cache(lambda: equal_values(program.graph))
    reported = set[object]()
    for estimates in _estimates(program) if not program.graph.misuses else ():
        different = _difference(program, equal, estimates)
        if different is not None and estimates.critic_update.span not in reported:
            reported.add(estimates.critic_update.span)
            of_returns, of_advantages = different
            critic, policy = estimates.critic_update, estimates.policy_update
            yield Finding(
                "HF351",
                f"'{critic.label}' learns returns of {of_returns}, and '{policy.label}' advantages of {of_advantages} "
                "over the same values: the critic learns other returns than the policy maximizes",
                Label(estimates.returns.span, f"the returns that '{critic.role}' learns"),
                (Label(estimates.advantages.span, f"the advantages that '{policy.role}' learns"),),
                notes=("estimate once, for both; or use the same rewards and discount for both (lam may differ)",),
            )
    yield from _rewards_for_returns(program) if not program.graph.misuses else ()


def _rewards_for_returns(program: Program) -> Iterator[Finding]:
    """The updates of critics that get the rewards of tokens, of which the advantages over their values make returns."""
    values = list(value_calls(program))
    updates = update_lines(program) if values else []
    critics = {call.role for call in values}
    estimates = {node.id: node for update in updates if update.role not in critics for node in _makers(program, update)}
    for critic_update in (update for update in updates if update.role in critics):
        own_values = {call.id for call in values if call.role == critic_update.role}
        for column in program.origins.columns(critic_update.id) if estimates else ():
            stored, name = stored_column(program.graph, column.ref), column.name or column.port
            for estimate in estimates.values():
                read = set(_numbers(program, estimate).values())
                is_of_values = own_values.intersection(ref.node for ref in read)
                if not is_of_values or not isinstance(stored, Ref) or stored not in read or stored.node in own_values:
                    continue
                if name in float_columns(estimate) and not _discounts_all(estimate):
                    yield Finding(
                        "HF351",
                        f"'{critic_update.label}' learns the '{stored.column}' of single tokens for its '{name}', and "
                        f"'{estimate.label}' uses its values as future returns: no token learns from later rewards",
                        Label(
                            argument_span(critic_update.span, signature_of(critic_update), column.port),
                            f"'{name}' of one token",
                        ),
                        (Label(estimate.span, f"makes '{name}' of them"),),
                        notes=(f"learn the '{name}' of '{estimate.label}'",),
                    )


def _discounts_all(estimate: Node) -> bool:
    """Whether a discount of 0 makes the reward of a token its return."""
    return any(call_numbers(estimate).get(name) == 0 for name in DISCOUNTS)


def _estimates(program: Program) -> Iterator[Estimates]:
    """The estimates over the values of one call of a critic, one for the critic and another for a policy."""
    values = list(value_calls(program))
    critics = {call.role for call in values}
    updates = update_lines(program) if critics else []
    makers = {node.id: _makers(program, node) for node in updates}
    for critic_update in (update for update in updates if update.role in critics):
        own_values = {call.id for call in values if call.role == critic_update.role}
        for policy_update in (update for update in updates if update.role not in critics):
            lone = [node for node in makers[critic_update.id] if node not in makers[policy_update.id]]
            for returns, advantages in product(lone, makers[policy_update.id]):
                if _are_of_one_critic(program, returns, advantages, own_values):
                    yield Estimates(returns, critic_update, advantages, policy_update)


def _makers(program: Program, update: Node) -> list[Node]:
    """The calls of functions that the numbers of an update are made of."""
    columns = [column for column in program.origins.columns(update.id) if is_float_column(column.spec)]
    waiting = [stored_column(program.graph, column.ref) for column in columns]
    calls = dict[int, Node]()
    while waiting:
        stored = waiting.pop()
        node = program.graph.nodes[stored.node] if isinstance(stored, Ref) else None
        if node is not None and node.id not in calls and isinstance(node.op, FunctionCall):
            calls[node.id] = node
            waiting += _numbers(program, node).values()
    return list(calls.values())


def _numbers(program: Program, node: Node) -> dict[str, Ref]:
    """The numbers of rows that a call reads, by port and name."""
    columns = [column for column in program.origins.columns(node.id) if is_float_column(column.spec)]
    stored = {f"{column.port}.{column.name}": stored_column(program.graph, column.ref) for column in columns}
    return {name: ref for name, ref in stored.items() if isinstance(ref, Ref)}


def _are_of_one_critic(program: Program, returns: Node, advantages: Node, values: set[int]) -> bool:
    """Whether two calls are of one function, over what one of the ``values`` calls gives."""
    if not isinstance(returns.op, FunctionCall) or not isinstance(advantages.op, FunctionCall):
        return False
    read = ({ref.node for ref in _numbers(program, node).values()} for node in (returns, advantages))
    return returns.op.signature.body is advantages.op.signature.body and bool(values.intersection(*read))


def _difference(program: Program, equal: Callable[[], tuple[int, ...]], estimates: Estimates) -> tuple[str, str] | None:
    """The discounts or rewards that the returns and the advantages are estimated with, where these differ."""
    of_returns, of_advantages = call_numbers(estimates.returns), call_numbers(estimates.advantages)
    for name in DISCOUNTS:
        if of_returns.get(name) != of_advantages.get(name):
            return f"{name} = {of_returns[name]}", f"{name} = {of_advantages[name]}"
    columns, nodes = _numbers(program, estimates.advantages), program.graph.nodes
    for name, ref in _numbers(program, estimates.returns).items():
        counterpart = columns.get(name, ref)
        if (equal()[ref.node], ref.column) != (equal()[counterpart.node], counterpart.column):
            first, second = (f"'{column.column}' of '{nodes[column.node].label}'" for column in (ref, counterpart))
            return first, second
    return None
