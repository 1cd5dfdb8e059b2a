"""Overrides: does a placed class declare the methods that are called as the dataflow's own class does?

A plan follows the declaration that the dataflow calls: its ports, its protocol and its row dependence. A derived class
may accept more and return more, never less, and a different protocol that it registers would have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import override_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import argument_span, port_span
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.fits import fits_type
from hfdsl.graph.program import Constant, Node, RoleCall
from hfdsl.graph.signatures import Signature, StaticType
from hfdsl.graph.spans import Span
from hfdsl.protocols.dispatch import Functions
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import Registration
from hfdsl.types.numbers import brief
from hfdsl.types.rows import Grouped, IndependentRows, RowDependence, WholeRows


def overrides_agree(context: Context) -> Iterator[Finding]:
    """A placed class declares every method that is called as the dataflow's own class does, or more widely."""
    program, roles = context.program, context.program.graph.roles
    overrides: dict[tuple[str, Signature], Signature | None] = {}
    reported: set[tuple[str, str, str]] = set()
    for node in program.graph.nodes:
        if not isinstance(node.op, RoleCall):
            continue
        called, role = node.op.signature, node.op.role
        placement, placed = program.placement(node), program.role_class(role)
        if (role, called) not in overrides:
            overrides[role, called] = override_of(called, placed) if issubclass(placed, roles[role]) else None
        if (override := overrides[role, called]) is None:
            continue
        folds = placement is not None and placement.mesh.micro_dp_size > 1
        for difference in _differences(called, override, node, folds):
            if (role, called.name, difference.text) in reported:
                continue
            reported.add((role, called.name, difference.text))
            finding = Finding(
                "HF541",
                f"role '{role}' is placed as {placed.__name__}, whose '{called.name}' {difference.text}",
                Label(difference.override),
                (
                    Label(difference.called, difference.declared),
                    Label(node.span, "called here"),
                    *([Label(placement.span, "placed here")] if placement is not None else []),
                ),
            )
            changes = () if placement is None else _declaration_fixes(role, placement, called, override, difference)
            yield with_suggestions(context, finding, changes, difference.advice, most=1)


def _declaration_fixes(
    role: str, placement: Placement[Any], called: Signature, override: Signature, difference: _Difference
) -> Iterator[Suggestion]:
    from hfdsl.check.repair import declarations  # late: most programs need none

    if difference.mends == PROTOCOL:
        yield from declarations.registered_as_called(role, placement, called, override)
    elif difference.mends:
        yield from declarations.taking_as_called(role, placement, called, override, difference.mends)


PROTOCOL = "protocol of the method"


def numbers_fit_overrides(context: Context) -> Iterator[Finding]:
    """The numbers of a call are within the bounds that the method of the placed class declares."""
    for node, called in context.program.graph.bodies:
        override, placement = context.program.override(node), context.program.placement(node)
        if override is None or placement is None:
            continue
        for name, operand in node.arguments:
            own, port = override.port(name), called.port(name)
            if own is None or own.bounds is None or port is None or not isinstance(operand, Constant):
                continue
            is_reported = port.bounds is not None and port.bounds.refuses(operand.value)  # reported as it is traced
            if own.bounds.refuses(operand.value) and not is_reported:
                placed = placement.role.__name__
                yield Finding(
                    "HF940",
                    f"'{name}' of '{node.label}' must be {own.bounds} in {placed}, and is {brief(operand.value)}",
                    Label(argument_span(node.span, called, name)),
                    (Label(port_span(override, name), "declared here"),),
                    notes=(own.bounds.help,) if own.bounds.help else (),
                )


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference of an override: its text, its place, and the declaration of the called method there."""

    text: str
    override: Span
    called: Span
    declared: str
    advice: str
    mends: str = ""  # what of the called method mends it: a port, or its protocol


def _differences(called: Signature, override: Signature, node: Node, folds: bool) -> Iterator[_Difference]:
    yield from _registered(called, override, folds)
    wired = {name for name, _ in node.arguments}
    for port in called.ports:
        new_port, mends = override.port(port.name), ""
        where = port_span(called, port.name)
        if new_port is None:
            text, place = f"has no port '{port.name}'", override.span
        elif not fits_type(new_port.type, port.type):
            text, place = f"takes {new_port.type} as '{port.name}'", port_span(override, port.name)
            mends = port.name
        elif new_port.required and port.name not in wired:
            text, place = f"needs '{port.name}', which is not wired", port_span(override, port.name)
        else:
            continue
        yield _Difference(
            text=text,
            override=place,
            called=where,
            declared=f"the dataflow is written for {port.type}",
            advice=_ports_advice(called),
            mends=mends,
        )
    for new_port in override.ports:
        if new_port.required and called.port(new_port.name) is None:
            text = f"needs '{new_port.name}', which the called method does not have"
            yield _Difference(
                text=text,
                override=port_span(override, new_port.name),
                called=called.span,
                declared="the called method",
                advice=_ports_advice(called),
            )
    if called.returns != StaticType(type(None)) and not fits_type(called.returns, override.returns):
        yield _Difference(
            text=f"returns {override.returns}",
            override=override.span,
            called=called.span,
            declared=f"the dataflow is written for {called.returns}",
            advice=f"return {called.returns}, or a class derived from it",
        )


def _ports_advice(called: Signature) -> str:
    return f"take what '{called.name}' takes there, or a base class; further ports need a default"


def _registered(called: Signature, override: Signature, folds: bool) -> Iterator[_Difference]:
    first, second = called.registration, override.registration
    if first is None or second is None:
        return
    advice = f"register it as the class above it: {_words(first)}"
    meanings = [protocol.meaning if folds else _unfolded(protocol.meaning) for protocol in (first, second)]
    if meanings[0] != meanings[1] or first.execute_mode != second.execute_mode:
        text = f"is registered with {_words(second)}"
        yield _Difference(
            text=text,
            override=override.span,
            called=called.span,
            declared=f"called as registered with {_words(first)}",
            advice=advice,
            mends=PROTOCOL,
        )
    elif first.leaves != second.leaves:
        text = "leaves its output otherwise on the mesh"
        yield _Difference(
            text=text,
            override=override.span,
            called=called.span,
            declared="leaves= of the called method",
            advice=advice,
        )
    elif not _covered(second.rows, first.rows):
        text = f"needs rows={second.rows}"
        advice = f"declare it in the base class as well: rows={second.rows}"
        yield _Difference(
            text=text,
            override=override.span,
            called=called.span,
            declared=f"called with rows={first.rows}",
            advice=advice,
        )


def _unfolded(meaning: Protocol | Functions) -> object:
    """A meaning on a mesh that does not fold for generation, where its axes are the training axes."""
    if not isinstance(meaning, Protocol):
        return meaning
    split = tuple(axis.removeprefix("gen_") for axis in meaning.split if axis != "micro_dp")
    picks = {axis.removeprefix("gen_"): pick for axis, pick in meaning.picks if axis != "micro_dp"}
    return split, picks, meaning.gives, meaning.takes


def _words(registration: Registration) -> str:
    mode = registration.execute_mode.name
    return registration.name if mode == "ALL" else f"{registration.name} and Execute.{mode}"


def _covered(needed: RowDependence, promised: RowDependence) -> bool:
    """Whether rows that stay together as promised stay together as needed."""
    if isinstance(needed, IndependentRows) or isinstance(promised, WholeRows):
        return True
    return isinstance(needed, Grouped) and isinstance(promised, Grouped) and promised.n % needed.n == 0
