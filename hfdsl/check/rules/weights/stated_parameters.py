"""Stated parameters: does a role state the parameters of its own states, each once, and any where it needs them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hfdsl.check.constructor_types import parameters as constructor_parameters
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync, overrides
from hfdsl.errors import HfError
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.layouts import Parameter, Replicas
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import effects_of
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


def parameters_are_of_own_states(context: Context) -> Iterator[Finding]:
    """HF739: ``state_parameters`` of a placed role returns parameters by the states that its methods declare.

    Whatever else it does would count as a role that does not know its parameters.
    """
    for name, place in context.program.placements.items():
        problem = stated_problem(place)
        if problem is not None:
            yield Finding(
                "HF739",
                f"'state_parameters' of '{name}' {problem}",
                Label(place.span, f"'{name}' is placed here"),
                (Label(definition_span(place.role.state_parameters), "states parameters"),),
            )


def stated_problem(place: Placement[Any]) -> str | None:
    """The mistake of the ``state_parameters`` of a placed role, apart from the parameters themselves."""
    role: Any = place.role
    if not hasattr(role, "state_parameters") or overrides(role, "__init__", stated_by="state_parameters"):
        return None
    try:
        constructor_parameters(role).bind(*place.args, **place.kwargs)
    except TypeError:
        return None  # HF516
    try:
        fact = role.state_parameters(*place.args, **place.kwargs)
    except HfError as error:
        return f"raises an error: {error.message}"
    except Exception as error:  # noqa: BLE001  # a user's function
        return f"raises {type(error).__name__}: {error}"
    if not isinstance(fact, Mapping):
        return f"returns {brief(fact)}, expected a dict with a list of parameters for each state"
    for state, entries in fact.items():
        if not isinstance(entries, Iterable):
            return f"returns {brief(entries)} for '{state}', expected a list of parameters"
    return _other_state(role, [str(state) for state in fact])


def _other_state(role: type, stated: Sequence[str]) -> str | None:
    """A state that no method declares, where one that a method exports or loads has no parameters."""
    effects = [effect for method in registered_methods(role) for effect in effects_of(getattr(role, method))]
    unknown = [state for state in stated if state not in {effect.state for effect in effects}]
    lacking = [effect for effect in effects if effect.kind in ("exports", "loads") and effect.state not in stated]
    if not unknown or not lacking:
        return None
    kind, state = lacking[0].kind, lacking[0].state
    return f"names the state '{unknown[0]}', which no method of {role.__name__} has; a method {kind} '{state}'"
