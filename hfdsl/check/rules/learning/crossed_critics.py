"""Crossed critics: does a critic learn returns over its own values, where another one gives values, too?

A worked example, two critics of two rewards::

    gains = generalized_advantages(rollout, rewards, critic.values(rollout))
    harms = generalized_advantages(rollout, costs, critic.values(rollout))      # HF354: those of the other critic
    critic.update(hf.merge(ValueExperience, rollout, values, gains))
    cost_critic.update(hf.merge(ValueExperience, rollout, cost_values, harms))

The returns of ready-made estimates are advantages plus values. With ``lam`` below 1 both bootstrap from the values, so
the second critic learns costs that end in predictions of rewards. Two critics of the same rewards may bootstrap from
each other, as in double learning, and an auxiliary critic may learn the returns of another one beside it. With
``lam=1`` the values cancel out of the returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfdsl.check.context import Context
from hfdsl.check.dependences import update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_numbers, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.role_links import both_ways, linked_roles, role_links
from hfdsl.check.rules.learning.kl_signs import SAFE
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Operand, Ref
from hfdsl.graph.spans import Span

ESTIMATES = ("generalized_advantages", "whitened_advantages")
"""The ready-made functions whose returns bootstrap from the values that they take."""


@dataclass(frozen=True, slots=True)
class LearnedReturns:
    """An update of a critic, the estimate whose returns it learns at a port, and the call whose values this takes."""

    update: Node
    port: str
    estimate: Node
    values: Node


def critics_learn_over_their_own_values(context: Context) -> Iterator[Finding]:
    """HF354: the returns that a critic learns bootstrap from its own values, not from another trained critic's."""
    program = context.program
    values = {call.id: call for call in value_calls(program)} if not program.graph.misuses else {}
    own_values = {call.role: call for call in reversed(values.values())}
    updates = [update for update in update_lines(program) if update.role in own_values]
    links, critics = both_ways(role_links(program)), {update.role for update in updates}
    learned = [entry for update in updates for entry in _learned(program, update, values)] if len(critics) > 1 else []
    crossed, reported = list[LearnedReturns](), set[frozenset[str]]()
    for entry in learned:
        predictor, learner = entry.values.role, entry.update.role
        if predictor not in critics or predictor in linked_roles(links, learner):
            continue
        rewards = _rewards(program, entry.estimate)
        if (own := _unlearned(program, values, learned, learner)) is not None:
            if _rewards(program, own) != rewards:
                yield _beside_its_own(entry, own)
            continue
        predicted = [_rewards(program, other.estimate) for other in learned if other.update.role == predictor]
        if predicted and rewards not in predicted:
            crossed.append(entry)
    for entry in crossed:
        pair = frozenset({entry.values.role, entry.update.role})
        if pair not in reported:
            reported.add(pair)
            counterpart = next((other for other in crossed if other.values.role == entry.update.role), None)
            own = own_values[entry.update.role]
            yield _over_others(context, entry, own) if counterpart is None else _both_crossed(entry, counterpart)


def _learned(program: Program, update: Node, values: Mapping[int, Node]) -> Iterator[LearnedReturns]:
    """The ready-made estimates whose returns a critic's update learns; none beside old values of another one, HF348."""
    refs = [(column.port, stored_column(program.graph, column.ref)) for column in program.origins.columns(update.id)]
    if any(isinstance(ref, Ref) and ref.node in values and values[ref.node].role != update.role for _, ref in refs):
        return
    for port, ref in refs:
        estimate = _estimate(program, ref)
        values_call = None if estimate is None else _values_call(program, estimate, values)
        if estimate is not None and values_call is not None:
            yield LearnedReturns(update, port, estimate, values_call)


