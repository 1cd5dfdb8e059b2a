"""Collects: does a collect preserve the value that the bodies return, and do lists have one entry per rank?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import PlacedMethod, signature_of
from hfdsl.check.repair.alternatives import registered
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import argument_span
from hfdsl.errors import ProtocolError
from hfdsl.graph.program import Constant, Node, Operand, Ref
from hfdsl.graph.signatures import StaticType
from hfdsl.graph.values import ListValue, RecordValue
from hfdsl.protocols.mesh import AXES, axis_size
from hfdsl.protocols.placement import PIPELINE, At, AxisPlacement, Partial, Replicated, Sharded, default_leaves
from hfdsl.protocols.predefined import PREDEFINED
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import Registration
from hfdsl.types.columns import ColumnSpec, ObjSpec


def _fault(code: str, axis: str, output: AxisPlacement) -> str:
    """Describe the effect of a collect on a value with this placement, the end of a message."""
    match code, output:
        case "HF403", Sharded():
            return "which returns one part of the value and loses the others"
        case "HF403", Partial(op):
            return f"which returns one term of a {op} instead of the whole"
        case "HF403", _:
            return "but the values there have nothing to do with one another"
        case "HF404", At(-1) if axis in PIPELINE:
            return "but a pipeline leaves the output on its last stage"
        case "HF404", _:
            return f"but the body leaves the output at {output}"
        case "HF405", _:
            return "which joins equal copies, so every row appears several times"
        case _:
            return f"which joins rows, but the body leaves its output split along another dim: {output}"


def _in_the_body(axis: str, output: AxisPlacement) -> str:
    """The collective by which the body can first make its value collectable; empty if there is none."""
    peers = {"rank": "world"}.get(axis, axis)
    if peers not in (*AXES, "world"):
        return ""
    match output:
        case Sharded(dim) if dim:
            return f"gather it in the body: self.axis({peers!r}).all_gather(...)"
        case Partial(op):
            return f"reduce it in the body: self.axis({peers!r}).all_reduce(..., {op!r})"
    return ""


def _other_collects(
    body: Callable[..., Any],
    registration: Registration,
    protocol: Protocol,
    axis: str,
    size: int,
    output: AxisPlacement,
) -> Iterator[Suggestion]:
    """The collect that keeps a value that lies so along an axis of this size."""
    picks: dict[str, Any] = dict(protocol.picks)
    match output:
        case Sharded(0):
            picks[axis] = "join"
        case At(-1):
            picks[axis] = "last"
        case At(index) if -size <= index < size:
            picks[axis] = index % size
        case Replicated():
            picks[axis] = "first"
    variant = replace(protocol, collect=picks)
    if variant == protocol:
        return
    same = (
        f", as Dispatch.{name} does"
        for name, protocol_type in PREDEFINED.items()
        if replace(protocol_type, name=protocol.name) == variant
    )
    words = f"collect {axis}={picks[axis]!r}{next(same, '')}"
    change = partial(registered, body, replace(registration, dispatch_mode=variant))
    yield Suggestion((Change(words, change),))


NOTHING = (StaticType(None), StaticType(type(None)))


def values_are_kept(context: Context) -> Iterator[Finding]:
    """A collect takes all of what the bodies of the ranks left of a value, once, and in order."""
    for node, method in context.program.placed_calls:
        if isinstance(method.misfit, ProtocolError) or not method.collect_faults:
            continue  # the rule on protocols and meshes reports the former
        value = context.program.inference.values[node.id]
        value = value.inner if isinstance(value, ListValue) else value
        rows = isinstance(value, (ColumnSpec, ObjSpec)) or (isinstance(value, RecordValue) and value.rows is not None)
        for axis, code in method.collect_faults.items() if rows else ():
            yield _lost_rows(context, node, method, axis, code)


def _lost_rows(context: Context, node: Node, method: PlacedMethod, axis: str, code: str) -> Finding:
    protocol, placement, leaves = method.protocol, method.placement, dict(method.registration.leaves)
    output = {**default_leaves(protocol), **leaves}[axis]
    pick, size = dict(protocol.picks)[axis], axis_size(placement.mesh, axis)
    declared = f"registered with {protocol.name}" + (f", leaves {axis} as {output}" if axis in leaves else "")
    finding = Finding(
        code,
        f"'{node.label}': protocol {protocol.name} collects {axis}={pick!r}, {_fault(code, axis, output)}",
        Label(node.span, f"{size} coordinates along {axis}"),
        (Label(placement.span, f"placed on {placement.mesh}"), Label(method.signature.span, declared)),
    )
    suggestions = _other_collects(method.signature.body, method.registration, protocol, axis, size, output)
    return with_suggestions(context, finding, suggestions, _in_the_body(axis, output))


def lists_fit_ranks(context: Context) -> Iterator[Finding]:
    """A list has one value for each rank that takes one."""
    for node, method in context.program.placed_calls:
        placement = method.placement
        if method.protocol.takes != "per_rank":
            continue
        for port, operand in node.arguments:
            if (node.id, port) in context.program.inference.misfits:
                continue  # another value is meant
            length, producers = _length(context, operand)
            if length in (None, placement.mesh.world_size):
                continue
            yield Finding(
                "HF402" if producers else "HF411",
                f"port '{port}' of '{node.label}' gets a list of {length}, and needs one value for "
                f"each of {placement.mesh.world_size} ranks",
                Label(argument_span(node.span, method.signature, port), f"a list of {length}"),
                (Label(placement.span, f"placed on {placement.mesh}"), *producers),
            )


def lists_are_not_joined(context: Context) -> Iterator[Finding]:
    """A call on per-rank values does not join its outputs: no dim holds the number of rows of all ranks together."""
    for node, method in context.program.placed_calls:
        placement, protocol = method.placement, method.protocol
        if protocol.takes == "whole" or not protocol.joins or method.signature.returns in NOTHING:
            continue
        with suppress(ProtocolError):  # the rule on protocols and meshes reports that
            if (ranks := protocol.collected_count(placement.mesh)) > 1:
                yield Finding(
                    "HF413",
                    f"'{node.label}' takes a value for each rank, and {protocol} joins what {ranks} ranks return: "
                    "no dim says how many rows that is",
                    Label(node.span),
                    (Label(placement.span, f"placed on {placement.mesh}"),),
                    notes=('with gives="per_rank" the caller gets a list, which a function can join',),
                )


def _length(context: Context, operand: Operand) -> tuple[int | None, tuple[Label, ...]]:
    """The number of values in a list, if known, and the call that produces them."""
    if isinstance(operand, Constant):
        return len(operand.value), ()
    if not isinstance(operand, Ref):
        return None, ()
    producer = context.program.graph.nodes[operand.node]
    placement, signature = context.program.placement(producer), signature_of(producer)
    if placement is None or signature is None or signature.protocol is None or signature.protocol.joins:
        return None, ()
    label = Label(placement.span, f"'{producer.label}' returns one value for each rank of {placement.mesh}")
    with suppress(ProtocolError):  # reported by the rule on placements
        return signature.protocol.collected_count(placement.mesh), (label,)
    return None, ()
