"""Presence: is an optional column present where it is needed?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.sizes.requirements import holds, names
from hfdsl.check.sources import return_span, source_text, tested_for_none
from hfdsl.errors import DefinitionError
from hfdsl.graph.program import Constant, Input, Node, Output, Pack, Present, Ref
from hfdsl.graph.signatures import VALUE, RecordType, Signature, optional_columns
from hfdsl.graph.type_sizes import dims_of
from hfdsl.graph.values import Mismatch
from hfdsl.protocols.conditions import Provision, provisions_of
from hfdsl.types.batches import schema
from hfdsl.types.columns import Column, ColumnSpec, Obj, ObjSpec
from hfdsl.types.dims import Answer
from hfdsl.types.numbers import brief
from hfdsl.types.similar_names import closest


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether a column is present: the answer, the column in words, and the places that decide it."""

    answer: Answer
    subject: str = ""
    because: str = ""
    places: tuple[Label, ...] = ()
    declared: bool = False  # whether its producer declares when it is present


def presence(context: Context, ref: Ref) -> Presence:
    """Whether a column is present, as far as its producer declares it; derived columns are traced to it."""
    node = context.program.graph.nodes[ref.node]
    spec = context.program.inference.operand(ref)
    if not isinstance(spec, (ColumnSpec, ObjSpec)) or not spec.optional:
        return Presence(Answer.PROVED)
    subject = f"column '{ref.column}' of '{node.label}'" if ref.column else f"the result of '{node.label}'"
    signature = signature_of(node)
    if signature is not None:
        return _provided(context, node, signature, ref.column or VALUE, subject)
    if isinstance(node.op, Input):
        return Presence(Answer.UNKNOWN)
    source = node.source(ref.column or VALUE)
    if isinstance(source, Ref):
        return presence(context, source)
    if source == Constant(None):
        return Presence(Answer.REFUTED, subject, "built without it", (Label(node.span, "without this column"),))
    return Presence(Answer.PROVED)


def _provided(context: Context, node: Node, signature: Signature, column: str, subject: str) -> Presence:
    provision = next((p for p in provisions_of(signature.body) if column in (p.columns or (VALUE,))), None)
    if provision is None:
        return Presence(Answer.UNKNOWN)
    places = [Label(signature.span, f"declared {provision}")]
    if provision.when is None:
        return Presence(Answer.PROVED, places=tuple(places))
    try:
        answer, _ = holds(provision.when, context.scope_at(node, signature))
    except DefinitionError:
        return Presence(Answer.UNKNOWN)  # reported by the rule on what methods provide
    placement, fields = context.program.placement(node), context.program.config(node) or {}
    settings = ", ".join(f"{name} = {brief(fields[name])}" for name in names(provision.when) if name in fields)
    if placement is not None and settings:
        places.append(Label(placement.span, f"placed with {settings}"))
    because = f"it is present when {provision.when}" + (f", and {settings}" if settings else "")
    return Presence(answer, subject, because, tuple(places), declared=True)


def provided(context: Context) -> dict[int, dict[str, bool]]:
    """For each call, which optional columns of its result are present or absent, as far as that is known."""
    presence: dict[int, dict[str, bool]] = {}
    for node, signature in context.program.graph.bodies:
        columns = optional_columns(signature.returns)
        answers = {name: _provided(context, node, signature, name, "").answer for name in columns}
        presence[node.id] = {
            n: answer is Answer.PROVED for n, answer in answers.items() if answer is not Answer.UNKNOWN
        }
    return presence


def certain_columns(context: Context) -> Iterator[Finding]:
    """A column that ``hf.present`` asserts is not known to be absent."""
    for node in context.program.graph.nodes:
        ref = node.batch if isinstance(node.op, Present) else None
        if ref is None:
            continue
        column = presence(context, ref)
        if column.answer is Answer.REFUTED:
            message = f"hf.present: {column.subject} is absent: {column.because}"
            yield Finding("HF231", message, Label(node.span, "needs it"), column.places)
        elif column.answer is Answer.UNKNOWN and column.declared and context.program.deployment is not None:
            message = f"cannot decide before launch whether {column.subject} is present: {column.because}"
            yield Finding("HF319", message, Label(node.span, "needs it"), column.places)


