"""Ratios: are the log-probs that an update divides by its own policy's, from before any update on these rows?

A worked example, an actor whose ``update`` declares ``@hf.writes("policy", ratio="log_probs")``::

    rollout = actor.generate(prompts)                                    # log-probs of 'actor' before its updates
    ref = reference.log_probs(rollout)                                   # log-probs of 'reference'
    actor.update(rollout)                                                # policy / policy that generated
    actor.update(Rollout(ids=rollout.ids, log_probs=ref.log_probs))      # policy / another model
    now = actor.log_probs(rollout)                                       # log-probs after an update on these rows
    actor.update(Rollout(ids=rollout.ids, log_probs=now.log_probs))      # policy / the same policy: 1

The rule knows a column by the call that computed it, and follows it through records and operations on rows. The call's
``hf.reads`` says under which weights. A role's weights are its own, unless something other than rows goes from one role
to the other, as with ``hf.sync``. A function ends the trace, except for ``with_log_probs`` of hfdsl, and so does a
call that may pass on a column that it got: the rule reports nothing that it does not know. Tokens of a data set may be
those of any policy, so only log-probs of tokens that the dataflow generates can be another policy's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.role_links import both_ways, linked_roles, role_links
from hfdsl.check.sources import argument_span
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, FunctionCall, Graph, Node, Operand, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.row_steps import FilterStep, Origin, PartStep, TakeStep
from hfdsl.graph.row_weights import named_columns
from hfdsl.graph.samples import is_float_column, is_token_column
from hfdsl.graph.signatures import VALUE, RecordType, Signature
from hfdsl.protocols.state import Effect, effects_of, methods_with
from hfdsl.types.batches import schema
from hfdsl.types.similar_names import closest


@dataclass(frozen=True)
class Ratio:
    """An update, the state that it changes, and the column of old log-probs that it divides by."""

    update: Node
    role: str
    state: str
    column: RowColumn


def ratios_name_columns(context: Context) -> Iterator[Finding]:
    """HF336: ``ratio=`` names one column of one argument, and that column has floats."""
    declared: dict[tuple[Signature, str], Node] = {}
    for node, signature in context.program.graph.bodies:
        for effect in effects(node, "writes"):
            if effect.ratio is not None:
                declared.setdefault((signature, effect.ratio), node)
    for (signature, name), node in declared.items():
        columns = list(named_columns(signature, name))
        if len(columns) == 1 and is_float_column(columns[0][2]):
            continue
        called = Label(node.span, "called here")
        message = f"'{node.label}' declares ratio='{name}', {_misnamed(signature, name)}"
        yield Finding("HF336", message, Label(signature.span), (called,))


def _misnamed(signature: Signature, name: str) -> str:
    columns = list(named_columns(signature, name))
    if len(columns) > 1:
        return "which several of its arguments have: " + " or ".join(f"'{port.name}.{name}'" for port, _, _ in columns)
    if columns:
        return f"but {columns[0][2]} cannot hold log-probs"
    fields = [
        schema(port.type.record).fields if isinstance(port.type, RecordType) else {port.name: port.type}
        for port in signature.ports
    ]
    names = [column for columns in fields for column, spec in columns.items() if is_float_column(spec)]
    return f"but its arguments have no such column; {closest(name.rpartition('.')[2], names)}"


def ratios_are_of_one_policy(context: Context) -> Iterator[Finding]:
    """HF335: the old log-probs of an update are those of its own policy, from before its updates on these rows."""
    ratios = list(formed_ratios(context))
    if not ratios or context.program.graph.misuses:
        return  # a call that is not there may be the one that sends weights
    weights, reported = Makers(context), set[object]()
    for ratio in ratios:
        maker = weights.maker(ratio.column)
        if maker is None or (ratio.update.span, maker.span) in reported or not _is_of_its_tokens(context, ratio):
            continue
        if _is_generated(context, ratio.column) and weights.is_another_policy(maker, ratio):
            finding = _of_another_policy(context, ratio, maker)
        elif (earlier := weights.earlier_update(maker, ratio)) is not None:
            finding = _of_the_updated_policy(context, ratio, maker, earlier)
        else:
            continue
        reported.add((ratio.update.span, maker.span))
        yield finding


def divides_by_another_policy(context: Context, learner: str, state: str, others: str) -> bool:
    """Whether an update of a state may divide by log-probs of another role: not where all are certainly its own.

    An update that reads no numbers of tokens, as one that imitates, divides by nothing.
    """
    weights, reads = Makers(context), context.program.origins.columns
    makers = ((ratio, weights.maker(ratio.column)) for ratio in formed_ratios(context, every=True))
    own_updates = {ratio.update.id for ratio, maker in makers if maker is not None and maker.role != others}
    updates = {
        node.id
        for node, effect in weights.updates
        if (node.role, effect.state) == (learner, state)
        and any(is_float_column(column.spec) and column.inner for column in reads(node.id))
    }
    return not updates <= own_updates


def formed_ratios(context: Context, *, every: bool = False) -> Iterator[Ratio]:
    """The updates that form a ratio, with its column; ``every`` has those too whose loss forms none."""
    for node, signature in context.program.graph.bodies:
        if not isinstance(node.op, RoleCall) or (not every and forms_none(node)):
            continue
        for effect in effects(node, "writes"):
            named = list(named_columns(signature, effect.ratio)) if effect.ratio is not None else []
            if len(named) != 1:
                continue
            [(port, name, _)] = named
            for column in context.program.origins.columns(node.id):
                if column.port == port.name and name in (VALUE, column.ref.column):
                    yield Ratio(node, node.op.role, effect.state, column)


def forms_none(node: Node) -> bool:
    """Whether an option of the call, such as a loss, declares that it uses no ratio."""
    return any(
        isinstance(operand, Constant) and getattr(operand.value, "uses_ratio", True) is False
        for _, operand in node.arguments
    )


def first_ratio_updates(program: Program) -> Iterator[Node]:
    """The first call of each role that forms ratios of log-probs."""
    first = dict[str, Node]()
    for node in program.graph.calls:
        if any(effect.ratio is not None for effect in effects(node, "writes")) and not forms_none(node):
            first.setdefault(node.role, node)
    yield from first.values()


def _is_of_its_tokens(context: Context, ratio: Ratio) -> bool:
    """Whether the column is of the tokens that the update reads; of others it is HF334."""
    origins = context.program.origins
    samples = origins.samples(ratio.column)
    others = (origins.samples(column) for column in _token_columns(context, ratio.update))
    return all(samples.get(dim, call) == call for other in others for dim, call in other.items())


def _is_generated(context: Context, column: RowColumn) -> bool:
    """Whether the tokens of a column are sampled in the dataflow, and not those of an input."""
    calls = context.program.origins.samples(column).values()
    return any(isinstance(context.program.graph.nodes[call].op, RoleCall) for call in calls)


@dataclass
class Makers:
    """The weights, and their version, under which columns are made."""

    context: Context

    def maker(self, column: RowColumn) -> Node | None:
        """The call whose weights a column of floats comes from; None if it is not certain."""
        program = self.context.program
        stored = _original_column(program.graph, column.ref)
        if not isinstance(stored, Ref):
            return None
        node = program.graph.nodes[stored.node]
        if not isinstance(node.op, RoleCall) or not effects(node, "reads"):
            return None
        names = (None, VALUE)
        handed_on = any(
            is_float_column(source.spec) and (stored.column in names or source.ref.column in (stored.column, *names))
            for source in program.origins.columns(node.id)
            if not set(source.inner).isdisjoint(column.inner)
        )
        return None if handed_on else node

    def is_another_policy(self, maker: Node, ratio: Ratio) -> bool:
        """Whether a column is certainly made under weights that are not those of the update's state."""
        role = maker.role
        states = {effect.state for effect in effects(maker, "reads")}
        if role == ratio.role:
            roles = self.context.program.graph.roles
            return ratio.state not in states and ratio.state in methods_with(roles[role], "reads")
        if role in linked_roles(self.links, ratio.role):
            return False
        senders = linked_roles(self.links, role) - {role}
        trained_elsewhere = any(node.role in senders and effect.state == ratio.state for node, effect in self.updates)
        return ratio.state not in states or trained_elsewhere or self.has_weights_of_its_own(role, ratio.state)

    def has_weights_of_its_own(self, role: str, state: str) -> bool:
        """Whether no other dataflow can have given a role its weights: it trains them, or could and loads none."""
        kind = self.context.program.graph.roles[role]
        if any(node.role == role and effect.state == state for node, effect in self.updates):
            return True
        return state in methods_with(kind, "writes") and not methods_with(kind, "loads")

    def earlier_update(self, maker: Node, ratio: Ratio) -> Node | None:
        """An update on the same rows before the column was made; None if the ratio's update reads an older one."""
        if maker.role != ratio.role:
            return None
        columns = self.context.program.origins.columns(ratio.update.id)
        for node, effect in takewhile(lambda update: update[0].id < maker.id, self.updates):
            own = (node.role, effect.state) == (ratio.role, ratio.state) and effect.ratio is not None
            if own and self.reads_rows_of(ratio.update, node):
                older = any(
                    earlier is not None and earlier.id < node.id and not self.is_another_policy(earlier, ratio)
                    for earlier in map(self.maker, (column for column in columns if is_float_column(column.spec)))
                )
                return None if older else node
        return None

    def reads_rows_of(self, update: Node, earlier: Node) -> bool:
        """Whether two updates certainly train on some of the same rows."""
        rows, earlier_rows = list(self.token_rows(update)), list(self.token_rows(earlier))
        return any(
            column == earlier_column and (origin in _supersets(other_origin) or other_origin in _supersets(origin))
            for column, origin in rows
            for earlier_column, other_origin in earlier_rows
        )

    def token_rows(self, update: Node) -> Iterator[tuple[Ref, Origin]]:
        """The columns of tokens that an update reads, where they were made, and their rows."""
        program = self.context.program
        for column in _token_columns(self.context, update):
            stored, origin = _original_column(program.graph, column.ref), program.origins.of(column)
            if isinstance(stored, Ref) and origin is not None:
                yield stored, origin

    @cached_property
    def updates(self) -> list[tuple[Node, Effect]]:
        """All calls that change a state."""
        return [(node, effect) for node in self.context.program.graph.calls for effect in effects(node, "writes")]

    @cached_property
    def links(self) -> dict[str, set[str]]:
        """The roles that may have weights of one another."""
        return both_ways(role_links(self.context.program))


