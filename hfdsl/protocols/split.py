"""Splitting and joining along the first axis, by kind of row container.

A *row container* is an ``hf.Batch``, a torch tensor (nested ones too), a numpy array, a list, or an object of any class
with three hooks:

- ``__hf_rows__(self) -> int | None``: the number of rows, None for a value that has none, such as metadata alone;
- ``__hf_slice__(self, start: int, stop: int)``: these rows, in an object of the same class;
- ``__hf_concat__(cls, parts)``, a class method: the rows of all parts, in order.

Everything else cannot be split, and is refused by name. Which rows go where is decided in ``partitioning``; here they
are cut and joined.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hfdsl.errors import HfError, ProtocolError
from hfdsl.protocols.partitioning import Pad, RowSplit
from hfdsl.protocols.ranges import RowRanges


@dataclass(frozen=True, slots=True)
class Site:
    """The use of a value: the names that an error message needs.

    >>> Site("Actor.update", ("rollout", "advantages")).argument(1)
    "argument 'advantages' of Actor.update"
    """

    method: str = "the method"
    parameters: tuple[str, ...] = ()

    def argument(self, key: int | str) -> str:
        """The argument at a position or with a name, in words."""
        if isinstance(key, str):
            return f"argument {key!r} of {self.method}"
        named = key < len(self.parameters)
        return f"argument {self.parameters[key]!r} of {self.method}" if named else f"argument {key} of {self.method}"


@dataclass(frozen=True, slots=True)
class Container:
    """The row operations of one kind of container: count, cut and join."""

    rows: Callable[[Any], int | None]
    cut: Callable[[Any, int, int], Any]
    join: Callable[[Sequence[Any]], Any]


LIST = Container(
    len,
    lambda value, start, stop: value[start:stop],
    lambda pieces: [row for piece in pieces for row in piece],
)
BATCH = Container(
    lambda value: value.__hf_rows__(),
    lambda value, start, stop: value.__hf_slice__(start, stop),
    lambda pieces: type(pieces[0]).__hf_concat__(list(pieces)),
)
TENSOR = Container(
    lambda value: int(value.shape[0]),
    lambda value, start, stop: value[start:stop],
    lambda pieces: sys.modules["torch"].cat(list(pieces)),
)
NESTED = Container(
    lambda value: int(value.size(0)),
    lambda value, start, stop: _nested(list(value.unbind())[start:stop], value),
    lambda pieces: _nested([row for piece in pieces for row in piece.unbind()], pieces[0]),
)
ARRAY = Container(
    lambda value: int(value.shape[0]),
    lambda value, start, stop: value[start:stop],
    lambda pieces: sys.modules["numpy"].concatenate(list(pieces)),
)


def container_of(value: Any) -> Container | None:
    """The kind of row container that ``value`` is, or None.

    >>> container_of([1, 2]) is LIST, container_of((1, 2)) is None
    (True, True)
    """
    if type(value) is list:
        return LIST
    if hasattr(type(value), "__hf_rows__"):
        return BATCH
    # A value of a library exists only if the library has been imported: no need to import it to ask.
    for module, kind, container in (("torch", "Tensor", TENSOR), ("numpy", "ndarray", ARRAY)):
        cls: Any = getattr(sys.modules.get(module), kind, None)
        if cls is not None and isinstance(value, cls):
            if container is TENSOR and (value.is_nested or value.layout is not sys.modules["torch"].strided):
                return NESTED if value.is_nested else None  # sparse: rows are no slices
            return container if len(value.shape) > 0 else None  # 0-d: one number, no rows
    return None


def _nested(rows: Sequence[Any], like: Any) -> Any:
    """Rows as a nested tensor with another one's layout; HF413 if that layout cannot hold them."""
    torch: Any = sys.modules["torch"]
    if not rows:
        return torch.nested.nested_tensor_from_jagged(like.values()[:0], torch.zeros(1, dtype=torch.int64))
    try:
        return torch.nested.as_nested_tensor(list(rows), layout=like.layout)
    except RuntimeError as error:
        raise ProtocolError("HF413", f"rows of a nested tensor cannot be cut or joined: {error}") from error


