"""Differences between two values: by column, row and entry, bit for bit or within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import isinf, isnan
from typing import Any

from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.runtime.rank.store import as_bytes
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column, Metric, Obj
from hfdsl.types.ragged import Jagged


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two values differ: a description, the row if it has one, and both sides."""

    column: str
    row: int | None
    expected: str
    actual: str
    entry: int | None = None

    def __str__(self) -> str:
        where = [f"column '{self.column}'"] if self.column else []
        where += [f"entry {self.entry}"] if self.entry is not None else []
        where += [f"row {self.row}"] if self.row is not None else []
        return ", ".join(where) or "the value"

    @property
    def message(self) -> str:
        """Where ``actual`` differs from ``expected``.

        >>> Difference("", 1, "3", "2").message
        'row 1 is 2 instead of 3'
        """
        return f"{self} is {self.actual} instead of {self.expected}"


def first_difference(expected: Any, actual: Any, tolerance: float | None = None) -> Difference | None:
    """Where ``actual`` first differs from ``expected``; None if it does not.

    Without a tolerance values are equal bit for bit. With one, numbers differ where they are further apart than
    ``tolerance * (1 + |x|)``; two NaN are equal in any case.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> print(first_difference(Rows(text=["a", "b"]), Rows(text=["a", "c"])))
    column 'text', row 1
    """
    return next(_differences(expected, actual, tolerance), None)


def _differences(expected: Any, actual: Any, tolerance: float | None) -> Iterator[Difference]:
    if isinstance(expected, Batch) and isinstance(actual, Batch):
        expected_part, actual_part = expected.__hf_columns__, actual.__hf_columns__
        for name in dict.fromkeys((*expected_part, *actual_part)):
            for difference in _raw(expected_part.get(name), actual_part.get(name), tolerance):
                yield replace(difference, column=name if not difference.column else f"{name}/{difference.column}")
    elif isinstance(expected, (PerRank, PerStage)) and isinstance(actual, (PerRank, PerStage)):
        if len(expected) != len(actual):
            yield Difference("", None, f"{len(expected)} entries", f"{len(actual)} entries")
        for number, (expected_part, actual_part) in enumerate(zip(expected, actual, strict=False)):
            yield from (
                replace(difference, entry=number) for difference in _differences(expected_part, actual_part, tolerance)
            )
    else:
        yield from _raw(_unwrapped(expected), _unwrapped(actual), tolerance)


def _unwrapped(value: Any) -> Any:
    return value._value if isinstance(value, (Column, Obj, Metric)) else value


def _raw(expected: Any, actual: Any, tolerance: float | None) -> Iterator[Difference]:
    """Differences of raw columns, numbers and plain values."""
    if is_dataclass(expected) and type(expected) is type(actual) and not isinstance(expected, (type, Jagged)):
        expected, actual = (
            {field.name: getattr(value, field.name) for field in fields(value)} for value in (expected, actual)
        )
    yield from _plain(expected, actual, tolerance)


def _plain(expected: Any, actual: Any, tolerance: float | None) -> Iterator[Difference]:
    if isinstance(expected, Jagged) and isinstance(actual, Jagged):
        if expected.offsets.tolist() != actual.offsets.tolist():
            yield from _raw([len(row) for row in expected.rows], [len(row) for row in actual.rows], None)
        for row, (expected_part, actual_part) in enumerate(zip(expected.rows, actual.rows, strict=False)):
            yield from (replace(difference, row=row) for difference in _raw(expected_part, actual_part, tolerance))
    elif hasattr(expected, "untyped_storage") and hasattr(actual, "untyped_storage"):
        yield from _tensors(expected, actual, tolerance)
    elif isinstance(expected, Mapping) and isinstance(actual, Mapping):
        if list(expected) != list(actual):
            yield Difference("", None, f"keys {list(expected)}", f"keys {list(actual)}")
        for name in expected.keys() & actual.keys() if list(expected) != list(actual) else expected:
            yield from (
                replace(difference, column=str(name))
                for difference in _differences(expected[name], actual[name], tolerance)
            )
    elif isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        if len(expected) != len(actual):
            yield Difference("", None, f"{len(expected)} rows", f"{len(actual)} rows")
        for row, (expected_part, actual_part) in enumerate(zip(expected, actual, strict=False)):
            inner = _differences(expected_part, actual_part, tolerance)
            yield from (
                difference if difference.row is not None else replace(difference, row=row) for difference in inner
            )
    elif not _equal(expected, actual, tolerance):
        yield Difference("", None, _value_text(expected), _value_text(actual))


def _equal(expected: Any, actual: Any, tolerance: float | None) -> bool:
    if isinstance(expected, float) and isinstance(actual, (float, int)):
        if isnan(expected) or isnan(actual):
            return isnan(expected) and isnan(actual)
        if tolerance is None or isinf(expected) or isinf(actual):
            return expected == actual
        return abs(expected - actual) <= tolerance * (1 + abs(expected))
    if type(expected) is not type(actual):
        return False
    return _same_array(expected, actual) if hasattr(expected, "dtype") else bool(expected == actual)


def _same_array(expected: Any, actual: Any) -> bool:
    """For NumPy arrays and scalars."""
    return (expected.dtype, expected.shape) == (actual.dtype, actual.shape) and expected.tobytes() == actual.tobytes()


def _tensors(expected: Any, actual: Any, tolerance: float | None) -> Iterator[Difference]:
    import torch

    expected, actual = expected.detach().cpu(), actual.detach().cpu()
    if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
        yield Difference("", None, f"{expected.dtype} {list(expected.shape)}", f"{actual.dtype} {list(actual.shape)}")
        return
    if tolerance is None or not expected.dtype.is_floating_point:
        bits = (as_bytes(value.contiguous()).view(expected.numel(), -1) for value in (expected, actual))
        differs = torch.ne(*bits).any(1) if expected.numel() else torch.zeros(0, dtype=torch.bool)
        differs = differs & ~(expected.isnan() & actual.isnan()).reshape(-1)
    else:
        differs = ~torch.isclose(expected.double(), actual.double(), tolerance, tolerance, equal_nan=True).reshape(-1)
    if not differs.any():
        return
    places = differs.nonzero().reshape(-1)
    first, row_size = int(places[0]), max(expected[0].numel(), 1) if expected.dim() else 1
    expected_part, actual_part = expected.reshape(-1)[first], actual.reshape(-1)[first]
    more = f" (and {len(places) - 1} more of {expected.numel()} values)" if len(places) > 1 else ""
    place = f"[{', '.join(map(str, _index(first % row_size, expected.shape[1:])))}] " if expected.dim() > 1 else ""
    yield Difference(
        "",
        first // row_size if expected.dim() else None,
        f"{place}{expected_part.item()!r}",
        f"{place}{actual_part.item()!r}{more}",
    )


def _index(flat: int, shape: Any) -> list[int]:
    index: list[int] = []
    for length in reversed(shape):
        index.insert(0, flat % length)
        flat //= length
    return index


def _value_text(value: Any) -> str:
    text = "absent" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