REPLACES = "hfdsl.rl.functions", "with_log_probs"
"""The module and name of the ready-made function that gives a rollout the log-probs of its other argument."""


def _original_column(graph: Graph, operand: Operand) -> Operand:
    """The column that a column is, where the ready-made function only puts it into another rollout."""
    operand = stored_column(graph, operand)
    node = graph.nodes[operand.node] if isinstance(operand, Ref) else None
    if not isinstance(operand, Ref) or node is None or not isinstance(node.op, FunctionCall):
        return operand
    body, arguments = node.op.signature.body, dict(node.arguments)
    sources = {"log_probs": ("policy", "ref_log_probs"), "ids": ("rollout", "ids"), "mask": ("rollout", "mask")}
    port, name = sources.get(operand.column or "", ("", ""))
    source = arguments.get(port)
    if (body.__module__, body.__name__) != REPLACES or not isinstance(source, Ref):
        return operand
    return _original_column(graph, Ref(source.node, name))


def _supersets(origin: Origin) -> Iterator[Origin]:
    """Rows that have all of these rows, and those."""
    steps = origin.steps
    yield origin
    while steps and isinstance(steps[0], (PartStep, TakeStep, FilterStep)):
        steps = steps[1:]
        yield Origin(steps, origin.source)


def _of_another_policy(context: Context, ratio: Ratio, maker: Node) -> Finding:
    name, states = _name(ratio.column), " and ".join(f"'{effect.state}'" for effect in effects(maker, "reads"))
    finding = Finding(
        "HF335",
        f"'{ratio.update.label}' divides by '{name}' of '{maker.label}', not by log-probs of the '{ratio.state}' that "
        "it trains",
        _label(ratio, "the old log-probs of a ratio"),
        (Label(maker.span, f"made from the weights {states} of role '{maker.role}'"), _declaration_label(ratio)),
    )
    advice = (
        f"pass it log-probs of '{ratio.role}' from before its update; a method that corrects for samples of other "
        "policies leaves out ratio=, and a function with rows=hf.Whole says so for one batch"
    )
    return with_suggestions(context, finding, (), advice)