def _estimate(program: Program, operand: Operand) -> Node | None:
    """The call that made a column of returns by bootstrapping."""
    node = program.graph.nodes[operand.node] if isinstance(operand, Ref) and operand.column == "returns" else None
    if node is None or not isinstance(node.op, FunctionCall) or not node.op.signature.is_ready_made:
        return None
    if node.label == SAFE:
        gains = dict(node.arguments).get("gains")
        source = Ref(gains.node, "returns") if isinstance(gains, Ref) else gains
        return None if source is None else _estimate(program, stored_column(program.graph, source))
    return node if node.label in ESTIMATES and call_numbers(node).get("lam") != 1 else None


def _values_call(program: Program, estimate: Node, values: Mapping[int, Node]) -> Node | None:
    """The call of a critic whose values an estimate takes."""
    columns = (column for column in program.origins.columns(estimate.id) if column.port == "values")
    stored = (stored_column(program.graph, column.ref) for column in columns)
    return next((values[ref.node] for ref in stored if isinstance(ref, Ref) and ref.node in values), None)


def _rewards(program: Program, estimate: Node) -> list[Operand]:
    """The rewards that an estimate sums up: critics of the same rewards predict the same."""
    columns = (column for column in program.origins.columns(estimate.id) if column.port == "rewards")
    return [stored_column(program.graph, column.ref) for column in columns]


def _unlearned(program: Program, values: Mapping[int, Node], learned: list[LearnedReturns], critic: str) -> Node | None:
    """An estimate over the values of a critic that no critic learns."""
    learned_ids = {entry.estimate.id for entry in learned}
    for node in program.graph.calls:
        if isinstance(node.op, FunctionCall) and node.op.signature.is_ready_made and node.label in ESTIMATES:
            values_call = _values_call(program, node, values)
            if node.id not in learned_ids and values_call is not None and values_call.role == critic:
                return node
    return None


# -- findings


EFFECT = "returns are advantages plus values, so it learns what another critic predicts"
"""What returns over another critic's values do."""


def _over_others(context: Context, entry: LearnedReturns, own: Node) -> Finding:
    finding = Finding(
        "HF354",
        f"'{entry.update.label}' learns returns computed with '{entry.values.label}', not with its own values: "
        f"{EFFECT}",
        Label(_taken(entry), "values of another critic"),
        (
            Label(entry.values.span, "returns them"),
            Label(own.span, "returns its own"),
            Label(entry.update.span, "learns the returns"),
        ),
    )
    return with_suggestions(context, finding, _own(entry, own), f"take the values of '{own.label}' for these returns")


def _both_crossed(entry: LearnedReturns, other: LearnedReturns) -> Finding:
    return Finding(
        "HF354",
        f"'{entry.update.label}' learns returns computed with '{entry.values.label}', and "
        f"'{other.update.label}' those with '{other.values.label}': {EFFECT}",
        Label(_place(entry), "computed with the other critic's values"),
        (
            Label(_place(other), "likewise"),
            Label(_taken(entry), f"takes values of '{entry.values.role}'"),
            Label(_taken(other), f"takes values of '{other.values.role}'"),
        ),
        notes=("exchange the values of the two estimates, or the estimates of the two updates",),
    )


def _beside_its_own(entry: LearnedReturns, own: Node) -> Finding:
    return Finding(
        "HF354",
        f"'{entry.update.label}' learns returns computed with '{entry.values.label}', and nothing learns those with "
        f"its own values: {EFFECT}",
        Label(_place(entry), "computed with another critic's values"),
        (
            Label(entry.estimate.span, "computed here"),
            Label(own.span, f"computed with values of '{entry.update.role}'"),
        ),
        notes=(f"learn the returns of line {own.span.line}",),
    )


def _place(entry: LearnedReturns) -> Span:
    return argument_span(entry.update.span, signature_of(entry.update), entry.port)


def _taken(entry: LearnedReturns) -> Span:
    return argument_span(entry.estimate.span, signature_of(entry.estimate), "values")


def _own(entry: LearnedReturns, own: Node) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import value_of  # late: most programs need none

    yield from value_of(_taken(entry), own)