def absent(context: Context, m: Mismatch, wired: str, primary: Any) -> tuple[str, str, tuple[str, ...]]:
    """The code, the message and advice for a column that may be absent at a port that needs it."""
    column = dict(m.detail).get("column")
    if column is not None:
        producer, needed = str(m.actual).partition(" ")[0], m.formal
        return "HF231", f"{wired}: column '{column}' of {producer} may be absent, but {needed} always has it", ()
    port = "column" if isinstance(context.program.graph.nodes[m.node].op, Pack) else "port"
    source = presence(context, m.source) if m.source else Presence(Answer.UNKNOWN)
    if source.answer is Answer.REFUTED:
        return "HF231", f"{wired}: {source.subject} is absent: {source.because}", ()
    text = source_text(primary) if primary != context.program.graph.nodes[m.node].span else None
    if text is None and port == "column":
        advice = (
            f"build the record from its columns, {m.port}=hf.present(...): the column is then tested when it is read"
        )
    else:
        advice = f"write hf.present({text or '...'}) if it is always present; or declare the {port} {m.formal} | None"
    return "HF231", f"{wired}: it may be absent", (advice,)


def provisions_are_right(context: Context) -> Iterator[Finding]:
    """``hf.provides`` names optional columns of the result, and fields of the role's config."""
    for node, signature in context.program.graph.bodies:
        for provision in provisions_of(signature.body):
            yield from _wrong_columns(node, signature, provision)
            yield from _wrong_names(context, node, signature, provision)


def _wrong_columns(node: Node, signature: Signature, provision: Provision) -> Iterator[Finding]:
    kind = signature.returns
    fields = schema(kind.record).fields if isinstance(kind, RecordType) else ()
    optional = optional_columns(kind)
    for name in provision.columns or (VALUE,):
        if name in optional or (name in fields and provision.when is None):
            continue
        lack = f"'{kind}' has no optional column '{name}'" if name else f"its result {kind} is not an optional column"
        message = f"'{node.label}' is declared {provision}, but {lack}; {closest(name, optional)}"
        yield Finding("HF201", message, Label(signature.span))


def _wrong_names(context: Context, node: Node, signature: Signature, provision: Provision) -> Iterator[Finding]:
    placement, built = context.program.placement(node), context.program.config(node) is not None
    if provision.when is None or not (
        built or set(names(provision.when)) <= {dim.__name__ for dim in dims_of(signature)}
    ):
        return
    try:
        holds(provision.when, context.scope_at(node, signature))
    except DefinitionError as error:
        placed = (Label(placement.span, "placed here"),) if placement and error.code == "HF323" else ()
        yield Finding(
            error.code, f"'{node.label}' is declared {provision}: {error.message}", Label(signature.span), placed
        )


def tests_of_columns(context: Context) -> Iterator[Finding]:
    """``rollout.values is None`` asks a symbolic value, which always looks present during a trace."""
    for span, expression, spec in context.program.graph.optional_reads:
        operator = tested_for_none(span)
        if operator is not None:
            text = source_text(span) or expression
            yield Finding(
                "HF207",
                f"'{operator} None' asks whether '{expression}' is present, which is not known before the program runs",
                Label(span),
                notes=(
                    f"write hf.present({text}) if it is always present; or wire it to a port {spec}, and test there",
                ),
            )


def returned_columns(context: Context) -> Iterator[Finding]:
    """A result that is annotated as a column is a column."""
    graph = context.program.graph
    for spec in _may_lack(context, graph.returns, graph.output):
        yield Finding(
            "HF231",
            f"'{graph.name}' is annotated to return a column and returns {spec}: it may be absent",
            Label(return_span(graph.span)),
            notes=("return hf.present(...) of it if it is always present; or annotate it with | None",),
        )


def _may_lack(context: Context, annotation: Any, output: Output) -> Iterator[ColumnSpec | ObjSpec]:
    origin, inner, value = get_origin(annotation), get_args(annotation), output.value
    if isinstance(value, (tuple, dict)):
        parts = value if isinstance(value, tuple) else tuple(value.values())
        kinds = [kind for kind in inner if kind is not ...]
        if origin is not tuple or ... in inner:  # list[T], dict[K, T], tuple[T, ...]
            kinds = kinds[-1:] * len(parts)
        for kind, part in zip(kinds, parts, strict=False):  # a different number is reported by another rule
            yield from _may_lack(context, kind, part)
    if isinstance(origin, type) and issubclass(origin, (Column, Obj)) and isinstance(value, Ref):
        spec = context.program.inference.operand(value)
        if isinstance(spec, (ColumnSpec, ObjSpec)) and spec.optional:
            yield spec
