"""Binding: match the arguments of a call to the ports of its signature, and record what does not fit.

In ``actor.update(batch, advantage=values)`` of ``update(self, batch, advantages)``, ``batch`` is bound, ``advantage``
is noted as no port, and ``advantages`` is not noted as missing: the misspelled port is why.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from typing import Any

from hfdsl.graph.active import Tracing
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.signatures import Port, Signature, wired_ports
from hfdsl.types.bounds import Within
from hfdsl.types.numbers import brief, is_count
from hfdsl.types.rows import GroupedBy


def bind(
    tracer: Tracing, signature: Signature, label: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Match arguments to ports, recording every misfit instead of raising on the first."""
    names = wired_ports(signature, len(args), tuple(kwargs))
    if names is not None:
        bound = dict(zip(names, chain(args, kwargs.values()), strict=True))
    else:
        bound = _fitting(tracer, signature, label, args, kwargs)
    if signature.port_names.bounded:
        _check_bounds(tracer, signature, label, bound)
    return bound


def out_of_bounds(bounds: Within | None, value: Any, prefix: str = "is") -> tuple[str, str, str] | None:
    """Describe a number outside of its bounds: the bounds, the number and the advice; None for any other value."""
    if bounds is None or not bounds.refuses(value):
        return None
    return str(bounds), f"{prefix} {brief(value)}", bounds.help


def _fitting(
    tracer: Tracing, signature: Signature, label: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments that fit a port; each of the others is recorded."""
    ports = signature.port_names
    names, positional = ports.every, ports.positional
    bound = dict(zip(positional, args, strict=False))
    if len(args) > len(positional):
        spare = [name for name in ports.keyword_only if name not in kwargs]
        if len(args) > len(positional) + len(spare):
            tracer.record_misuse(MisuseKind.TOO_MANY, label, str(len(args)), names, signature=signature)
        else:
            for name, value in zip(spare, args[len(positional) :], strict=False):
                tracer.record_misuse(MisuseKind.KEYWORD_ONLY, label, name, names, signature=signature)
                bound[name] = value
    stray = False
    for name, value in kwargs.items():
        if name in bound:
            tracer.record_misuse(MisuseKind.TWICE, label, name, names, signature=signature)
        elif name not in names:
            stray = True
            tracer.record_misuse(MisuseKind.NO_PORT, label, name, names, signature=signature)
        else:
            bound[name] = value
    missing = [name for name in ports.required if name not in bound]
    if missing and not stray:  # a misspelled port is the cause of the missing one
        tracer.record_misuse(MisuseKind.MISSING_PORT, label, ", ".join(missing), names, signature=signature)
    return bound


def _check_bounds(tracer: Tracing, signature: Signature, label: str, bound: Mapping[str, Any]) -> None:
    """Note the numbers that are outside of what their ports declare, and defaults that are."""
    for port in signature.port_names.bounded:
        if port.name in bound:
            facts = out_of_bounds(port.bounds, bound[port.name])
        else:
            default = inspect.signature(signature.body).parameters[port.name].default
            facts = out_of_bounds(port.bounds, default, "its default is")
        group = _is_group(signature, port)
        if facts is not None and not (group and not is_count(bound.get(port.name))):  # HF304
            kind = MisuseKind.GROUP if group else MisuseKind.BOUNDS
            tracer.record_misuse(kind, label, port.name, facts, signature=signature)


def _is_group(signature: Signature, port: Port) -> bool:
    """Whether a port is the group size of a function."""
    return isinstance(signature.rows, GroupedBy) and signature.rows.parameter == port.name
