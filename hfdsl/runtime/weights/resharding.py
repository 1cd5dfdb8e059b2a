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
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import torch

from hfdsl.errors import ProtocolError, SyncError
from hfdsl.plan.resharding import Transfer
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.boxes import Box, intersection, whole
from hfdsl.protocols.cuts import converts, padded_dims
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, rank_boxes
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.resharding import tensor_problem
from hfdsl.runtime.digests import ComputedPart, FixedParts, HeldPart, pieces_of
from hfdsl.runtime.rank.role_errors import sending
from hfdsl.runtime.rank.store import CopiedTensors, as_bytes
from hfdsl.runtime.weights.sharded_tensors import is_part, is_partial, local
from hfdsl.types.values import without_values

Parts: TypeAlias = dict[str, dict[Box, torch.Tensor]]
"""The parts of each parameter, by their places in the whole."""


LocalPlaces: TypeAlias = tuple[tuple[int, ...], dict[Box, Box]]
"""The shape of a local tensor, and the places of its boxes in it."""


def local_places(layout: Layout, parameter: Parameter, mesh: Mesh, rank: int) -> LocalPlaces:
    """The shape of a rank's local tensor, and the places of its boxes in it; none if it holds nothing.

    Raises:
        ProtocolError: HF735 if its boxes are no tensor.
    """
    boxes = rank_boxes(layout, parameter, mesh, rank)
    if boxes and (problem := tensor_problem(boxes)) is not None:
        where = f"{parameter.name!r} {parameter.shape} on rank {rank} ({mesh.coordinates(rank)})"
        raise ProtocolError("HF735", f"{where}: {problem}")
    return local_boxes(boxes)


def local_boxes(boxes: Iterable[Box]) -> LocalPlaces:
    """The shape of a local tensor that holds these boxes one after another, and the place of each.

    >>> local_boxes([((0, 2), (0, 3)), ((4, 6), (0, 3))])
    ((4, 3), {((0, 2), (0, 3)): ((0, 2), (0, 3)), ((4, 6), (0, 3)): ((2, 4), (0, 3))})
    """
    boxes = tuple(boxes)
    starts: list[dict[tuple[int, int], int]] = []
    shape: list[int] = []
    for ranges in zip(*boxes, strict=True):
        length, first = 0, dict[tuple[int, int], int]()
        for start, stop in dict.fromkeys(ranges):
            first[start, stop] = length
            length += stop - start
        starts.append(first)
        shape.append(length)
    placed = {
        box: tuple(
            (first[extent], first[extent] + extent[1] - extent[0]) for extent, first in zip(box, starts, strict=True)
        )
        for box in boxes
    }
    return tuple(shape), placed


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
        held.find(parameter, whole(parameter.shape))
    sharded = {name: local(value) for name, value in values.items() if hasattr(value, "to_local")}
    return {**values, **sharded} if sharded else values


def copied_weights(values: Any) -> Any:
    """Copies of tensors by name; anything else as it is."""
    if not isinstance(values, Mapping):
        return values
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in values.items()
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


def unsendable(piece: HeldPart) -> str | None:
    """The kind of tensor that a piece is, if it has no dense values to send or to write into."""
    if isinstance(piece, ComputedPart):
        return None
    if is_partial(piece.tensor):
        return "a DTensor of partial values: redistribute it"
    return without_values(piece.tensor)


def _without_tensors(values: Any) -> str:
    """Describe a value that is no dict of tensors by name, or its first entry that is no tensor."""
    for name, entry in values.items() if isinstance(values, Mapping) else ():
        if pieces_of({name: entry}) is None:
            return f"'{name}' of type {type(entry).__name__} instead of a tensor"
    return f"a value of type {type(values).__name__} instead of a dict of tensors by name"


@dataclass(frozen=True, slots=True)
class HeldView:
    """A box within a rank's part of a weight: shape, strides and offset in its tensor, or the ``box`` to compute."""

    name: str
    strided: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    """None for all of the tensor."""

    box: Box | None = None


