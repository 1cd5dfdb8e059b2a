"""The parts of a state that ranks exchange by schedule: cut from exports, and joined for loads.

A worked example. A rank has rows 0, 1, 4 and 5 of a weight of 8 rows, one after the other in a local tensor of 4 rows.
Another rank needs rows 1 to 5 of the weight, which is the box ((1, 6),)::

    boxes of the source    where they are locally    in common with ((1, 6),)    local rows
    ((0, 2),)              ((0, 2),)                 ((1, 2),)                   [1:2]
    ((4, 6),)              ((2, 4),)                 ((4, 6),)                   [2:4]

The schedule names the boxes ((1, 2),) and ((4, 6),), each of which lies in one box of the source, so each is a slice of
the local tensor. The target puts them where its own boxes are in its local tensor: at rows [0:1] and [3:5].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from hfdsl.plan.resharding import Transfer
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.boxes import Box, intersection, whole
from hfdsl.protocols.layouts import Parameter, Replicas
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.rank.store import CopiedTensors
from hfdsl.runtime.weights.held_parts import ComputedPart, FixedParts, HeldPart, pieces_of
from hfdsl.runtime.weights.local_weights import LocalWeights, local_places
from hfdsl.runtime.weights.sharded_tensors import is_part, local

Parts: TypeAlias = dict[str, dict[Box, torch.Tensor]]
"""The parts of each parameter, by their places in the whole."""


def exported_parts(
    syncs: Iterable[ScheduledSync], rank: int, exported: Any, label: str
) -> Iterator[tuple[str, CopiedTensors]]:
    """The columns of a source rank's export: for each reader, copies of its parts.

    Raises:
        SyncError: HF773 if the rank has other parts than its layout says.
    """
    for sync in syncs:
        held = exported_weights(sync, rank, exported, label)
        for target, sources in enumerate(sync.schedule.sources):
            if rank in sources:
                parts = CopiedTensors()
                for transfer in sync.schedule.pieces_of(target):
                    if transfer.source == rank:
                        parts.setdefault(transfer.parameter.name, {})[transfer.box] = copied_part(held, transfer)
                yield sync.column(target), parts


def copied_part(held: LocalWeights, transfer: Transfer) -> torch.Tensor:
    """A copy of a box of a parameter, in its dtype."""
    part = held.part(transfer.parameter, transfer.box).detach()
    return part.to(getattr(torch, transfer.parameter.dtype), copy=True).contiguous()


def exported_weights(sync: ScheduledSync, rank: int, values: Any, label: str) -> LocalWeights:
    """The weights that a source rank has exported.

    Raises:
        SyncError: HF773 if it is not a dict of tensors.
    """
    places = sync.places.setdefault(("exports", rank), {})
    blame = "HF773", label, "returned"
    return LocalWeights(sync.source_layout, sync.schedule.source_mesh, rank, values, blame, places)


def whole_weights(parameters: Iterable[Parameter], rank: int, values: Any, label: str) -> Any:
    """The weights that a rank has exported, checked to be all of each parameter, and tensors that can be sent.

    Nothing is known of values other than tensors by name.

    Raises:
        SyncError: HF773 if it lacks one, or has a part of it, or a tensor without values.
    """
    if pieces_of(values) is None:
        return values
    held = LocalWeights(Replicas(), Mesh(), rank, values, ("HF773", label, "returned"), {})
    held.check_sendable()
    for name in values:
        if is_part(values[name]):
            advice = "declare a layout=, or return its full_tensor(), which all ranks call"
            raise held.mismatch(f"a part of '{name}', a DTensor that is sent whole ({advice}),", name)
    for parameter in parameters:
        if parameter.bytes:  # else there is nothing to lack
            held.find(parameter, whole(parameter.shape))
    sharded = {name: local(value) for name, value in values.items() if hasattr(value, "to_local")}
    return {**values, **sharded} if sharded else values


def copied_weights(values: Any, held: Iterable[HeldPart] | None = None) -> Any:
    """Copies of tensors by name; with ``held`` only of those that share memory with it. Anything else as it is.

    >>> weights = {"up": torch.ones(2), "down": torch.ones(2)}
    >>> copies = copied_weights(weights, [HeldPart(weights["up"][:1])])
    >>> [copies[name] is weights[name] for name in weights]
    [False, True]
    """
    if not isinstance(values, Mapping):
        return values
    stored = [part for part in held or () if not isinstance(part, ComputedPart)]
    memory = {part.tensor.untyped_storage().data_ptr() for part in stored}
    return {
        name: value.detach().clone()
        if isinstance(value, torch.Tensor) and (held is None or value.untyped_storage().data_ptr() in memory)
        else value
        for name, value in values.items()
    }


def loaded_weights(sync: ScheduledSync, rank: int, values: Any, label: str) -> LocalWeights:
    """The weights that a target rank keeps, to load into.

    Raises:
        SyncError: HF774 if it is not a dict of tensors.
    """
    derived = values.derived if isinstance(values, FixedParts) else {}
    derived_for, held = derived.get(("loads", rank), (None, None))
    if held is None or derived_for is not sync:
        places = sync.places.setdefault(("loads", rank), {})
        blame = "HF774", label, "loads into"
        held = LocalWeights(sync.target_layout, sync.schedule.target_mesh, rank, values, blame, places)
        derived["loads", rank] = sync, held
    weights: LocalWeights = held
    return weights


def joined_parts(sync: ScheduledSync, rank: int, parts: Iterable[Parts]) -> dict[str, torch.Tensor]:
    """The weights that a rank loads: for each of its parameters, the local tensor of its layout."""
    received: dict[str, dict[Box, torch.Tensor]] = {}
    for from_rank in parts:
        for name, by_box in from_rank.items():
            received.setdefault(name, {}).update(by_box)
    loaded: dict[str, torch.Tensor] = {}
    for parameter in sync.schedule.parameters:
        shape, placed = local_places(sync.target_layout, parameter, sync.schedule.target_mesh, rank)
        if placed:
            loaded[parameter.name] = _joined(shape, placed, received[parameter.name])
    return loaded


def _joined(shape: tuple[int, ...], placed: Mapping[Box, Box], parts: Mapping[Box, torch.Tensor]) -> torch.Tensor:
    if len(placed) == 1 and (part := parts.get(next(iter(placed)))) is not None:
        return part
    local = next(iter(parts.values())).new_empty(shape)
    for box, tensor in parts.items():
        for held, place in placed.items():
            if intersection(held, box) == box:
                ranges = tuple(
                    slice(start - first + local_first, stop - first + local_first)
                    for (start, stop), (first, _), (local_first, _) in zip(box, held, place, strict=True)
                )
                local[ranges] = tensor
    return local
