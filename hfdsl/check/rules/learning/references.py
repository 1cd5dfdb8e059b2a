"""References: does a loss with a KL to a reference get the log-probs of one, and is it another model than the policy?

A worked example; only the last two lines have a KL above 0::

    rollout = actor.generate(prompts)
    kl_penalized_rewards(rollout, reference=actor.log_probs(rollout), ...)      # the policy less itself: always 0
    kl_penalized_rewards(rollout, reference=actor.base_log_probs(rollout), ...) # the model without its adapter
    kl_penalized_rewards(rollout, reference=reference.log_probs(rollout), ...)

The rule knows a reference by its name: a port ``ref`` or ``reference``, or a column that begins so, beside other
columns in the record of an update. It knows a teacher in the same way; a policy with a hint in its prompt may be its
own. The reference is the policy if the call that computed it reads the very state that a later update writes, or the
state of the engine that samples for it. Two policies may be each other's references. The rule does not know a reference
that follows the policy by a sync of its own, such as a moving average. A role that keeps both models has to keep two:
``bodies/shared_models.py`` says which attributes are one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hfdsl.check.bodies.optimizers import learned_attributes
from hfdsl.check.bodies.role_code import RoleCode, code_of
from hfdsl.check.bodies.shared_models import shared_models
from hfdsl.check.context import Context
from hfdsl.check.dependences import declares_training, sampling_calls, training_calls, trains, updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.check.rules.learning.ratios import Makers, effects
from hfdsl.check.sources import argument_span, span_of
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Constant, FunctionCall, Graph, Input, Node, Operand, Ref, RoleCall
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.samples import is_float_column, is_token_column
from hfdsl.graph.spans import Span, definition_span

REFERENCE_COLUMN = "ref_log_probs"
"""The column of the log-probs of a reference."""


def losses_have_their_reference(context: Context) -> Iterator[Finding]:
    """HF713: a loss whose ``kl`` is not 0 gets the log-probs of a reference."""
    graph = context.program.graph
    for update in updates_without_reference(graph):
        yield Finding(
            "HF713",
            message(update, graph),
            Label(update.span),
            notes=(f"merge the log_probs of a reference into what '{update.label}' gets, or set kl to 0",),
        )


def message(update: Node, graph: Graph) -> str:
    """The message of the finding on an update."""
    return (
        f"the loss of '{update.label}' has kl = {kl(update):g}, but '{graph.name}' gives it no log-probs of a reference"
    )


def kl(update: Node) -> float:
    """The coefficient of the KL to a reference in the loss of an update; 0 if it has no such loss."""
    values: list[Any] = [operand.value for _, operand in update.arguments if isinstance(operand, Constant)]
    return next((value.kl for value in values if getattr(value, "needs_reference", False) is True), 0.0)


def references_are_other_models(context: Context) -> Iterator[Finding]:
    """HF340: the reference of a KL or a preference is not the policy that learns."""
    program = context.program
    makers, reported = Makers(context), set[object]()
    for node, column in _references(context) if not program.graph.misuses else ():
        maker = makers.maker(column)
        for update in updates_after(program, node) if maker is not None else ():
            if maker is None or not _is_itself(program, maker, update) or maker.span in reported:
                continue
            kind = "teacher" if _is_teacher(column) else "reference"
            if kind == "teacher" and _reads_other_tokens(program, maker):
                continue
            reported.add(maker.span)
            compares = argument_span(node.span, signature_of(node), column.port)
            yield Finding(
                "HF340",
                f"'{node.label}' uses '{maker.label}', whose weights '{update.label}' trains, as a {kind}: the policy "
                "is compared with itself",
                Label(maker.span, f"log-probs of '{maker.role}' as it is in this step"),
                (Label(compares, f"used as those of a {kind}"), Label(update.span, "trains the same weights")),
                notes=(TAUGHT_BY_ITSELF if kind == "teacher" else ITSELF,),
            )


def references_are_kept_apart(context: Context) -> Iterator[Finding]:
    """HF340: what a role that learns keeps as a reference is another model than the one that learns."""
    program, reported = context.program, set[Span]()
    for node in training_calls(program) if not program.graph.misuses else ():
        role = program.role_class(node.role)
        code = code_of(role)
        learned = learned_attributes(code)
        used = {name for function in code.reached(node.method) for name in function.names}
        for shared in shared_models(code, role) if code.is_whole and not _may_exchange_weights(code) else ():
            pair = {shared.attribute, shared.other}
            references = [name for name in pair if NAMED.fullmatch(name.strip("_")) and "teacher" not in name]
            place = span_of(definition_span(shared.function.body).file, shared.place)
            if len(references) != 1 or learned.isdisjoint(pair) or not pair <= used or place in reported:
                continue
            [reference], [model] = references, pair.difference(references)
            reported.add(place)
            yield Finding(
                "HF340",
                f"'{node.label}' trains self.{model}, and self.{reference} is the same model: the policy is compared "
                "with itself",
                Label(place, "no copy"),
                (Label(node.span, "trains it"),),
                notes=(f"keep a copy: copy.deepcopy(self.{model}).eval().requires_grad_(False)",),
            )


EXCHANGES = re.compile(r".*(adapter|copy_|ema|functional_call|load_state_dict|lora|peft|swap).*")
"""The names of what may give one model the weights of another, or leave its adapter out."""


def _may_exchange_weights(code: RoleCode) -> bool:
    """Whether code may compute with other weights of a model, other than in its checkpoints."""
    names = (name for f in code.all_functions if f.definition.name not in ("load_state", "state") for name in f.names)
    return any(map(EXCHANGES.fullmatch, names))


ITSELF = (
    "the KL is 0 before the first update of a step, and nothing keeps the policy near its start: place a reference "
    "with the weights that it starts from, or, with an adapter, use base_log_probs"
)
"""The effect of a policy that is its own reference."""

TAUGHT_BY_ITSELF = (
    "teacher and student give every token the same probability, so there is nothing to learn: place a role with the "
    "weights of the teacher, such as a Reference"
)
"""The effect of a policy that is its own teacher."""

NAMED = re.compile(r"(ref|reference|teacher)(_.*)?")
"""The names of ports and columns that are meant as a reference or a teacher."""


def _is_teacher(column: RowColumn) -> bool:
    """Whether a column is meant as a teacher's, by its name or that of its port."""
    return any(NAMED.fullmatch(name) and name.startswith("teacher") for name in (column.port, column.ref.column or ""))


