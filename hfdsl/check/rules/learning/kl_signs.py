"""Signs of KL penalties: does a policy pay for leaving its reference, or is it paid for that?

A worked example; only the last line is right::

    gains = generalized_advantages(rollout, kl_penalized_rewards(rollout, ref, scores), values)
    harms = generalized_advantages(rollout, kl_penalized_costs(rollout, ref, costs), cost_values)
    actor.update(hf.merge(Experience, rollout, harms))                                # raises the cost and the KL
    actor.update(hf.merge(Experience, rollout, safe_advantages(harms, gains, 0.5)))   # both the wrong way round
    actor.update(hf.merge(Experience, rollout, safe_advantages(gains, harms, 0.5)))

Rewards and costs of tokens have one type, since a critic learns both. A KL is subtracted from rewards and added to
costs, and a policy learns to raise its advantages. The ready-made functions between them decide whether it then raises
the KL, which nobody intends, even where a cost is sought. A user's function ends the trace, since it may turn the sign,
as may an update or a user's loss, unless it learns what ``safe_advantages`` returns. The rule reports nothing beside a
KL of the right sign: their sum may have the right sign, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hfdsl.check.context import Context
from hfdsl.check.dependences import update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_numbers, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.learning.mistaken_numbers import ADVANTAGE
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, FunctionCall, Node, Operand, Ref
from hfdsl.graph.samples import is_float_column

KL_SIGNS: Mapping[str, int] = {"kl_penalized_rewards": -1, "kl_penalized_costs": 1}
"""The ready-made functions that charge a KL to a reference, and whether their result rises or falls with it."""

SAFE = "safe_advantages"
"""The ready-made function that subtracts advantages of costs from those of rewards, and passes on their returns."""

SIGNS: Mapping[str, Mapping[str, int]] = {
    "advantages_over": {"rewards": 1},
    "generalized_advantages": {"rewards": 1},
    "leave_one_out_advantages": {"rewards": 1},
    "normalized_returns": {"rewards": 1},
    SAFE: {"gains": 1, "harms": -1},
    "whitened_advantages": {"rewards": 1},
}
"""The ready-made functions that make advantages of rewards, and whether these rise or fall with each port."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A call that charges a KL, the call that reads it and at which port, and the sign of the KL in the advantages."""

    penalty: Node
    reader: Node
    port: str
    sign: int


def policies_pay_for_the_kl(context: Context) -> Iterator[Finding]:
    """HF353: what a policy learns to raise falls with the KL to its reference."""
    program, reported = context.program, set[object]()
    critics = {call.role for call in value_calls(program)}
    for update in update_lines(program) if not program.graph.misuses else ():
        if update.role in critics:
            continue
        charges = list(_charges(program, update))
        for charge in charges if all(charge.sign > 0 for charge in charges) else ():
            if charge.reader.label != SAFE and not _raises_advantages(update):
                continue
            is_crossed = {other.port for other in charges if other.reader is charge.reader} == {"gains", "harms"}
            blamed = charge.reader if is_crossed else charge.penalty
            if blamed.span not in reported:
                reported.add(blamed.span)
                yield _crossed(context, charge.reader, update) if is_crossed else _paid(charge, update)


def _charges(program: Program, update: Node) -> Iterator[Charge]:
    """The KLs in the advantages of an update, by ready-made functions alone."""
    waiting: list[tuple[Operand, Node, str, int]] = [
        (column.ref, update, column.port, 1)
        for column in program.origins.columns(update.id)
        if is_float_column(column.spec) and ADVANTAGE.fullmatch(column.name or column.port)
    ]
    while waiting:
        operand, reader, port, sign = waiting.pop(0)
        stored = stored_column(program.graph, operand)
        node = program.graph.nodes[stored.node] if isinstance(stored, Ref) else None
        if node is None or not isinstance(node.op, FunctionCall) or not node.op.signature.is_ready_made:
            continue
        if node.label in KL_SIGNS and call_numbers(node).get("kl") != 0:
            yield Charge(node, reader, port, sign * KL_SIGNS[node.label])
        ports = SIGNS.get(node.label, {})
        waiting += (
            (column.ref, *_outermost(node, column.port, reader, port), sign * ports[column.port])
            for column in program.origins.columns(node.id)
            if column.port in ports and is_float_column(column.spec) and column.name != "returns"
        )


def _raises_advantages(update: Node) -> bool:
    """Whether an update is known to raise its advantages: its method and its loss are hfdsl's own."""
    signature = signature_of(update)
    losses = [operand.value for _, operand in update.arguments if isinstance(operand, Constant)]
    modules = [type(loss).__module__ for loss in losses if not isinstance(loss, (bool, int, float, str, type(None)))]
    return signature is not None and signature.is_ready_made and all(name.startswith("hfdsl.") for name in modules)


def _outermost(node: Node, port: str, reader: Node, reader_port: str) -> tuple[Node, str]:
    """The call that decides the sign: the one that weighs gains against harms, or the nearest reader."""
    return (reader, reader_port) if reader.label == SAFE else (node, port)


def _paid(charge: Charge, update: Node) -> Finding:
    penalty, reader = charge.penalty, charge.reader
    is_cost = KL_SIGNS[penalty.label] > 0
    effect = "the policy is rewarded for its cost and for leaving the reference"
    advice = "pass costs as 'harms' to safe_advantages; to maximize a cost on purpose, use kl_penalized_rewards"
    if not is_cost:
        effect = "the policy is rewarded for leaving the reference"
        advice = "compute the 'harms' of safe_advantages from kl_penalized_costs, which adds the KL"
    return Finding(
        "HF353",
        f"'{update.label}' learns to {'raise' if is_cost else 'lower'} what '{penalty.label}' returns: {effect}",
        Label(penalty.span, f"the KL is {'added to the cost' if is_cost else 'subtracted from the rewards'}"),
        (
            Label(argument_span(reader.span, signature_of(reader), charge.port), f"taken for '{charge.port}'"),
            *([] if reader is update else [Label(update.span, "learns from them")]),
        ),
        notes=(advice,),
    )


def _crossed(context: Context, call: Node, update: Node) -> Finding:
    signature = signature_of(call)
    finding = Finding(
        "HF353",
        f"'{call.label}' takes advantages of rewards for its 'harms' and those of costs for its 'gains': "
        f"'{update.label}' learns to raise the cost and the KL to the reference",
        Label(argument_span(call.span, signature, "gains"), "made of costs"),
        (
            Label(argument_span(call.span, signature, "harms"), "made of rewards"),
            Label(update.span, "learns from them"),
        ),
    )
    return with_suggestions(context, finding, _exchanged(call), "give it the advantages of rewards first")


def _exchanged(call: Node) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import exchanged  # late: most programs need none

    yield from exchanged(call.span, signature_of(call), "gains", "harms")
