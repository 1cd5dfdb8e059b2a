"""Repeated terms: is a policy held to its reference twice, and how often does it learn from the same rows?

A worked example, an update with both::

    rewards = kl_penalized_rewards(rollout, ref, scores, kl=0.05)    # the KL, in the rewards
    experience = hf.merge(Experience, rollout, ref, normalized_returns(rollout, rewards))
    actor.update(experience, loss=Clip(kl=0.04))                     # HF343: and again in the loss
    actor.update(experience, loss=Reinforce())                       # HF342: the policy is not the one that sampled
    for part in hf.minibatches(experience, 4) * 100:
        actor.update(part, loss=Clip())                              # HF352: 100 times from each row
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import trains, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import call_numbers
from hfdsl.check.rules.learning.ratios import Makers, formed_ratios, forms_none
from hfdsl.check.rules.learning.references import REFERENCE_COLUMN, kl
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref

PENALTIES = ("kl_penalized_rewards", "kl_penalized_costs")
"""The ready-made functions that charge a KL to a reference."""


def rows_are_learned_with_a_ratio(context: Context) -> Iterator[Finding]:
    """HF342: an update without a ratio is the only one on its rows."""
    without = [ratio for ratio in formed_ratios(context, every=True) if forms_none(ratio.update)]
    makers, reported = Makers(context), set[object]()
    for ratio in without if not context.program.graph.misuses else ():
        for earlier, effect in makers.updates:
            is_own = (earlier.role, effect.state) == (ratio.role, ratio.state) and earlier.id < ratio.update.id
            if is_own and ratio.update.span not in reported and makers.reads_rows_of(ratio.update, earlier):
                reported.add(ratio.update.span)
                yield Finding(
                    "HF342",
                    f"'{ratio.update.label}' learns from rows that '{earlier.label}' has learned from, with a loss "
                    "that has no ratio: it treats them as samples of the policy after the first update",
                    Label(ratio.update.span, "learns again, as if from new samples"),
                    () if earlier.span == ratio.update.span else (Label(earlier.span, "learns first"),),
                    notes=("update once on each row, or use a loss with a ratio, such as Clip",),
                )


MOST_EPOCHS = 20
"""The most updates on a row that are not doubted. Policies of language models take 1 to 4, PPO of games up to 15."""


def rows_are_learned_a_few_times(context: Context) -> Iterator[Finding]:
    """HF352: a policy learns from a row by a ratio no more than a few times."""
    makers, reported = Makers(context), set[str]()
    updates: dict[object, list[Node]] = {}
    for update, effect in makers.updates if not context.program.graph.misuses else ():
        rows = None if effect.ratio is None or forms_none(update) else next(makers.token_rows(update), None)
        if rows is not None:
            updates.setdefault((update.role, effect.state, rows), []).append(update)
    for update, *repeats in updates.values():
        count = len(repeats) + 1
        if count > MOST_EPOCHS and update.role not in reported:
            reported.add(update.role)
            yield Finding(
                "HF352",
                f"'{update.label}' learns {count} times from the same rows in a step, where at most {MOST_EPOCHS} is "
                "usual: after the first few times the clip holds it back, and the policy overfits to the noise of "
                "these samples",
                Label(update.span, f"learns {count} times"),
                notes=("1 to 4 times are usual: sample more often, and update less on each batch",),
            )


def references_hold_once(context: Context) -> Iterator[Finding]:
    """HF343: a policy whose rewards have a KL to its reference has none in its loss."""
    graph = context.program.graph
    for node in graph.calls:
        if not isinstance(node.op, FunctionCall) or not node.op.signature.is_ready_made:
            continue
        charged = call_numbers(node).get("kl", 0.0) if node.label in PENALTIES else 0.0
        updates = updates_after(context.program, node)
        update = next((update for update in updates if kl(update) and _reads_reference(context, update)), None)
        if charged and update is not None:
            yield Finding(
                "HF343",
                f"the loss of '{update.label}' has kl = {kl(update):g}, and '{node.label}' charges "
                f"kl = {charged:g} in the rewards: the policy is tied to its reference twice",
                Label(update.span, "the KL is a term of the loss"),
                (Label(node.span, "the KL is part of the rewards"),),
                notes=("set one of them to 0; PPO usually has the KL in the rewards, and GRPO in the loss",),
            )


def _reads_reference(context: Context, update: Node) -> bool:
    """Whether an update certainly gets the log-probs of a reference."""
    columns = (Ref(ref.node, REFERENCE_COLUMN) for ref in update.refs if ref.column is None)
    program = context.program
    return trains(program, update) and any(isinstance(stored_column(program.graph, ref), Ref) for ref in columns)
