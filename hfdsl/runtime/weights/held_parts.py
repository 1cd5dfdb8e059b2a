"""Parts of weights that a rank has: held in tensors, or computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hfdsl.protocols.boxes import Box
from hfdsl.runtime.weights.sharded_tensors import local


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A part of a weight: its elements, and the index of the first one in the whole; None for an entire weight."""

    tensor: torch.Tensor
    offset: tuple[int, ...] | None = None
    sharded: Any = field(default=None, repr=False, compare=False)
    """The DTensor of which it is this rank's part."""

    @property
    def box(self) -> Box:
        """The box of the part in the whole."""
        if self.offset is None:
            return tuple([(0, size) for size in self.tensor.shape])
        return tuple([(start, start + size) for start, size in zip(self.offset, self.tensor.shape, strict=True)])

    @property
    def kind(self) -> tuple[Any, ...]:
        """Everything but its values and their place in memory."""
        tensor = self.tensor
        return self.offset, tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.layout


class FixedParts(dict[str, HeldPart]):
    """Parts by name that do not change, in tensors that stay where they are in memory as long as this object lives.

    ``derived`` keeps what a sync derives from them, by side and rank, so that the next one does not look them up again.
    """

    __slots__ = ("derived",)

    def __init__(self, parts: Mapping[str, HeldPart]) -> None:
        super().__init__(parts)
        self.derived: dict[tuple[str, int], Any] = {}


class ComputedPart(HeldPart):
    """A part that is not stored: it is computed when it is read, a few rows at a time.

    ``tiles`` gives the rows of the whole from a first to a last one, in all columns, each some rows with the number of
    the first of them.

    >>> part = ComputedPart(((1, 3), (0, 1)), torch.float32, torch.device("cpu"), lambda first, last: [
    ...     (row, torch.tensor([[10.0 * row, 0.0]])) for row in range(first, last)
    ... ])
    >>> part.tensor.tolist(), part.cut(((2, 3), (0, 1))).tensor.tolist()
    ([[10.0], [20.0]], [[20.0]])
    """

    __slots__ = ("_box", "_tiles", "device", "dtype")
    device: torch.device
    dtype: torch.dtype
    _box: Box
    _tiles: Callable[[int, int], Iterable[tuple[int, torch.Tensor]]]

    def __init__(
        self,
        box: Box,
        dtype: torch.dtype,
        device: torch.device,
        tiles: Callable[[int, int], Iterable[tuple[int, torch.Tensor]]],
    ) -> None:
        values = {"_box": box, "dtype": dtype, "device": device, "_tiles": tiles, "sharded": None}
        for name, value in (*values.items(), ("offset", tuple([start for start, _ in box]))):
            object.__setattr__(self, name, value)  # as a frozen dataclass does

    @property
    def box(self) -> Box:
        """The box of the part in the whole."""
        return self._box

    @property
    def kind(self) -> tuple[Any, ...]:
        """Everything but its values."""
        return self._box, self.dtype, self.device

    @property
    def tensor(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]  # neither can be assigned
        """The elements, computed for this call."""
        values = torch.empty([stop - start for start, stop in self._box], dtype=self.dtype, device=self.device)
        self.copy_into(values)
        return values

    def cut(self, box: Box) -> ComputedPart:
        """A box of the whole that lies in this part."""
        return ComputedPart(box, self.dtype, self.device, self._tiles)

    def copy_into(self, target: torch.Tensor) -> None:
        """Write the elements into a tensor of the same shape."""
        (first, last), *others = self._box
        columns = tuple(slice(*ends) for ends in others)
        for row, values in self._tiles(first, last):
            rows = values[(slice(None), *columns)].to(self.dtype)
            target[row - first : row - first + len(rows)].copy_(rows)


def pieces_of(value: Any) -> dict[str, HeldPart] | None:
    """The pieces of a role's weights, given as a mapping of names to tensors, numbers or pieces; None for others.

    Of a DTensor it is what this rank holds.
    """
    if isinstance(value, FixedParts):
        return value
    if not isinstance(value, Mapping):
        return None
    pieces: dict[str, HeldPart] = {}
    for name, part in value.items():
        if isinstance(part, HeldPart):
            pieces[str(name)] = part
        elif isinstance(part, torch.Tensor):
            held = local(part)
            pieces[str(name)] = HeldPart(held, sharded=None if held is part else part)
        elif isinstance(part, (bool, int, float)):
            pieces[str(name)] = HeldPart(torch.tensor(part))
        else:
            return None
    return pieces
