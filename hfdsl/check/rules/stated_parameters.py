"""Stated parameters: does a role state each parameter of a state once, and any where it needs them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.layouts import Parameter, Replicas
from hfdsl.types.numbers import brief


def parameters_are_stated_once(sync: WeightSync) -> Iterator[Finding]:
    """HF739: both sides of a sync state parameters, none of them twice, and not an empty list of them."""
    for side, other_side in ((sync.source, sync.target), (sync.target, sync.source)):
        entries = side.entries
        problem = None if entries is None else _problem(side, other_side, entries)
        if problem is not None:
            role = side.placement.role
            yield Finding(
                "HF739",
                f"'{side.role}' states {problem}",
                Label(side.placement.span, f"'{side.role}' is placed here"),
                (Label(definition_span(role.state_parameters), f"states the parameters of '{sync.state}'"),),
            )


def _problem(side: SyncSide, other_side: SyncSide, entries: Sequence[object]) -> str | None:
    state = side.effect.state
    other = next((entry for entry in entries if not isinstance(entry, Parameter)), None)
    if other is not None:
        return f"{brief(other)} as a parameter of '{state}', which is not an hfdsl.protocols.layouts.Parameter"
    parameters = [entry for entry in entries if isinstance(entry, Parameter)]
    name, count = next(iter(Counter(parameter.name for parameter in parameters).most_common(1)), ("", 0))
    if count > 1:
        shapes = dict.fromkeys(str(parameter.shape) for parameter in parameters if parameter.name == name)
        return f"the parameter {name!r} of '{state}' {count} times, as {' and '.join(shapes)}"
    if not parameters and other_side.parameters:
        return f"an empty list of parameters of '{state}', but '{other_side.role}' states {len(other_side.parameters)}"
    if not parameters and side.effect.layout not in (None, Replicas()) and not callable(side.effect.layout):
        return f"an empty list of parameters of '{state}', but declares a layout of them"
    return None
