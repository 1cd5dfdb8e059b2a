"""Mistaken numbers: does an update get advantages for its advantages, and what a role gave for old values?

A worked example; every number has the type f32[B, R]::

    values = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, values)
    Experience(..., log_probs=rollout.log_probs, advantage=rollout.log_probs)        # HF347: how likely, not how good
    Experience(..., log_probs=rollout.log_probs, advantage=values.values)            # HF347: what was expected
    ValueExperience(..., values=estimates.returns, returns=estimates.returns)        # HF348: the clip never acts
    Experience(..., log_probs=estimates.advantage, advantage=estimates.advantage)    # HF348: no ratio

The maker of a column and its other readers say what it is. Log-probs are what an update divides by, and what the body
of a role picks from a distribution by tokens, under whatever name it returns them. Values are what a role gives that is
trained and samples nothing; returns and advantages are what an update reads under these names. The name at the mistaken
place says what the column is taken for. A function in between computes another number from it, which the rule does not
report: confidence may be a reward.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from hfdsl.check.context import Context
from hfdsl.check.dependences import training_calls, trains, update_lines, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.returned import gives_log_probs
from hfdsl.check.losses.terms import NOW, OWN, is_surrogate, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_note, with_suggestions
from hfdsl.check.role_links import both_ways, linked_roles, role_links
from hfdsl.check.rules.learning.ratios import effects, forms_none
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, FunctionCall, Node, Pack, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import Span
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec

ADVANTAGE = re.compile(r"(adv|advantages?)(_.*)?")
"""The names of ports and columns that are meant as advantages."""

GAINS = re.compile(r"(.*_)?(adv|advantages?|deltas?|gae|gains?|td)(_.*)?")
"""The names of what a critic gives that compares its values with rewards itself."""

LOG_PROBS = re.compile(r"(.*_)?log_?p(rob)?s?")
"""The names of columns that say how likely tokens are."""


class Renamed(NamedTuple):
    """A number of tokens that a record or a call takes under another name than its maker gave it."""

    node: Node
    name: str
    stored: Ref

    @property
    def source(self) -> str:
        """The column as its maker names it."""
        return self.stored.column or ""

    @property
    def place(self) -> Span:
        """The argument that is taken."""
        return argument_span(self.node.span, signature_of(self.node), self.name)


def advantages_say_how_good(context: Context) -> Iterator[Finding]:
    """HF347: what an update takes for advantages is neither log-probs nor the values of a critic."""
    program = context.program
    if program.graph.misuses:
        return
    names = _ratio_names(program)
    divided = {stored for stored, read_names in _taken_by_updates(program).items() if not names.isdisjoint(read_names)}
    critics, reported = {call.role for call in _value_calls(program)}, set[object]()
    for renamed in _renamed(program):
        maker = program.graph.nodes[renamed.stored.node]
        if not ADVANTAGE.fullmatch(renamed.name) or (renamed.node.span, renamed.name) in reported:
            continue
        is_function = isinstance(maker.op, FunctionCall)  # whose numbers are taken for log-probs elsewhere, HF348
        is_log_probs = LOG_PROBS.fullmatch(renamed.source) or gives_log_probs(program, maker, renamed.stored.column)
        if is_log_probs or (renamed.stored in divided and not is_function):
            kind, effect = "log-probs", "each token is weighted by how likely it was, and no reward reaches the policy"
        elif maker.role in critics and effects(maker, "reads") and not GAINS.fullmatch(renamed.source):
            kind, effect = "values", "each token is weighted by what was expected, however the response ended"
        else:
            continue
        update = next(updates_after(program, renamed.node), None)
        if update is None:
            continue
        reported.add((renamed.node.span, renamed.name))
        finding = Finding(
            "HF347",
            f"'{renamed.node.label}' takes the {kind} of '{maker.label}' for its '{renamed.name}': {effect}",
            Label(renamed.place, f"these are {kind}"),
            (
                program.producer_label(maker.id),
                *([] if update is renamed.node else [Label(update.span, "learns from them")]),
            ),
        )
        advantages = _advantages(program, renamed.node)
        advice = "compute advantages from rewards, as generalized_advantages and group_advantages do"
        yield _with_column(context, finding, renamed, *advantages) if advantages else with_note(finding, advice)


def numbers_are_those_that_roles_gave(context: Context) -> Iterator[Finding]:
    """HF348: old values and old log-probs are what a role gave, and no other number that an update learns by."""
    program = context.program
    computed = {} if program.graph.misuses else {**_old_log_probs(program), **_values(program)}
    read_names, reported = _taken_by_updates(program) if computed else {}, set[Ref]()
    for renamed in _renamed(program) if computed else ():
        other_names = sorted(read_names.get(renamed.stored, set()) - {renamed.name})
        if renamed.name not in computed or not other_names or renamed.stored in reported:
            continue
        giver, effect = computed[renamed.name]
        maker, column = program.graph.nodes[renamed.stored.node], renamed.source or other_names[0]
        is_of_a_policy = isinstance(maker.op, RoleCall) or all(map(LOG_PROBS.fullmatch, other_names))
        if (effect is RATIO and is_of_a_policy) or not _is_read(program, renamed.node, giver):
            continue  # of which policy log-probs are, HF335 asks
        reported.add(renamed.stored)
        finding = Finding(
            "HF348",
            f"'{renamed.node.label}' takes '{column}' of '{maker.label}' for the '{renamed.name}' that '{giver.label}' "
            f"returns: {effect}",
            Label(renamed.place, f"an update reads it as '{other_names[0]}'"),
            (program.producer_label(maker.id), Label(giver.span, f"returns '{renamed.name}'")),
        )
        yield _with_column(context, finding, renamed, giver, renamed.name)
    yield from _values_of_another_critic(program) if computed else ()


def _values_of_another_critic(program: Program) -> Iterator[Finding]:
    """The updates of critics that get the old values of another critic, which has an update of its own."""
    calls = dict[str, Node]()
    for call in _value_calls(program):
        calls.setdefault(call.role, call)
    links = both_ways(role_links(program)) if len(calls) > 1 else {}
    for update in update_lines(program) if len(calls) > 1 else ():
        for column in program.origins.columns(update.id) if update.role in calls else ():
            stored = stored_column(program.graph, column.ref)
            giver = program.graph.nodes[stored.node] if isinstance(stored, Ref) else update
            is_others = giver.role in calls and giver.role not in linked_roles(links, update.role)
            if is_others and isinstance(stored, Ref) and stored.column in {*float_columns(calls[update.role])}:
                yield Finding(
                    "HF348",
                    f"'{update.label}' takes '{stored.column}' of '{giver.label}' for the '{stored.column}' that "
                    f"'{calls[update.role].label}' returns: {CLIP}",
                    Label(argument_span(update.span, signature_of(update), column.port), "values of another critic"),
                    (Label(giver.span, "returns them"), Label(calls[update.role].span, f"returns '{stored.column}'")),
                    notes=(f"take the values of '{calls[update.role].label}', in its advantages and returns, too",),
                )


RATIO = "the ratio of an update is then not a ratio of probabilities"
"""What other numbers than old log-probs do."""

CLIP = "clipping and advantages then use numbers that the critic never returned"
"""What other numbers than old values do."""


def _renamed(program: Program) -> Iterator[Renamed]:
    """The numbers of tokens that a record, or a call with a port of its own for it, takes under another name."""
    for node in program.graph.nodes:
        ports = _loose_ports(node)
        for column in program.origins.columns(node.id) if ports is None or ports else ():
            if not is_float_column(column.spec) or not column.inner or (ports is not None and column.port not in ports):
                continue
            stored = stored_column(program.graph, column.ref)
            if isinstance(stored, Ref) and stored.column != column.port:
                yield Renamed(node, column.port, stored)


def _loose_ports(node: Node) -> frozenset[str] | None:
    """The ports of a call that take a column of no record; None for a record, each of whose columns is a port."""
    if isinstance(node.op, Pack):
        return None
    signature = signature_of(node)
    return frozenset[str]() if signature is None else _column_ports(signature)


@lru_cache(maxsize=256)
def _column_ports(signature: Signature) -> frozenset[str]:
    return frozenset(port.name for port in signature.ports if isinstance(port.type, ColumnSpec))


def _value_calls(program: Program) -> Iterator[Node]:
    """The calls that give values of roles that are trained."""
    trained = {node.role for node in training_calls(program)}
    return (call for call in value_calls(program) if call.role in trained)


def _values(program: Program) -> Mapping[str, tuple[Node, str]]:
    """By name the numbers that critics give, the first call that does, and what another number does."""
    calls = list(_value_calls(program))
    return {name: (node, CLIP) for node in reversed(calls) for name in float_columns(node)}


def _old_log_probs(program: Program) -> Mapping[str, tuple[Node, str]]:
    """By name the numbers that updates divide by, the first call of a role that gives them, and likewise."""
    names = _ratio_names(program)
    calls = [node for node in program.graph.calls if isinstance(node.op, RoleCall) and not trains(program, node)]
    return {name: (node, RATIO) for node in reversed(calls) for name in float_columns(node) if name in names}


def _ratio_names(program: Program) -> set[str]:
    """The names of the log-probs that updates divide by, as they declare, or as their bodies do."""
    updates = [update for update in update_lines(program) if not forms_none(update)]
    ratios = (effect.ratio for update in updates for effect in effects(update, "writes"))
    paths = [*(ratio for ratio in ratios if ratio is not None), *(p for u in updates for p in _divided(program, u))]
    return {path.rpartition(".")[2] for path in paths}


def _divided(program: Program, update: Node) -> Iterator[str]:
    """The paths of the old log-probs in the surrogates of a user's own update."""
    body = interpreted_update(program, update)
    terms = (term for loss in (body.losses if body is not None else ()) for term in terms_of(loss))
    return (term.below for term in terms if is_surrogate(term) and term.below not in ("", NOW, OWN))


