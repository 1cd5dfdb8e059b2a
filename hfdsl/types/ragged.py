"""Ragged columns: rows of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import torch

D = TypeVar("D")


class Ragged(Generic[D]):
    """The dim after the rows, if rows differ in length: ``i64[B, Ragged[R]]`` has 0 to R tokens per row."""


@dataclass(frozen=True, slots=True)
class Jagged:
    """The rows of a ragged column, one after another in ``values``; row i is ``values[offsets[i]:offsets[i + 1]]``.

    It has the tensor methods that the package calls on raw columns, so code that cuts, joins and sends rows takes both.
    """

    values: torch.Tensor
    offsets: torch.Tensor  # on the CPU: slicing rows needs the numbers

    @classmethod
    def of(cls, rows: Sequence[torch.Tensor]) -> Jagged:
        """Concatenate one or more rows."""
        import torch

        lengths = torch.tensor([0, *(len(row) for row in rows)])
        return cls(torch.cat(list(rows)), lengths.cumsum(0))

    @classmethod
    def none(cls, like: torch.Tensor) -> Jagged:
        """A column without rows, with the dtype and inner dims of ``like``."""
        import torch

        return cls(like, torch.zeros(1, dtype=torch.int64))

    @property
    def rows(self) -> list[torch.Tensor]:
        """One tensor per row: views."""
        return list(self.values.split(self.offsets.diff().tolist()))

    @property
    def nested(self) -> torch.Tensor:
        """The jagged nested tensor of torch, on the same memory."""
        import torch

        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, self.offsets.to(self.values.device))
        return nested

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, the length of the longest one, and the remaining dims."""
        longest = int(self.offsets.diff().max()) if len(self) else 0
        return len(self), longest, *self.values.shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.values.dtype

    def dim(self) -> int:
        """The number of dims, rows included."""
        return self.values.dim() + 1

    # -- rows

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | list[int]) -> Jagged:
        if isinstance(rows, list):
            own_rows = self.rows
            return Jagged.of([own_rows[row] for row in rows]) if rows else self[:0]
        start, stop, _ = rows.indices(len(self))
        bounds = self.offsets[start : max(start, stop) + 1]
        return Jagged(self.values[int(bounds[0]) : int(bounds[-1])], bounds - bounds[0])

    def repeat_interleave(self, times: int, dim: int = 0) -> Jagged:
        """Every row ``times`` times in a row."""
        return self[[row for row in range(len(self)) for _ in range(times)]]

    @staticmethod
    def cat(parts: Sequence[Jagged]) -> Jagged:
        """Concatenate the rows of all parts."""
        import torch

        lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(part.offsets.diff() for part in parts)])
        values = [part.values for part in parts if len(part.values)]  # no values say nothing of other dims
        return Jagged(torch.cat(values or [parts[0].values]), lengths.cumsum(0))

    # -- memory

    @property
    def _version(self) -> int:
        return self.values._version

    @property
    def requires_grad(self) -> bool:
        """Whether the values have a history of gradients."""
        return self.values.requires_grad

    @property
    def is_cuda(self) -> bool:
        """Whether the values lie on a GPU."""
        return self.values.is_cuda

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return self.values.nbytes

    def untyped_storage(self) -> Any:
        """The storage of the values."""
        return self.values.untyped_storage()

    def is_inference(self) -> bool:
        """Whether the values were made in inference mode."""
        return self.values.is_inference()

    def clone(self) -> Jagged:
        """A copy."""
        return Jagged(self.values.clone(), self.offsets)

    def detach(self) -> Jagged:
        """A view of the values without gradient history."""
        return Jagged(self.values.detach(), self.offsets)

    def cpu(self) -> Jagged:
        """A copy on the CPU."""
        return Jagged(self.values.cpu(), self.offsets)

    def cuda(self) -> Jagged:
        """A copy on the GPU."""
        return Jagged(self.values.cuda(), self.offsets)


def jagged_of(value: Any, empty: Any) -> Jagged | None:
    """Convert a list of rows or a nested tensor to the value of a ragged column; None for anything else.

    ``empty()`` makes the values of no rows.
    """
    if isinstance(value, Jagged):
        return value
    if isinstance(value, (list, tuple)):
        rows = list(value)
    elif getattr(value, "is_nested", False):
        rows = list(value.unbind())
    else:
        return None
    if not all(hasattr(row, "untyped_storage") and row.dim() for row in rows):
        return None
    return Jagged.of(rows) if rows else Jagged.none(empty())
