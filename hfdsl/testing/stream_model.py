"""The results that a queue's decisions imply, for the programs with queues of the conformance suite.

A worked example, with a lag of 1, ``"drop"`` and batches of two groups. The model knows the log alone::

    dispatch 0  version 0, groups 0 and 1    answers under weight w0
    dispatch 1  version 0, groups 2 and 3    answers under weight w0
    take        version 0, groups 2 and 3    result 0: their rows; w1 follows from w0 and their tokens
    dispatch 2  version 1, groups 4 and 5    answers under weight w1

With weights in flight, the log says before which token a rank has loaded which version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfdsl.runtime.decisions import Decision
from hfdsl.testing import suite_queues as q

ANSWERS = 2
"""The answers to a question, which form a group."""


class ModelError(Exception):
    """Decisions that imply no results, such as a loss of what the filter keeps."""


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """A group: the version and number of its dispatch, its first row there, and its questions."""

    version: int
    dispatch: int
    first_row: int
    questions: Sequence[int]


@dataclass
class StreamModel:
    """A model of ``ranks`` samplers that get ``per_step`` questions.

    Where a queue takes whole steps, a group of its log has all questions of a step. A filter ``loses`` groups.
    """

    ranks: int
    per_step: int
    whole_steps: bool = False
    loses: bool = False
    in_flight: bool = False
    weights: list[int] = field(default_factory=lambda: [q.FIRST_WEIGHT])
    dispatches: int = 0
    groups: dict[int, ModelGroup] = field(default_factory=dict)
    loads: Mapping[tuple[int, int], Sequence[tuple[int, int]]] = field(default_factory=dict)

    def results(self, decisions: Sequence[Decision]) -> Iterator[q.SuiteLearned]:
        """The results in order.

        Raises:
            ModelError: for decisions that imply none.
        """
        self.loads = {(of.call[0], of.call[2]): of.loaded for of in decisions if of.call is not None}
        for decision in decisions:
            if decision.kind == "dispatch":
                self._dispatch(decision)
            elif decision.kind == "take":
                yield self._learn(decision)
            elif decision.kind == "lose":
                self._check_kept(decision, kept=False)

    def _dispatch(self, decision: Decision) -> None:
        first_row = 0
        for group, prompt in zip(decision.groups, decision.prompts, strict=True):
            count = self.per_step if self.whole_steps else 1
            questions = range(prompt * count, (prompt + 1) * count)
            self.groups[group] = ModelGroup(decision.version, self.dispatches, first_row, questions)
            first_row += ANSWERS * count
        self.dispatches += 1

    def _learn(self, decision: Decision) -> q.SuiteLearned:
        self._check_kept(decision, kept=True)
        rows = [row for group in decision.groups for row in self._answers(group, decision)]
        learned = sum(sum(row["tokens"]) for row in rows if row["unmasked"])
        self.weights.append(q.next_weight(self.weights[decision.version], learned))
        return q.learned(rows)

    def _answers(self, number: int, decision: Decision) -> Iterator[dict[str, Any]]:
        """The rows of a group, as an update takes them."""
        group = self.groups[number]
        for place, question in enumerate(group.questions):
            for answer in range(ANSWERS):
                row = group.first_row + ANSWERS * place + answer
                rank = row * self.ranks // (ANSWERS * self.per_step)
                versions = self._versions(group, rank)[: q.length_of(question)]
                token, tokens = question, list[int]()
                for version in versions:
                    tokens.append(token := q.next_token(token, self.weights[version]))
                yield {
                    "number": question,
                    "name": f"question {question}",
                    "tokens": tokens,
                    "versions": versions,
                    "unmasked": 0 if number in decision.masked else len(tokens),
                    "from_version": group.version,
                    "update": decision.version,
                }

    def _versions(self, group: ModelGroup, rank: int) -> list[int]:
        """The version of each token that a rank samples."""
        if not self.in_flight:
            return [group.version] * q.TOKENS
        loaded = dict(self.loads.get((group.dispatch, rank), ()))
        if 0 not in loaded:
            raise ModelError(f"no load says what rank {rank} began dispatch {group.dispatch} with")
        versions = list[int]()
        for step in range(q.TOKENS):
            versions.append(loaded[step] if step in loaded else versions[-1])
        return versions

    def _check_kept(self, decision: Decision, *, kept: bool) -> None:
        for number in decision.groups:
            for question in self.groups[number].questions:
                if kept != (not self.loses or q.is_kept(question)):
                    raise ModelError(f"a {decision.kind} of group {number}, whose question is {question}")
