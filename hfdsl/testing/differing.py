"""Results that should be the same: where the first of their values differs."""

from __future__ import annotations

from typing import Any

from hfdsl.plan.reading import pack
from hfdsl.types.ragged import Jagged


def difference(got: Any, meant: Any, tolerance: float = 0.0) -> str | None:
    """The first place in which two results differ by more than ``tolerance``, None where there is none.

    A value that is no number equals itself.

    >>> difference([1, 2], [1, 3])
    'row 1 is 2 instead of 3'
    """
    one, other = _columns(got), _columns(meant)
    for name, value in other.items():
        where = _differs(one.get(name), value, tolerance)
        if where is not None:
            return f"column '{name}', {where}" if name else where
    return None


def _columns(value: Any) -> dict[str, Any]:
    return {"": value} if isinstance(value, (list, tuple)) else dict(pack(value))


def _differs(one: Any, other: Any, tolerance: float) -> str | None:
    if one is None or other is None:
        return None if one is other else f"it is {_there(one)} instead of {_there(other)}"
    if isinstance(one, Jagged):
        one, other = one.rows, other.rows
    if not hasattr(one, "shape"):
        if not isinstance(one, (list, tuple)):
            return None if _close(one, other, tolerance) else f"it is {one!r} instead of {other!r}"
        one, other = list(one), list(other)
    if len(one) != len(other):
        return f"there are {len(one)} rows instead of {len(other)}"
    if hasattr(one, "shape") and one.shape != other.shape:
        return f"its shape is {tuple(one.shape)} instead of {tuple(other.shape)}"
    for row, (a, b) in enumerate(zip(one, other, strict=True)):
        if not _close(a, b, tolerance):
            return f"row {row} is {_shown(a)} instead of {_shown(b)}"
    return None


def _close(one: Any, other: Any, tolerance: float) -> bool:
    if hasattr(one, "untyped_storage") and hasattr(other, "untyped_storage"):
        import torch

        same = one.shape == other.shape and one.dtype is other.dtype
        a, b = one.double(), other.double()
        return same and bool(torch.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True).all())
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= tolerance * max(1.0, abs(other)) or (one != one and other != other)  # noqa: PLR0124  # not a number
    return bool(one == other)


def _there(value: Any) -> str:
    return "absent" if value is None else "there"


def _shown(value: Any) -> str:
    return str(value.tolist() if hasattr(value, "tolist") else repr(value))
