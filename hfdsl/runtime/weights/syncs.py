"""Scheduled syncs in a rank's calls: the parts that it keeps of its exports, and its loads of arriving weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hfdsl.deploy.weight_syncs import overrides
from hfdsl.errors import HfWarning
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader
from hfdsl.plan.segments import dependencies
from hfdsl.plan.transports import exchanges
from hfdsl.protocols.parameters import FLOATS, ITEM_BYTES
from hfdsl.runtime.rank.role_errors import sending

if TYPE_CHECKING:
    from hfdsl.runtime.weights.exchange import ArrivingWeights


def exchanging(plan: Plan) -> frozenset[int]:
    """The steps whose exports go to their readers bucket by bucket."""
    if not any(step.parts for step in plan.steps):
        return frozenset()
    loads = exchanges(plan, dependencies(plan))
    return frozenset(sync.export for step in plan.steps for sync in step.parts if sync.load in loads)


def exported_columns(step: Step, rank: int, columns: Mapping[str, Any], *, exchanged: bool) -> dict[str, Any]:
    """The parts of a step's export for each reader of this rank: copies, unless they are exchanged."""
    from hfdsl.runtime.weights.exchange import exported
    from hfdsl.runtime.weights.resharding import exported_parts

    index, value = step.ranks.index(rank), columns[VALUE]
    if not index and ("seen", index) not in step.parts[0].kept:
        step.parts[0].kept["seen", index] = True
        _warn_of_unsent(step, value)
        _warn_of_rounded(step, value)
    with sending(step.label, rank):
        parts = exported if exchanged else exported_parts
        return dict[str, Any](parts(step.parts, index, value, step.label))


def _warn_of_unsent(step: Step, value: Any) -> None:
    """HF731: weights that the first rank exports and no role states, such as buffers, which are not sent."""
    if not isinstance(value, Mapping):
        return
    stated = set[str]()
    for sync in step.parts:
        names = {parameter.name for parameter in sync.schedule.parameters} | sync.stated
        stated |= names.union(map(sync.source_layout.stored_as, names))
    stored_as = [sync.source_layout.stored_as for sync in step.parts]
    unsent = [str(name) for name in value if stated.isdisjoint((name, *(stored(str(name)) for stored in stored_as)))]
    if unsent:
        more = f" and {len(unsent) - 1} more" if len(unsent) > 1 else ""
        state = step.parts[0].state
        problem = f"'{step.label}' returned {unsent[0]!r}{more}, which no role states as a parameter of '{state}'"
        warnings.warn(HfWarning("HF731", f"{problem}: a sync in parts sends nothing else"), stacklevel=2)


def _warn_of_rounded(step: Step, value: Any) -> None:
    """HF733: weights that a sync rounds to a dtype that the user did not write."""
    from hfdsl.runtime.weights.held_parts import ComputedPart, pieces_of

    pieces, rounded = pieces_of(value) or {}, dict[str, tuple[str, str]]()
    for sync in step.parts:
        for parameter in sync.schedule.parameters:
            names = parameter.name, sync.source_layout.stored_as(parameter.name)
            piece = next((pieces[name] for name in names if name in pieces), None)
            if piece is None or parameter.name not in sync.defaulted:
                continue
            dtype = piece.dtype if isinstance(piece, ComputedPart) else piece.tensor.dtype
            held = str(dtype).removeprefix("torch.")
            if held in FLOATS and ITEM_BYTES[held] > parameter.item_bytes:
                rounded[parameter.name] = held, parameter.dtype
    if rounded:
        name, (kept, sent) = next(iter(rounded.items()))
        more = f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
        problem = f"'{step.label}' returned {name!r}{more} in {kept}, and the sync rounds to {sent}, which is only the "
        advice = f'state Parameter(..., dtype="{kept}") to keep all bits, or dtype="{sent}" to have them rounded'
        warnings.warn(HfWarning("HF733", f"{problem}default dtype of a parameter; {advice}"), stacklevel=2)


def whole_columns(step: Step, rank: int, columns: Mapping[str, Any], held: Sequence[Any] | None) -> dict[str, Any]:
    """The weights that one rank exports for all readers, or copies of them; ``held`` is as ``held_weights`` gives it.

    Raises:
        SyncError: HF773 if a parameter is missing, or not whole, or a tensor has no values.
    """
    from hfdsl.runtime.weights.held_parts import pieces_of
    from hfdsl.runtime.weights.resharding import copied_weights, whole_weights

    if VALUE not in columns:
        return dict(columns)
    parameters = () if step.exports is None else step.exports.parameters
    value = whole_weights(parameters, rank, columns[VALUE], step.label)
    if step.exports is not None and step.exports.copied:
        parts = None if held is None else [part for parts in held for part in (pieces_of(parts) or {}).values()]
        value = copied_weights(value, parts)
    return {**columns, VALUE: value}


def loaded_weights(step: Step, rank: int, reader: Reader) -> dict[str, Any] | ArrivingWeights:
    """The weights for a load in a scheduled step, or their exchange."""
    from hfdsl.runtime.weights.exchange import ArrivingWeights
    from hfdsl.runtime.weights.resharding import joined_parts

    if step.sync is None:
        raise TypeError(step)
    column, sources = step.sync.column(rank), step.sync.schedule.sources[rank]
    parts = {source: reader.fetch(step.sync.export, column, source, None) for source in sources}
    if all(isinstance(part, dict) for part in parts.values()):
        return joined_parts(step.sync, rank, parts.values())
    return ArrivingWeights(step.sync, rank, parts, step.label)


def loading(
    step: Step, worker: Any, body: Callable[..., Any], arguments: dict[str, Any], *, in_place: bool
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The body and arguments of a step that loads weights, including weights that arrive while it runs.

    With ``in_place`` they are written where a role keeps them, if it says where that is.
    """
    [(name, weights)] = arguments.items()
    if isinstance(weights, dict):
        return body, arguments
    receives = hasattr(worker, "receiving") and not overrides(type(worker), step.signature.name, "receiving")
    load = partial(_called_with, body, name)
    return partial(weights.load, worker, load, in_place=in_place and receives), {}


def _called_with(body: Callable[..., Any], name: str, value: Any) -> Any:
    return body(**{name: value})
