"""Targets of critics: does a critic learn more than its own values, and do advantages have the values from before?

A worked example; only the first three lines are right::

    values = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, values)
    critic.update(merge(ValueExperience, rollout, values, estimates))
    critic.update(ValueExperience(..., values=values.values, returns=values.values))       # HF729: no reward goes in
    late = generalized_advantages(rollout, rewards, critic.values(rollout))                # HF345
    actor.update(merge(Experience, rollout, late))

The critic has just learned to predict the very returns of these rows. Advantages over its new values leave out what it
has learned, and noise of the returns is fitted away. The critic may also learn what the new values give, as in epochs
that estimate again: this is intended. A critic is a role that gives numbers of tokens and samples none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hfdsl.check.context import Context
from hfdsl.check.dependences import body_columns, training_calls, trains, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, derived_once, signature_of
from hfdsl.check.rules.learning.critics import values_tokens
from hfdsl.check.rules.learning.ratios import Makers, effects
from hfdsl.check.sources import argument_span
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import effects_of
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import Bool


def critics_learn_returns(context: Context) -> Iterator[Finding]:
    """HF729: what a critic learns is made of more than its own values."""
    program, reported = context.program, set[object]()
    critics = {node.role for node in value_calls(program)}
    for update in training_calls(program) if critics and not program.graph.misuses else ():
        if update.role not in critics or update.span in reported:
            continue
        columns = [column for column in program.origins.columns(update.id) if is_float_column(column.spec)]
        targets = [column for column in columns if not _is_as_made(program, column)]
        makers = number_makers(program, targets)
        if not makers or not all(_gives_values(maker, update) for maker in makers):
            continue
        reported.add(update.span)
        target, values = targets[0], makers[0]
        yield Finding(
            "HF729",
            f"'{update.label}' learns '{target.name or target.port}' computed only from '{values.label}': no "
            "reward reaches the critic",
            Label(argument_span(update.span, signature_of(update), target.port), "only its own values"),
            (Label(values.span, "the values"),),
            notes=("learn the returns of generalized_advantages, or others that are computed from rewards",),
        )


def advantages_have_the_values_from_before(context: Context) -> Iterator[Finding]:
    """HF345: a policy does not learn from values of rows that the critic has learned from before it gave them."""
    program, makers, calls = context.program, Makers(context), dict[str, list[Node]]()
    for values in value_calls(program) if not program.graph.misuses else ():
        calls.setdefault(values.role, []).append(values)
    reported = set[object]()
    for first, *others in calls.values():
        after_first = descendants(program.graph, [first.id]) if others else set[int]()
        updates = [node for node, _ in makers.updates if node.role == first.role and node.id in after_first]
        for values in others:
            update = next((e for e in updates if e.id < values.id and makers.reads_rows_of(values, e)), None)
            later = list(updates_after(program, values)) if update is not None else []
            if update is None or not later or values.span in reported or any(e.role == first.role for e in later):
                continue
            reported.add(values.span)
            yield Finding(
                "HF345",
                f"'{later[0].label}' learns from values that '{values.label}' computes after '{update.label}' has "
                "learned the returns of these rows: what the critic has just learned is missing from the advantages",
                Label(values.span, "values of the updated critic"),
                (Label(update.span, "learns from these rows"), Label(later[0].span, "learns from the values")),
                notes=(f"take the values once, before line {update.span.line}, for both updates",),
            )


def value_calls(program: Program) -> Iterator[Node]:
    """The calls of critics that give values."""
    for node in program.graph.calls:
        if _reads_weights(program, node) and values_tokens(node, program.graph.roles[node.role]):
            yield node


@derived_once
def _reads_weights(program: Program, node: Node) -> bool:
    """Whether a call computes with the weights of its role: by what it declares, or because its role declares nothing.

    Of such a role, whatever does not train it computes with what others of its calls train.
    """
    if effects(node, "reads"):
        return True
    role = program.role_class(node.role) if isinstance(node.op, RoleCall) else None
    if role is None or any(effects_of(getattr(role, method)) for method in registered_methods(role)):
        return False
    return not trains(program, node) and any(call.role == node.role for call in training_calls(program))


def _gives_values(maker: Node, update: Node) -> bool:
    """Whether a call gives the values of the critic that an update trains."""
    states = {effect.state for effect in effects(update, "writes")}
    if not states and not effects(maker, "reads"):
        return maker.role == update.role
    return maker.role == update.role and any(effect.state in states for effect in effects(maker, "reads"))


def _is_as_made(program: Program, column: RowColumn) -> bool:
    """Whether a column has the name that the call of its role gave it."""
    stored = stored_column(program.graph, column.ref)
    is_made = isinstance(stored, Ref) and isinstance(program.graph.nodes[stored.node].op, RoleCall)
    return is_made and isinstance(stored, Ref) and stored.column == column.name


def number_makers(program: Program, targets: Sequence[RowColumn]) -> list[Node]:
    """The calls and inputs whose numbers these columns are made of, by functions.

    The ready-made functions make numbers of floats alone; a user's own may make them of any column that it reads, such
    as tokens, or of nothing known.
    """
    waiting, makers = [stored_column(program.graph, column.ref) for column in targets], dict[int, Node]()
    followed = set[int]()
    while waiting:
        operand = waiting.pop()
        node = program.graph.nodes[operand.node] if isinstance(operand, Ref) else None
        if node is None or node.id in followed:
            continue
        followed.add(node.id)
        counts = is_float_column if _is_ready_made(node) else _is_no_mask
        sources = [column for column in body_columns(program, node) if counts(column.spec)]
        numbers = [stored_column(program.graph, column.ref) for column in sources]
        waiting += numbers
        if not numbers:
            makers[node.id] = node
    return list(makers.values())


def _is_ready_made(node: Node) -> bool:
    """Whether a node calls a function of hfdsl's own."""
    return isinstance(node.op, FunctionCall) and node.op.signature.is_ready_made


def _is_no_mask(spec: object) -> bool:
    return not (isinstance(spec, ColumnSpec) and issubclass(spec.dtype, Bool))
