"""Where two values differ: by column, row and entry, bit for bit or within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import isinf, isnan
from typing import Any

from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.runtime.store import as_bytes
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column, Metric, Obj
from hfdsl.types.ragged import Jagged


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two values differ: what it is, the row if it has one, and what there is on both sides."""

    column: str
    row: int | None
    one: str
    other: str
    entry: int | None = None

    def __str__(self) -> str:
        where = [f"column '{self.column}'"] if self.column else []
        where += [f"entry {self.entry}"] if self.entry is not None else []
        where += [f"row {self.row}"] if self.row is not None else []
        return ", ".join(where) or "the value"

    @property
    def message(self) -> str:
        """Where ``other`` is not what is meant, ``one``.

        >>> Difference("", 1, "3", "2").message
        'row 1 is 2 instead of 3'
        """
        return f"{self} is {self.other} instead of {self.one}"


def first_difference(one: Any, other: Any, tolerance: float | None = None) -> Difference | None:
    """Where ``other`` first differs from ``one``; None where it does not.

    Without a tolerance values are equal bit for bit. With one, numbers differ where they are further apart than
    ``tolerance * (1 + |x|)``; two NaN are equal in any case.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> print(first_difference(Rows(text=["a", "b"]), Rows(text=["a", "c"])))
    column 'text', row 1
    """
    return next(_differences(one, other, tolerance), None)


def _differences(one: Any, other: Any, tolerance: float | None) -> Iterator[Difference]:
    if isinstance(one, Batch) and isinstance(other, Batch):
        mine, theirs = one.__hf_columns__, other.__hf_columns__
        for name in dict.fromkeys((*mine, *theirs)):
            for difference in _raw(mine.get(name), theirs.get(name), tolerance):
                yield replace(difference, column=name if not difference.column else f"{name}/{difference.column}")
    elif isinstance(one, (PerRank, PerStage)) and isinstance(other, (PerRank, PerStage)):
        if len(one) != len(other):
            yield Difference("", None, f"{len(one)} entries", f"{len(other)} entries")
        for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            yield from (replace(difference, entry=number) for difference in _differences(mine, theirs, tolerance))
    else:
        yield from _raw(_unwrapped(one), _unwrapped(other), tolerance)


def _unwrapped(value: Any) -> Any:
    return value._value if isinstance(value, (Column, Obj, Metric)) else value


def _raw(one: Any, other: Any, tolerance: float | None) -> Iterator[Difference]:
    """Differences of raw columns, numbers and plain values."""
    if is_dataclass(one) and type(one) is type(other) and not isinstance(one, (type, Jagged)):
        one, other = ({field.name: getattr(value, field.name) for field in fields(value)} for value in (one, other))
    yield from _plain(one, other, tolerance)


def _plain(one: Any, other: Any, tolerance: float | None) -> Iterator[Difference]:
    if isinstance(one, Jagged) and isinstance(other, Jagged):
        if one.offsets.tolist() != other.offsets.tolist():
            yield from _raw([len(row) for row in one.rows], [len(row) for row in other.rows], None)
        for row, (mine, theirs) in enumerate(zip(one.rows, other.rows, strict=False)):
            yield from (replace(difference, row=row) for difference in _raw(mine, theirs, tolerance))
    elif hasattr(one, "untyped_storage") and hasattr(other, "untyped_storage"):
        yield from _tensors(one, other, tolerance)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        if list(one) != list(other):
            yield Difference("", None, f"keys {list(one)}", f"keys {list(other)}")
        for name in one.keys() & other.keys() if list(one) != list(other) else one:
            yield from (
                replace(difference, column=str(name)) for difference in _differences(one[name], other[name], tolerance)
            )
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            yield Difference("", None, f"{len(one)} rows", f"{len(other)} rows")
        for row, (mine, theirs) in enumerate(zip(one, other, strict=False)):
            inner = _differences(mine, theirs, tolerance)
            yield from (
                difference if difference.row is not None else replace(difference, row=row) for difference in inner
            )
    elif not _equal(one, other, tolerance):
        yield Difference("", None, _shown(one), _shown(other))


def _equal(one: Any, other: Any, tolerance: float | None) -> bool:
    if isinstance(one, float) and isinstance(other, (float, int)):
        if isnan(one) or isnan(other):
            return isnan(one) and isnan(other)
        if tolerance is None or isinf(one) or isinf(other):
            return one == other
        return abs(one - other) <= tolerance * (1 + abs(one))
    if type(one) is not type(other):
        return False
    return _same_array(one, other) if hasattr(one, "dtype") else bool(one == other)


def _same_array(one: Any, other: Any) -> bool:
    """Of numpy's arrays and scalars."""
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


def _tensors(one: Any, other: Any, tolerance: float | None) -> Iterator[Difference]:
    import torch

    one, other = one.detach().cpu(), other.detach().cpu()
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        yield Difference("", None, f"{one.dtype} {list(one.shape)}", f"{other.dtype} {list(other.shape)}")
        return
    if tolerance is None or not one.dtype.is_floating_point:
        bits = (as_bytes(value.contiguous()).view(one.numel(), -1) for value in (one, other))
        wrong = torch.ne(*bits).any(1) if one.numel() else torch.zeros(0, dtype=torch.bool)
        wrong = wrong & ~(one.isnan() & other.isnan()).reshape(-1)
    else:
        wrong = ~torch.isclose(one.double(), other.double(), tolerance, tolerance, equal_nan=True).reshape(-1)
    if not wrong.any():
        return
    places = wrong.nonzero().reshape(-1)
    first, each = int(places[0]), max(one[0].numel(), 1) if one.dim() else 1
    mine, theirs = one.reshape(-1)[first], other.reshape(-1)[first]
    rest = f" (and {len(places) - 1} more of {one.numel()} values)" if len(places) > 1 else ""
    place = f"[{', '.join(map(str, _index(first % each, one.shape[1:])))}] " if one.dim() > 1 else ""
    yield Difference(
        "", first // each if one.dim() else None, f"{place}{mine.item()!r}", f"{place}{theirs.item()!r}{rest}"
    )


def _index(flat: int, shape: Any) -> list[int]:
    index: list[int] = []
    for length in reversed(shape):
        index.insert(0, flat % length)
        flat //= length
    return index


def _shown(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
