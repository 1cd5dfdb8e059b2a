"""Borrowed scores: does a policy learn from the scores of the very responses that it trains on?

A worked example, a policy that samples twice::

    first, second = actor.generate(prompts), actor.generate(prompts)
    scores = reward.score(second)                               # one number a row, of the tokens of 'second'
    actor.update(first, group_advantages(first, scores, group=8))

``group_advantages`` gives the tokens of 'first' the scores of other responses to the same prompts. Shapes, dims and
rows agree, since a score has no dim of tokens: HF334 compares columns that have one. The rule looks at where a score
comes from. A value *depends* on every call that sampled tokens on the way to it, so scores that depend on 'second'
alone say nothing about the tokens of 'first'.

Much of the same form is intended, and the rule does not report it: a baseline of another rollout, beside scores of the
rollout itself; scores of an answer to the tokens, which depend on both; tokens sampled after a look at the other
rollout, as a revision is; and a teacher's tokens, weighted by what the student reaches. So all samples must be the
learner's own, from it or from an engine with its weights, and nothing but the log-probs of their sampling may stand
beside the borrowed score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hfdsl.check.context import Context
from hfdsl.check.dependences import Dependences, sampling_calls, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.role_links import both_ways, linked_roles, role_links
from hfdsl.check.row_comparison import Meeting, meetings, read_name
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Filter, Node
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column


def tokens_have_scores_of_their_own(context: Context) -> Iterator[Finding]:
    """HF339: scores that reach an update beside the tokens of a sample are not those of another sample alone."""
    program = context.program
    dependences = Dependences(program)
    if len(dependences.samplers) < 2 or program.graph.misuses:
        return
    reported = set[object]()
    for meeting in meetings(context):
        borrowed = None if isinstance(meeting.node.op, Filter) else _borrowed(dependences, meeting)
        update = None if borrowed is None else _update(program, meeting.node, borrowed)
        if borrowed is None or update is None:
            continue
        mistake = borrowed.sampled_by, stored_column(program.graph, borrowed.score.ref)
        if mistake not in reported:  # a record of the two, and all that reads it, is one mistake
            reported.add(mistake)
            yield _finding(program, meeting.node, borrowed, update)


@dataclass(frozen=True)
class Borrowed:
    """A score beside tokens, and the calls that sampled the tokens and those that the score depends on."""

    tokens: RowColumn
    score: RowColumn
    sampled_by: int
    scored: tuple[int, ...]


def _borrowed(dependences: Dependences, meeting: Meeting) -> Borrowed | None:
    """A score that depends on other samples alone, where no other number of the tokens stands beside it."""
    columns = dependences.program.origins.columns(meeting.node.id, meeting.reads)
    tokens = {call: column for column in columns for call in dependences.sampled(column)}
    related = set(tokens).union(*(dependences.of_node(call) for call in tokens))
    borrowed: Borrowed | None = None
    for column in columns if len(tokens) == 1 else ():
        depends = dependences.of(column)
        if not is_float_column(column.spec) or not depends or dependences.is_sampled_with(column, tokens):
            continue
        if not depends.isdisjoint(tokens):
            return None  # a number of these tokens themselves
        if not column.inner and depends.isdisjoint(related):
            [(call, sampled)] = tokens.items()
            borrowed = borrowed or Borrowed(sampled, column, call, tuple(sorted(depends)))
    return borrowed


def _update(program: Program, node: Node, borrowed: Borrowed) -> Node | None:
    """The first update by what a node makes that reads these tokens, of the policy that sampled all of this."""
    nodes, links = program.graph.nodes, both_ways(role_links(program))
    roles = {nodes[call].role for call in (borrowed.sampled_by, *borrowed.scored)}
    for update in updates_after(program, node):
        reads = {call.id for call in sampling_calls(program, update)}
        if borrowed.sampled_by in reads and roles <= linked_roles(links, update.role):
            return update
    return None


def _finding(program: Program, node: Node, borrowed: Borrowed, update: Node) -> Finding:
    nodes = program.graph.nodes
    score, tokens = read_name(node, borrowed.score), read_name(node, borrowed.tokens)
    lines = " and ".join(str(line) for line in dict.fromkeys(nodes[call].span.line for call in borrowed.scored))
    return Finding(
        "HF339",
        f"'{node.label}' puts '{score}' beside '{tokens}', but other responses were scored: '{update.label}' trains on "
        "tokens that nothing has scored",
        Label(
            argument_span(node.span, signature_of(node), borrowed.score.port),
            f"scores the responses sampled on line {lines}",
        ),
        (
            Label(nodes[borrowed.sampled_by].span, f"samples '{tokens}'"),
            *(Label(nodes[call].span, f"samples what '{score}' scores") for call in borrowed.scored),
            *([] if update is node else [Label(update.span, f"trains on '{tokens}'")]),
        ),
        notes=(
            f"score the rollout that '{update.label}' trains on; scores of another may be a baseline beside its own",
        ),
    )
