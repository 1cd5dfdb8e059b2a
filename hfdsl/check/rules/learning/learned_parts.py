"""Learned parts: do a policy and the critic whose values it learns by learn from the same mini-batches?

A worked example; only the last line trains both on all rows::

    first, second = hf.minibatches(experience, 2)
    actor.update(first, ...), critic.update(second, ...)            # each on the half that the other one never sees
    for part in hf.minibatches(experience, 2):
        actor.update(part, ...), critic.update(first, ...)          # the critic twice on one half
    for part in hf.minibatches(experience, 2):
        actor.update(part, ...), critic.update(part, ...)

The rule compares rows by their origin, whatever records they are in and wherever they were split. A role may learn from
fewer mini-batches in fewer updates on purpose, as a policy that waits for its critic does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.dataflow.unread import passed_over
from hfdsl.check.rules.learning.ratios import Makers
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.graph.program import Node, Ref
from hfdsl.graph.row_steps import Origin, PartStep
from hfdsl.types.numbers import join_numbers

SplitBatch: TypeAlias = "tuple[Ref, Origin, int]"
"""A batch that is split: its tokens, their rows, and the number of mini-batches."""


@dataclass(frozen=True)
class Learned:
    """How often the updates of a role learn from each mini-batch of a batch, and the first of them."""

    update: Node
    times: Counter[int]

    @property
    def parts(self) -> set[int]:
        """The mini-batches, from 0."""
        return set(self.times)


def critics_learn_the_rows_of_policies(context: Context) -> Iterator[Finding]:
    """HF349: a critic learns from the mini-batches that a policy learns from by its values."""
    program, makers = context.program, Makers(context)
    if program.graph.misuses or any(passed_over(context)):
        return  # a loop that goes past mini-batches is HF602
    reported, trained = set[object](), {node.role for node, _ in makers.updates}
    for values in (call for call in value_calls(program) if call.role in trained):
        for policy in dict.fromkeys(update.role for update in updates_after(program, values)):
            if policy == values.role or (policy, values.role) in reported:
                continue
            by_policy, by_critic = _learned(makers, policy), _learned(makers, values.role)
            for batch in (batch for batch in by_policy if batch in by_critic):
                misses = _misses(by_policy[batch], by_critic[batch])
                if misses is not None:
                    reported.add((policy, values.role))
                    yield _finding(by_policy[batch], by_critic[batch], misses, batch[2], values)
                    break


def _misses(policy: Learned, critic: Learned) -> Learned | None:
    """The one that misses mini-batches by mistake; None where neither does.

    Each may learn from a part that the other does not, or one again and again from fewer parts.
    """
    fewer, more = (critic, policy) if policy.parts - critic.parts else (policy, critic)
    again = fewer.times.total() >= len(more.parts)
    return fewer if more.parts - fewer.parts and (again or fewer.parts - more.parts) else None


def _learned(makers: Makers, role: str) -> dict[SplitBatch, Learned]:
    """By batch what the updates of a role learn from."""
    learned: dict[SplitBatch, Learned] = {}
    for update in (node for node, _ in makers.updates if node.role == role):
        tokens, origin = next(makers.token_rows(update), (None, None))
        match origin.steps if origin is not None else ():
            case (PartStep(index, count), *before) if tokens is not None and origin is not None:
                batch = tokens, Origin(tuple(before), origin.source), count
                learned.setdefault(batch, Learned(update, Counter())).times[index] += 1
    return learned


def _finding(policy: Learned, critic: Learned, missing: Learned, count: int, values: Node) -> Finding:
    by_policy, by_critic = _words(policy, count), _words(critic, count)
    effect = (
        "it uses values of rows whose returns the critic never learns"
        if missing is critic
        else "it never learns from the rows that the critic is trained for"
    )
    counterpart = policy if missing is critic else critic
    return Finding(
        "HF349",
        f"'{critic.update.label}' learns {by_critic}, and the policy of '{policy.update.label}' {by_policy}: {effect}",
        Label(missing.update.span, f"learns {_words(missing, count)}"),
        (Label(counterpart.update.span, f"learns {_words(counterpart, count)}"), Label(values.span, "the values")),
        notes=("update both on every mini-batch: for part in hf.minibatches(...)",),
    )


def _words(learned: Learned, count: int) -> str:
    """Mini-batches, in words."""
    numbers, times = sorted(part + 1 for part in learned.parts), learned.times.total() // len(learned.parts)
    often = f"{times} times " if times > 1 else ""
    if len(numbers) == count:
        return f"{often}from {'both' if count == 2 else f'all {count}'} mini-batches"
    return f"{often}from mini-batch{'es' * (len(numbers) > 1)} {join_numbers(numbers, ' and ')} of {count}"