def _of_the_updated_policy(context: Context, ratio: Ratio, maker: Node, earlier: Node) -> Finding:
    name = _name(ratio.column)
    finding = Finding(
        "HF335",
        f"'{ratio.update.label}' divides by '{name}' that '{maker.label}' computed after an update on these rows, "
        "so the ratio misses that update",
        _label(ratio, "the old log-probs of a ratio"),
        (
            Label(earlier.span, "trains on these rows earlier"),
            Label(maker.span, "made here"),
            _declaration_label(ratio),
        ),
    )
    advice = f"compute '{name}' once for all updates on these rows, before line {earlier.span.line}"
    return with_suggestions(context, finding, (), advice)


def _label(ratio: Ratio, words: str) -> Label:
    return Label(argument_span(ratio.update.span, signature_of(ratio.update), ratio.column.port), words)


def _declaration_label(ratio: Ratio) -> Label:
    signature = signature_of(ratio.update)
    return Label(ratio.update.span if signature is None else signature.span, f"declared ratio='{_name(ratio.column)}'")


def _name(column: RowColumn) -> str:
    return column.port if column.ref.column in (None, VALUE) else column.ref.column or ""


def _token_columns(context: Context, node: Node) -> Iterator[RowColumn]:
    return (
        column
        for column in context.program.origins.columns(node.id)
        if is_token_column(column.spec) and len(column.spec.dims) > 1
    )


def effects(node: Node, kind: str) -> list[Effect]:
    """The effects of a kind that a call has."""
    if not isinstance(node.op, RoleCall):
        return []
    return [effect for effect in effects_of(node.op.signature.body) if effect.kind == kind]