def kind_of(value: object) -> str:
    """Name the type of a value for a message.

    >>> kind_of(None), kind_of({"a": 1})
    ('None', 'dict')
    """
    if value is None:
        return "None"
    if getattr(value, "is_sparse", False):
        return f"sparse {type(value).__name__}"
    shape = None if getattr(value, "is_nested", False) else getattr(value, "shape", None)
    return f"0-d {type(value).__name__}" if shape is not None and len(shape) == 0 else type(value).__name__


def rows_of(value: object, subject: str = "value") -> int:
    """The number of rows of a container; ``ProtocolError`` (HF413) for anything that has no rows.

    >>> rows_of([5, 6, 7])
    3
    """
    container = _container(value, subject)
    try:
        rows = container.rows(value)
    except HfError:  # a record of metrics: a Batch by its type, but nothing that can be cut
        raise _no_rows(value, subject) from None
    if rows is None:
        raise _no_rows(value, subject)
    return int(rows)


def _container(value: object, subject: str) -> Container:
    container = container_of(value)
    if container is None:
        raise _no_rows(value, subject)
    return container


def _no_rows(value: object, subject: str) -> ProtocolError:
    return ProtocolError(
        "HF413",
        f"{subject} is {_with_article(kind_of(value))}, which has no rows to split; "
        "give an hf.Batch, a tensor, an array or a list, or send it to every rank with a ONE_TO_ALL method",
    )


def _with_article(kind: str) -> str:
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return kind if kind == "None" else f"{article} {kind}"


def cut(value: Any, ranges: RowRanges, subject: str = "value") -> Any:
    """The rows of a container in these ranges, one range after another; a single range of a tensor or array is a view.

    >>> cut(["a", "b", "c"], ((1, 3), (0, 1)))
    ['b', 'c', 'a']
    """
    container = _container(value, subject)
    pieces = [container.cut(value, start, stop) for start, stop in ranges]
    return pieces[0] if len(pieces) == 1 else container.join(pieces)


def split(value: Any, chunks: int, *, pad: Pad | None = None, group: int = 1, subject: str = "value") -> list[Any]:
    """``chunks`` even chunks of a container's rows, in order, each of the container's own type.

    Tensor and array chunks are views of the caller's rows. Errors are those of ``rows_of`` and ``pad_size``.

    >>> split([1, 2, 3, 4], 2)
    [[1, 2], [3, 4]]
    """
    row_split = RowSplit.even(rows_of(value, subject), chunks, pad=pad, group=group, subject=subject)
    return [cut(value, row_split.chunk_rows(chunk)) for chunk in range(chunks)]


def join(pieces: Sequence[Any], *, subject: str = "output") -> Any:
    """The rows of all pieces in one container of their type; None when every piece is None (a body without a result).

    Raises ``ProtocolError`` (HF413) for pieces that have no rows or are of different kinds.

    >>> join([[1, 2], [3]])
    [1, 2, 3]
    """
    if all(piece is None for piece in pieces):
        return None
    container = container_of(pieces[0])
    same = all(container_of(piece) is container for piece in pieces)
    if container is None or not same or (container is BATCH and len({type(piece) for piece in pieces}) > 1):
        kinds = ", ".join(dict.fromkeys(kind_of(p) for p in pieces))
        raise ProtocolError(
            "HF413",
            f"{subject} cannot be joined: the collected ranks gave {kinds}; return one hf.Batch, tensor, array or list "
            "from every rank, of one type; a protocol that joins no rows gives a list: ALL_TO_ALL for chunks that you "
            "cut yourself, ONE_TO_ALL where every rank is to have all rows",
        )
    return container.join(pieces)


def restored(value: Any, row_split: RowSplit, subject: str = "output") -> Any:
    """A joined output with the caller's rows in the caller's order, and no rows that came from pad rows.

    A body may give several output rows per input row, evenly; ``SizeError`` (HF310) when it is not even, so that rows
    of the output cannot be attributed to rows of the input.

    >>> restored([1, 2, 3, 3], RowSplit.even(3, 2, pad="repeat_last"))
    [1, 2, 3]
    """
    if value is None or not (row_split.added or row_split.partition):
        return value
    try:
        rows = rows_of(value, subject)
    except ProtocolError:
        return value  # metrics: reduced over all rows that the ranks saw
    return cut(value, row_split.restored(rows, subject))
