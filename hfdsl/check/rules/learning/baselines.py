"""Baselines: is the score that is subtracted from a response's score another one than that score?

A worked example; only the first update learns::

    scores = reward.score(prompts, rollout)
    likeliest = reward.score(prompts, actor.generate(prompts, greedy=True))
    rewards = kl_penalized_rewards(rollout, ref, scores)
    advantages_over(rollout, rewards, baseline=likeliest)
    advantages_over(rollout, rewards, baseline=scores)           # the score less itself: all that is left is the KL

The rule knows a baseline by its name: a port or a column ``baseline``, or one that begins so. It is the response's own
score if the other numbers at its call come from no other number of a row, by functions alone. A role ends the trace,
and a baseline that a function computed, such as the mean of a group, is another number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.sources import argument_span
from hfdsl.graph.equal_values import equal_values
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column

NAMED = re.compile(r"baselines?(_.*)?")
"""The names of ports and columns that are meant as a baseline."""


def baselines_are_other_scores(context: Context) -> Iterator[Finding]:
    """HF344: a baseline is not the score that it is subtracted from."""
    program, reported = context.program, set[object]()
    scores = _Scores(program)
    for node, _ in program.graph.bodies if not program.graph.misuses else ():
        columns = [column for column in program.origins.columns(node.id) if is_float_column(column.spec)]
        for baseline in filter(_is_baseline, columns if len(columns) > 1 else ()):
            own = scores.own(baseline, [column for column in columns if not _is_baseline(column)])
            update = next(updates_after(program, node), None)
            if own is None or update is None or node.span in reported:
                continue
            reported.add(node.span)
            yield Finding(
                "HF344",
                f"'{node.label}' subtracts the score of '{own.label}' from itself: the baseline is the response's own "
                f"score, and '{update.label}' learns nothing from it",
                Label(argument_span(node.span, signature_of(node), baseline.port), "the baseline"),
                (Label(own.span, "scores the responses, and is their baseline too"), Label(update.span, "learns")),
                notes=(
                    "take the score of another response to the prompt, such as a greedy one, or the mean of a group",
                ),
            )


def _is_baseline(column: RowColumn) -> bool:
    return any(NAMED.fullmatch(name) for name in (column.port, column.name or ""))


@dataclass
class _Scores:
    """The numbers of rows that columns are made of, each as the first column with equal rows."""

    program: Program
    known: dict[Ref, frozenset[Ref]] = field(default_factory=dict)

    @cached_property
    def equal(self) -> tuple[int, ...]:
        """By node the first one with an equal value."""
        return equal_values(self.program.graph)

    def own(self, baseline: RowColumn, others: list[RowColumn]) -> Node | None:
        """The call of a role whose score is both the baseline and all that the others have of a row's numbers."""
        stored, nodes = stored_column(self.program.graph, baseline.ref), self.program.graph.nodes
        if baseline.inner or not isinstance(stored, Ref) or not isinstance(nodes[stored.node].op, RoleCall):
            return None
        score = Ref(self.equal[stored.node], stored.column)
        return nodes[score.node] if frozenset[Ref]().union(*map(self.of, others)) == {score} else None

    def of(self, column: RowColumn) -> frozenset[Ref]:
        """The numbers of roles and inputs, and those that a function makes of no other."""
        stored = stored_column(self.program.graph, column.ref)
        if not isinstance(stored, Ref) or (column.name or column.port).endswith(LOG_PROBS):
            return frozenset()
        if stored not in self.known:
            is_made = isinstance(self.program.graph.nodes[stored.node].op, FunctionCall)
            sources = self.program.origins.columns(stored.node) if is_made else []
            scores = frozenset[Ref]().union(*(self.of(source) for source in sources if is_float_column(source.spec)))
            self.known[stored] = scores or frozenset({Ref(self.equal[stored.node], stored.column)})
        return self.known[stored]


LOG_PROBS = "log_probs"
"""The end of the names of columns that say how likely tokens are, not how good."""