def float_columns(node: Node) -> Iterator[str]:
    """The names of the numbers of tokens that a call gives."""
    signature = signature_of(node)
    if signature is not None and isinstance(signature.returns, RecordType):
        yield from (name for name, spec in schema(signature.returns.record).fields.items() if is_float_column(spec))


def _taken_by_updates(program: Program) -> Mapping[Ref, set[str]]:
    """The names under which updates read each number of tokens."""
    read_names: dict[Ref, set[str]] = {}
    for update in update_lines(program):
        for column in program.origins.columns(update.id):
            stored = stored_column(program.graph, column.ref)
            if isinstance(stored, Ref) and is_float_column(column.spec) and column.inner:
                read_names.setdefault(stored, set()).add(_name(update, column))
    return read_names


def _name(node: Node, column: RowColumn) -> str:
    """The name under which a call reads a column."""
    return column.port if column.port in (_loose_ports(node) or ()) else column.name or column.port


def _is_read(program: Program, node: Node, giver: Node) -> bool:
    """Whether what a record takes reaches an update, other than one of the critic whose loss does not read it."""
    updates = updates_after(program, node)
    return any(update.role != giver.role or not _ignores_old_values(update) for update in updates)


def _ignores_old_values(update: Node) -> bool:
    """Whether the loss of an update says that it has no clip around old values."""
    losses = (operand.value for _, operand in update.arguments if isinstance(operand, Constant))
    return any(getattr(loss, "clip", 0.0) is None for loss in losses)


def _advantages(program: Program, reader: Node) -> tuple[Node, str] | None:
    """The call that gives advantages, and their name."""
    for node, _ in program.record_producers:
        names = [name for name in float_columns(node) if ADVANTAGE.fullmatch(name)]
        if names and node.id < reader.id:
            return node, names[0]
    return None


def _with_column(context: Context, finding: Finding, renamed: Renamed, maker: Node, column: str) -> Finding:
    """The finding with the column that is meant, as an edit where the dataflow has a name for what gives it."""
    advice = f"take '{column}' of '{maker.label}' (line {maker.span.line})"
    return with_suggestions(context, finding, _column_of(renamed.place, maker, column), advice)


def _column_of(place: Span, maker: Node, column: str) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import column_of  # late: most programs need none

    yield from column_of(place, maker, column)