def _reads_other_tokens(program: Program, maker: Node) -> bool:
    """Whether a call reads tokens that a function has changed, such as a prompt with a hint: it teaches by these."""
    tokens = (column for column in program.origins.columns(maker.id) if is_token_column(column.spec))
    stored = (stored_column(program.graph, column.ref) for column in tokens)
    return any(isinstance(op, Ref) and isinstance(program.graph.nodes[op.node].op, FunctionCall) for op in stored)


def _references(context: Context) -> Iterator[tuple[Node, RowColumn]]:
    """The calls that compare with a reference, and its column of log-probs."""
    for node, _ in context.program.graph.bodies:
        updates = trains(context.program, node)
        if (updates and _needs_none(node)) or ("kl", Constant(0.0)) in node.arguments:
            continue
        columns = [c for c in context.program.origins.columns(node.id) if is_float_column(c.spec)]
        beside = Counter(column.port for column in columns)
        for column in columns:
            name = column.ref.column or ""
            by_column = updates and NAMED.fullmatch(name) and beside[column.port] > 1
            if column.inner and (by_column or NAMED.fullmatch(column.port)):
                yield node, column


def _needs_none(update: Node) -> bool:
    """Whether the loss of an update declares that it has no KL to a reference."""
    values = (operand.value for _, operand in update.arguments if isinstance(operand, Constant))
    return any(getattr(value, "needs_reference", None) is False for value in values)


def _is_itself(program: Program, maker: Node, update: Node) -> bool:
    """Whether a call reads the state that an update writes, of its role or of the engine that samples for it."""
    engines = {call.role for call in sampling_calls(program, update) if isinstance(call.op, RoleCall)}
    is_copy = maker.role in engines and update.role in linked_roles(role_links(program), maker.role)
    read_states = {effect.state for effect in effects(maker, "reads")}
    return (maker.role == update.role or is_copy) and any(
        effect.state in read_states for effect in effects(update, "writes")
    )


def updates_without_reference(graph: Graph, *, of_inputs: bool = False) -> Iterator[Node]:
    """The updates with such a loss whose record certainly lacks the log-probs; ``of_inputs``: as do inputs."""
    for update in filter(declares_training, graph.calls):
        columns = (stored_column(graph, Ref(ref.node, REFERENCE_COLUMN)) for ref in update.refs if ref.column is None)
        if kl(update) and any(col == Constant(None) or (of_inputs and _is_input(graph, col)) for col in columns):
            yield update


def _is_input(graph: Graph, column: Operand) -> bool:
    return isinstance(column, Ref) and isinstance(graph.nodes[column.node].op, Input)
