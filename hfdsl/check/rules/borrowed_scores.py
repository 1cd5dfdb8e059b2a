"""Borrowed scores: does a policy learn from the scores of the very responses that it trains on?

A worked example, a policy that samples twice::

    first, second = actor.generate(prompts), actor.generate(prompts)
    scores = reward.score(second)                               # one number a row, of the tokens of 'second'
    actor.update(first, group_advantages(first, scores, group=8))

``group_advantages`` gives the tokens of 'first' the scores of other responses to the same prompts. Shapes, dims and
rows agree, since a score has no dim of tokens: HF334 compares columns that have one. What tells is where a score comes
from. A value *depends* on every call that sampled tokens on the way to it. So scores that depend on 'second' alone say
nothing of the tokens of 'first'.

Much of the same form is meant, and nothing is claimed of it: a baseline of another rollout, which stands beside scores
of the rollout itself; scores of an answer to the tokens (they depend on both); tokens sampled after a look at the other
rollout, as a revision is; and a teacher's tokens, weighted by what the student reaches. So all samples have to be the
learner's own, by it or by an engine with its weights, and nothing but the log-probs they were sampled with may stand
beside the borrowed score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.role_links import both_ways, linked_roles, role_links
from hfdsl.check.row_comparison import Meeting, meetings
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Derived, Filter, Node, Pack, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.signatures import VALUE
from hfdsl.protocols.state import effects_of
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import FLOATS


def tokens_have_scores_of_their_own(context: Context) -> Iterator[Finding]:
    """HF339: scores that reach an update beside the tokens of a sample are not those of another sample alone."""
    program = context.program
    dependences = Dependences(program)
    if len(dependences.samplers) < 2 or program.graph.misuses:
        return
    reported = set[object]()
    for meeting in meetings(context):
        borrowed = None if isinstance(meeting.node.op, Filter) else _borrowed(dependences, meeting)
        update = None if borrowed is None else dependences.update_after(meeting.node, borrowed)
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
    found: Borrowed | None = None
    for column in columns if len(tokens) == 1 else ():
        depends = dependences.of(column)
        if not _is_float(column) or not depends or dependences.is_sampled_with(column, tokens):
            continue
        if not depends.isdisjoint(tokens):
            return None  # a number of these tokens themselves
        if not column.inner and depends.isdisjoint(related):
            [(call, sampled)] = tokens.items()
            found = found or Borrowed(sampled, column, call, tuple(sorted(depends)))
    return found


@dataclass
class Dependences:
    """On which calls that sample tokens the values of a program depend."""

    program: Program

    @cached_property
    def samplers(self) -> set[int]:
        """The calls of roles that sample tokens."""
        tokens, nodes = self.program.origins.tokens, self.program.graph.nodes
        return {n.id for n in nodes if isinstance(n.op, RoleCall) and n.id in tokens[n.id].calls.values()}

    @cached_property
    def _of_nodes(self) -> list[frozenset[int]]:
        depends = list[frozenset[int]]()
        for node in self.program.graph.nodes:
            own = {node.id} if node.id in self.samplers else frozenset[int]()
            depends.append(frozenset(own).union(*(self._of(ref, depends) for ref in node.refs)))
        return depends

    def _of(self, ref: Ref, depends: Sequence[frozenset[int]]) -> frozenset[int]:
        """The samplers that a value or a column of it depends on; rows that a filter keeps depend on its column."""
        node = self.program.graph.nodes[ref.node]
        if not isinstance(node.op, Derived) or (isinstance(node.op, Pack) and ref.column is None):
            return depends[node.id]
        beside = () if isinstance(node.op, Pack) else node.arguments[1:]
        sources = (node.source(ref.column or VALUE), *(operand for _, operand in beside))
        return frozenset[int]().union(*(self._of(each, depends) for each in sources if isinstance(each, Ref)))

    def of_node(self, node: int) -> frozenset[int]:
        """The samplers that a node depends on, itself among them."""
        return self._of_nodes[node]

    def of(self, column: RowColumn) -> frozenset[int]:
        """The samplers that a column depends on."""
        return self._of(column.ref, self._of_nodes)

    def sampled(self, column: RowColumn) -> set[int]:
        """The calls that sampled a column of tokens; none for other columns."""
        calls = self.program.origins.samples(column).values() if is_token_column(column.spec) else ()
        return self.samplers.intersection(calls)

    def is_sampled_with(self, column: RowColumn, calls: dict[int, RowColumn]) -> bool:
        """Whether one of these calls made a column beside the tokens, such as their log-probs."""
        stored = stored_column(self.program.graph, column.ref)
        return isinstance(stored, Ref) and stored.node in calls

    def update_after(self, node: Node, borrowed: Borrowed) -> Node | None:
        """The first update of the policy that sampled all of this which reads these tokens and what the node makes."""
        nodes, after = self.program.graph.nodes, {node.id}
        for later in nodes[node.id :]:
            if later is not node and after.isdisjoint(ref.node for ref in later.refs):
                continue
            after.add(later.id)
            if isinstance(later.op, RoleCall) and _trains(later):
                reads = self.program.origins.columns(later.id)
                own = linked_roles(self._links, later.op.role)
                roles = {_role(nodes[call]) for call in (borrowed.sampled_by, *borrowed.scored)}
                if roles <= own and any(borrowed.sampled_by in self.sampled(column) for column in reads):
                    return later
        return None

    @cached_property
    def _links(self) -> dict[str, set[str]]:
        return both_ways(role_links(self.program))


def _trains(node: Node) -> bool:
    return isinstance(node.op, RoleCall) and any(e.kind == "writes" for e in effects_of(node.op.signature.body))


def _role(node: Node) -> str:
    return node.op.role if isinstance(node.op, RoleCall) else ""


def _is_float(column: RowColumn) -> bool:
    return isinstance(column.spec, ColumnSpec) and issubclass(column.spec.dtype, FLOATS)


def _finding(program: Program, node: Node, borrowed: Borrowed, update: Node) -> Finding:
    nodes = program.graph.nodes
    score, tokens = _name(node, borrowed.score), _name(node, borrowed.tokens)
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
            f"score the rollout that '{update.label}' trains on; those of another one may be a baseline beside its own",
        ),
    )


def _name(node: Node, column: RowColumn) -> str:
    if isinstance(node.op, Pack) or column.name in (None, VALUE):
        return column.port
    return f"{column.port}.{column.name}"
