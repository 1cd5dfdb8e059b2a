"""The weights of a rank in its own memory: the view of a local tensor that a box of a full parameter is.

A worked example. A rank has rows 0, 1, 4 and 5 of a weight of 8 rows, one after the other in a local tensor of 4 rows::

    boxes of the rank    where they are locally    the part for ((4, 5),)
    ((0, 2),)            ((0, 2),)
    ((4, 6),)            ((2, 4),)                 local[2:3]

Why one view is enough: each box of a schedule is what a box of a source has in common with one of a target
(``protocols/resharding.py``), so it lies in one box of a rank on either side. If it does not, the rank has other parts
than its layout says, which is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import torch

from hfdsl.errors import ProtocolError, SyncError
from hfdsl.protocols.boxes import Box, in_words, intersection, whole
from hfdsl.protocols.cuts import padded_dims
from hfdsl.protocols.layouts import Layout, Parameter, rank_boxes
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.parameters import converts
from hfdsl.protocols.resharding import tensor_problem
from hfdsl.runtime.rank.role_errors import sending
from hfdsl.runtime.rank.store import as_bytes
from hfdsl.runtime.weights.held_parts import ComputedPart, HeldPart, pieces_of
from hfdsl.runtime.weights.sharded_tensors import is_partial, placed_box
from hfdsl.types.values import without_values

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
        raise self.mismatch(f"no '{name}'{in_words(box)}", name)

    def _held_boxes(self, parameter: Parameter, name: str) -> Iterator[tuple[Box, torch.Tensor | ComputedPart]]:
        """A rank's boxes of a parameter, each with its values."""
        if name not in self._pieces:
            raise self.mismatch(f"no '{name}'", name)
        piece = self._pieces[name]
        if (kind := unsendable(piece)) is not None:
            raise self.mismatch(f"'{name}', {kind},", name)
        dtype = str(piece.dtype if isinstance(piece, ComputedPart) else piece.tensor.dtype).removeprefix("torch.")
        if not converts(dtype, parameter.dtype):
            raise self.mismatch(f"'{name}' in {dtype} instead of {parameter.dtype},", name)
        if piece.offset is None:
            if name not in self._places:
                self._places[name] = local_places(self._layout, parameter, self._mesh, self.rank)
            shape, placed = self._places[name]
            # A tensor of the layout's shape has its order, too, even if that is also the shape of the whole.
            if tuple(piece.tensor.shape) == shape:
                self._check_placed(parameter, name, piece, placed)
                for box, local in placed.items():
                    yield (
                        box,
                        piece.tensor if len(placed) == 1 else piece.tensor[tuple(slice(*extent) for extent in local)],
                    )
                return
            if (actual := tuple(piece.tensor.shape)) != parameter.shape:
                if shape == parameter.shape:
                    raise self.mismatch(f"'{name}' of shape {actual} instead of all of it, {shape},", name)
                declared = f"its layout says {shape} of {parameter.shape}" if placed else "its layout says none"
                padding = " without pad rows," if padded_dims(self._layout, parameter, self._mesh) else ""
                raise self.mismatch(f"'{name}' of shape {actual}, but {declared}{padding}", name)
        if intersection(piece.box, whole(parameter.shape)) != piece.box:
            raise self.mismatch(f"'{name}'{in_words(piece.box)}, which has the shape {parameter.shape},", name)
        yield piece.box, piece if isinstance(piece, ComputedPart) else piece.tensor

    def _check_placed(self, parameter: Parameter, name: str, piece: HeldPart, placed: Mapping[Box, Box]) -> None:
        """Raise ``SyncError`` if a DTensor is placed in another box than its layout says.

        Several boxes are the order of a rank's own rows, of which a DTensor knows nothing.
        """
        if piece.sharded is None or len(placed) != 1:
            return
        [box], actual = placed, placed_box(piece.sharded, parameter.shape)
        if actual is not None and actual != box:
            place = f"'{name}'{in_words(actual)}, as its DTensor is placed, but its layout says {in_words(box)},"
            raise self.mismatch(place, name)

    def mismatch(self, problem: str, parameter: str = "") -> SyncError:
        """The error for a rank that has other parts than its layout says."""
        code, label, verb = self._blame
        error = SyncError(code, f"'{label}' {verb} {problem} on rank {self.rank}")
        error.role, error.parameter, error.ranks = label.partition(".")[0], parameter, (self.rank,)
        return error
