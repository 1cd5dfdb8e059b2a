"""Results of collects that return a list: one value per rank, or one per pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)


class _Many(Sequence[T_co]):
    """An immutable sequence that prints and compares like a list."""

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T_co] = ()) -> None:
        self._items = tuple(items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T_co | Sequence[T_co]:
        return list(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (list, type(self))):
            return list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._items)!r})"

    def __reduce__(self) -> tuple[type[_Many[T_co]], tuple[tuple[T_co, ...]]]:
        return type(self), (self._items,)


class PerRank(_Many[T_co]):
    """One value from every rank of a group, in rank order.

    >>> PerRank([1, 2])[1], PerRank([1, 2]) == [1, 2]
    (2, True)
    """

    __slots__ = ()


class PerStage(_Many[T_co]):
    """One value from every pipeline stage of a mesh, in stage order.

    >>> PerStage(["embedding", "head"])
    PerStage(['embedding', 'head'])
    """

    __slots__ = ()
