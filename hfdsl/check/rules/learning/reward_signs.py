"""Signs of rewards: does a user's function subtract the KL to a reference from rewards, and a baseline from them?

A worked example; only the last line of each is right::

    kl = rollout.log_probs.tensor - ref.ref_log_probs.tensor
    Rewards(rewards=scores + 0.05 * kl)             HF353: the policy is paid for leaving the reference
    Rewards(rewards=scores - 0.05 * kl)

    Gains(advantages=rewards.mean() - rewards)      HF358: the best response gets the least
    Gains(advantages=rewards - rewards.mean())

The log-probs are those that the policy sampled with, and a frozen model's under a name of a reference. Those of other
models, such as of a reward model that learns, may be rewards themselves. ``kl_signs.py`` follows hfdsl's functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.context import Context
from hfdsl.check.dependences import Dependences, sampling_calls, training_calls, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.interpretation import PolicyInterpretation
from hfdsl.check.losses.names import REFERENCE
from hfdsl.check.losses.terms import Quantity, is_comparison, terms_of
from hfdsl.check.losses.updates import static_numbers
from hfdsl.check.program import Program
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref, RoleCall
from hfdsl.graph.signatures import Signature

REWARD: Final = re.compile(r"(.*_)?(advantages?|gains?|returns?|rewards?|scores?)")
"""The names of what a policy learns to raise."""

ADVANTAGE: Final = re.compile(r"(.*_)?adv(antage)?s?(_.*)?")
"""The names of what makes a response likelier if it is above 0."""

REVERSED: Final = re.compile(
    r".*(adversar|attack|cost|energy|flip|forget|invert|inverse|jailbreak|minimi|opponent|penalt|poison|red_?team|regret"
    r"|revers|unlearn).*"
)
"""The names of what may be lowered on purpose."""

ReturnedColumns: TypeAlias = Callable[[Program, Node, Signature], Iterator[tuple[str, Quantity]]]
"""The columns that a rule looks for, among those that a call of a user's function returns, by name."""


def rewards_have_their_signs(context: Context) -> Iterator[Finding]:
    """HF353: rewards of a user's function do not rise with the KL to a reference."""
    for node, update, name, term in _learned_columns(context.program, _raised):
        yield Finding(
            "HF353",
            f"'{node.label}' returns '{name}' that rise with the KL to the reference: the policy is rewarded for "
            "leaving it",
            Label(term.place, "the KL in the rewards"),
            (Label(node.span, "called here"), Label(update.span, "learns from the result")),
            notes=("subtract the KL from rewards, and add it to costs",),
        )


def advantages_rise_with_rewards(context: Context) -> Iterator[Finding]:
    """HF358: advantages of a user's function do not fall with the rewards that they are made of."""
    program = context.program
    samplers = {program.graph.nodes[call].role for call in Dependences(program).samplers}
    if len(samplers) != 1:
        return  # several policies may be opponents
    for node, update, name, gain in _learned_columns(program, _lowered):
        yield Finding(
            "HF358",
            f"'{node.label}' returns '{name}' that fall as rewards rise: the policy makes its better responses rarer",
            Label(gain.place, "falls with the reward"),
            (Label(node.span, "called here"), Label(update.span, "learns from the result")),
            notes=("subtract the baseline from the reward",),
        )


def _learned_columns(program: Program, columns: ReturnedColumns) -> Iterator[tuple[Node, Node, str, Quantity]]:
    """The columns of users' functions that updates learn from, each place once: call, update, name and quantity."""
    reported = set[object]()
    for node in program.graph.nodes if not program.graph.misuses else ():
        if not isinstance(node.op, FunctionCall) or node.op.signature.is_ready_made:
            continue
        update = next(updates_after(program, node), None)
        if update is None:
            continue
        for name, quantity in columns(program, node, node.op.signature):
            if quantity.place not in reported:
                reported.add(quantity.place)
                yield node, update, name, quantity


def _lowered(_: Program, node: Node, signature: Signature) -> Iterator[tuple[str, Quantity]]:
    """The advantages that a function returns and that fall with columns of rewards, by name."""
    definition = definition_of(signature.body)
    if definition is None:
        return
    names = {definition.name, *map(last_name, nodes_of(definition))}
    if any(REVERSED.fullmatch(name.lower()) for name in names):
        return
    body = PolicyInterpretation.of(signature, definition)
    body.names |= static_numbers(node)
    for name, value in body.completed().columns.items():
        is_advantage = ADVANTAGE.fullmatch(name) and isinstance(value, Quantity) and value.kind == "advantage"
        if isinstance(value, Quantity) and is_advantage and value.sign < 0 and not value.statistic:
            yield name, value


def _raised(program: Program, node: Node, signature: Signature) -> Iterator[tuple[str, Quantity]]:
    """The columns of a function that rise with a KL, each with its term."""
    definition, policies = definition_of(signature.body), {call.role for call in sampling_calls(program, node)}
    if definition is None or not any(policies):
        return
    body = PolicyInterpretation.of(signature, definition)
    body.unknown_columns = frozenset(_of_others(program, node, policies))
    body.names |= static_numbers(node)
    for name, value in body.completed().columns.items():
        kls = [term for term in terms_of(value) if is_comparison(term)]
        if REWARD.fullmatch(name) and kls and all(term.sign > 0 for term in kls):
            yield name, kls[0]


def _of_others(program: Program, node: Node, policies: set[str]) -> Iterator[str]:
    """The columns that are neither log-probs that a policy sampled with nor those of a frozen model."""
    trained = {update.role for update in training_calls(program)}
    for column in program.origins.columns(node.id):
        stored = stored_column(program.graph, column.ref)
        maker = program.graph.nodes[stored.node] if isinstance(stored, Ref) else node
        path = column.port if column.name is None else f"{column.port}.{column.name}"
        is_known = maker.role not in trained | policies if REFERENCE.fullmatch(path) else maker.role in policies
        if not isinstance(maker.op, RoleCall) or not is_known:
            yield path