class LocalWeights:
    """A rank's weights in its own memory, whose parts are boxes of the full parameters.

    ``blame`` is the code, the call and the verb of the error that is raised if the rank has other parts than its layout
    says. ``places`` caches the layout of each parameter, which is the same in every sync.
    """

    def __init__(
        self,
        layout: Layout,
        mesh: Mesh,
        rank: int,
        values: Any,
        blame: tuple[str, str, str],
        places: dict[str, LocalPlaces],
    ) -> None:
        self.rank, self._layout, self._mesh, self._blame, self._places = rank, layout, mesh, blame, places
        pieces = pieces_of(values)
        if pieces is None:
            raise self.mismatch(_without_tensors(values))
        self._pieces = pieces
        self._boxes: dict[str, list[tuple[Box, torch.Tensor | ComputedPart]]] = {}
        self._parts: dict[tuple[str, Box], torch.Tensor | ComputedPart] = {}
        self._flat: dict[HeldView, torch.Tensor] = {}

    @property
    def pieces(self) -> Mapping[str, HeldPart]:
        """The weights of the rank, by name."""
        return self._pieces

    @property
    def label(self) -> str:
        """The call that has exported or loads the weights."""
        return self._blame[1]

    def check_sendable(self) -> None:
        """Raise ``SyncError`` if a tensor has no values to send, also where no role states it."""
        for name, piece in self._pieces.items():
            if (kind := unsendable(piece)) is not None:
                raise self.mismatch(f"'{name}', {kind},", name)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        piece = next(iter(self._pieces.values()), None)
        if piece is None:
            return torch.device("cpu")
        return piece.device if isinstance(piece, ComputedPart) else piece.tensor.device

    @cached_property
    def kinds(self) -> list[tuple[Any, ...]]:
        """The names and kinds of its tensors, without addresses: the layout of parts depends on nothing else."""
        return [(name, *piece.kind) for name, piece in self._pieces.items()]

    def view(self, parameter: Parameter, box: Box) -> HeldView:
        """The place of a box of a parameter, which is the same in other tensors of the same ``kinds``.

        Raises:
            SyncError: as ``part``.
        """
        part, name = self.find(parameter, box), self._name(parameter)
        if isinstance(part, ComputedPart):
            return HeldView(name, box=box)
        held = self._pieces[name].tensor
        offset = int(part.storage_offset() - held.storage_offset())
        return HeldView(name, None if part is held else (tuple(part.shape), part.stride(), offset))

    def tensor(self, view: HeldView) -> torch.Tensor:
        """A box that is held."""
        held = self._pieces[view.name].tensor
        if view.strided is None:
            return held
        shape, strides, offset = view.strided
        return held.as_strided(shape, strides, held.storage_offset() + offset)

    def bytes(self, view: HeldView) -> torch.Tensor:
        """The memory of a contiguous box that is held, u8[N]."""
        flat = self._flat.get(view)
        if flat is None:
            flat = self._flat[view] = self._as_bytes(view)
        return flat

    def _as_bytes(self, view: HeldView) -> torch.Tensor:
        held = self._pieces[view.name].tensor
        if view.strided is None:
            return as_bytes(held)
        shape, _, offset = view.strided
        return held.as_strided((prod(shape),), (1,), held.storage_offset() + offset).view(torch.uint8)

    def computed(self, view: HeldView) -> ComputedPart:
        """A box that is computed."""
        piece = self._pieces[view.name]
        if not isinstance(piece, ComputedPart) or view.box is None:
            raise TypeError(view)
        return piece.cut(view.box)

    def part(self, parameter: Parameter, box: Box) -> torch.Tensor:
        """A box of a parameter: a view of this rank's memory, or computed for the caller.

        Raises:
            SyncError: if the rank has no such box.
        """
        held_part = self.find(parameter, box)
        return held_part.tensor if isinstance(held_part, ComputedPart) else held_part

    def copy_into(self, target: torch.Tensor, parameter: Parameter, box: Box) -> None:
        """Write a box of a parameter into a tensor of its shape; a computed part needs the memory of a few rows.

        Raises:
            SyncError: as ``part``.
            RoleError: HF806 if it cannot be computed.
        """
        held_part = self.find(parameter, box)
        with sending(self.label, self.rank):  # the role that reads it has no part in this
            if isinstance(held_part, ComputedPart):
                held_part.copy_into(target)
            else:
                target.copy_(held_part.detach())

    def find(self, parameter: Parameter, box: Box) -> torch.Tensor | ComputedPart:
        """A box of a parameter, before any computation.

        Raises:
            SyncError: as ``part``.
        """
        if (parameter.name, box) not in self._parts:
            self._parts[parameter.name, box] = self._find(parameter, box)
        return self._parts[parameter.name, box]

    def _name(self, parameter: Parameter) -> str:
        return parameter.name if parameter.name in self._pieces else self._layout.stored_as(parameter.name)

    def _find(self, parameter: Parameter, box: Box) -> torch.Tensor | ComputedPart:
        name = self._name(parameter)
        if name not in self._boxes:
            self._boxes[name] = list(self._held_boxes(parameter, name))
        for held, tensor in self._boxes[name]:
            if held == box:
                return tensor
            if intersection(held, box) == box:
                if isinstance(tensor, ComputedPart):
                    return tensor.cut(box)
                return tensor[
                    tuple(
                        slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, held, strict=True)
                    )
                ]
        raise self.mismatch(f"no {list(box)} of '{name}'")

    def _held_boxes(self, parameter: Parameter, name: str) -> Iterator[tuple[Box, torch.Tensor | ComputedPart]]:
        """A rank's boxes of a parameter, each with its values."""
        if name not in self._pieces:
            raise self.mismatch(f"no '{name}'")
        piece = self._pieces[name]
        if (kind := unsendable(piece)) is not None:
            raise self.mismatch(f"'{name}', {kind},", name)
        dtype = str(piece.dtype if isinstance(piece, ComputedPart) else piece.tensor.dtype).removeprefix("torch.")
        if not converts(dtype, parameter.dtype):
            raise self.mismatch(f"'{name}' in {dtype} instead of {parameter.dtype},")
        if piece.offset is None:
            if name not in self._places:
                self._places[name] = local_places(self._layout, parameter, self._mesh, self.rank)
            shape, placed = self._places[name]
            # A tensor of the layout's shape has its order, too, even if that is also the shape of the whole.
            if tuple(piece.tensor.shape) == shape:
                for box, local in placed.items():
                    yield (
                        box,
                        piece.tensor if len(placed) == 1 else piece.tensor[tuple(slice(*extent) for extent in local)],
                    )
                return
            if (actual := tuple(piece.tensor.shape)) != parameter.shape:
                if shape == parameter.shape:
                    raise self.mismatch(f"'{name}' of shape {actual} instead of all of it, {shape},")
                declared = f"its layout says {shape} of {parameter.shape}" if placed else "its layout says none"
                padding = " without pad rows," if padded_dims(self._layout, parameter, self._mesh) else ""
                raise self.mismatch(f"'{name}' of shape {actual}, but {declared}{padding}")
        if intersection(piece.box, whole(parameter.shape)) != piece.box:
            raise self.mismatch(f"{list(piece.box)} of '{name}', which has the shape {parameter.shape}")
        yield piece.box, piece if isinstance(piece, ComputedPart) else piece.tensor

    def mismatch(self, problem: str, parameter: str = "") -> SyncError:
        """The error for a rank that has other parts than its layout says."""
        code, label, verb = self._blame
        error = SyncError(code, f"'{label}' {verb} {problem} on rank {self.rank}")
        error.role, error.parameter, error.ranks = label.partition(".")[0], parameter, (self.rank,)
        return error


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
