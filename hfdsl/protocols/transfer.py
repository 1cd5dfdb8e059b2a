"""Dispatch and collect by a declared protocol: from a call's arguments to every rank's, and back from the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hfdsl.errors import ProtocolError
from hfdsl.protocols.balancing import balanced_order, put_back, reordered, weights_of
from hfdsl.protocols.kinds import PerRank
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.split import Pad, Site, add_rows, drop_pad, join, kind_of, pad_size, rows_of, split
from hfdsl.types.batches import Batch, same_columns


@dataclass(frozen=True, slots=True)
class Padding:
    """The rows that dispatch added (``added``) to the caller's ``rows``, so that collect can take them out again.

    ``order`` are all of them in the order in which they were given, so that it can put them back; () for their own.
    """

    rows: int = 0
    added: int = 0
    order: tuple[int, ...] = ()


NO_PADDING = Padding()


def dispatch(
    protocol: Protocol,
    mesh: Mesh,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    site: Site | None = None,
    pad: Pad | None = None,
    group: int = 1,
    balance: str | None = None,
) -> tuple[tuple[list[Any], ...], dict[str, list[Any]], Padding]:
    """Every argument as a list with one entry a rank, and the padding that was added on the way.

    Rows are balanced by the column ``balance`` where all arguments are here; HF425 where none of them has it.

    Raises ``ProtocolError`` for an argument without rows (HF413), arguments with different rows (HF420) or a per-rank
    argument that is no list of ``world_size`` (HF411), and ``SizeError`` for rows that do not divide (HF310, HF313).

    >>> from hfdsl.protocols.predefined import THREE_D_PROTO
    >>> dispatch(THREE_D_PROTO, Mesh(dp=2, tp=2), ([1, 2],), {})[0]
    ([[1], [1], [2], [2]],)
    """
    site = site or Site()
    if protocol.takes == "per_rank":
        spread = _per_rank(mesh, site)
        padding = NO_PADDING
    elif protocol.splits:
        items = _items(args, kwargs)
        padding = padding_of(protocol, mesh, items, site=site, pad=pad, group=group)
        spread = _chunked(protocol, mesh, site, pad, group)
        if balance is not None and not any(is_later(value) for _, value in items):
            weights = weights_of(items, balance, site) or []
            chunks = protocol.chunk_count(mesh)
            padding = replace(padding, order=balanced_order(weights, chunks, group, padding.added, pad))
            spread = _balanced(spread, padding, pad) if padding.order else spread
    else:
        padding = NO_PADDING
        spread = _everywhere(mesh)
    placed = tuple(spread(key, value) for key, value in enumerate(args))
    return placed, {key: spread(key, value) for key, value in kwargs.items()}, padding


def _items(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[int | str, Any]]:
    return [*enumerate(args), *kwargs.items()]


def _everywhere(mesh: Mesh) -> Callable[[int | str, Any], list[Any]]:
    return lambda key, value: [value] * mesh.world_size


def _per_rank(mesh: Mesh, site: Site) -> Callable[[int | str, Any], list[Any]]:
    def spread(key: int | str, value: Any) -> list[Any]:
        return per_rank_list(value, mesh.world_size, site.argument(key))

    return spread


def _chunked(
    protocol: Protocol, mesh: Mesh, site: Site, pad: Pad | None, group: int
) -> Callable[[int | str, Any], list[Any]]:
    def spread(key: int | str, value: Any) -> list[Any]:
        what, count = site.argument(key), protocol.chunk_count(mesh)
        if is_later(value):
            chunks = [value.__hf_cut__(index, count, pad=pad, group=group, what=what) for index in range(count)]
        else:
            chunks = split(value, count, pad=pad, group=group, what=what)
        return [chunks[index] for index in protocol.chunk_of(mesh)]

    return spread


def _balanced(
    spread: Callable[[int | str, Any], list[Any]], padding: Padding, pad: Pad | None
) -> Callable[[int | str, Any], list[Any]]:
    def in_order(key: int | str, value: Any) -> list[Any]:
        return spread(key, reordered(add_rows(value, padding.added, pad), padding.order))

    return in_order


def is_later(value: Any) -> bool:
    """Whether a value is still being made, and is cut where it arrives: it has ``__hf_cut__(index, count, ...)``."""
    return hasattr(type(value), "__hf_cut__")


def per_rank_list(value: Any, world_size: int, what: str) -> list[Any]:
    """``value`` as a list with one entry a rank; HF411 for anything but a list (or per-rank result) of that length."""
    if isinstance(value, (list, PerRank)) and len(value) == world_size:
        return list(value)
    got = f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, PerRank)) else kind_of(value)
    raise ProtocolError(
        "HF411",
        f"{what} is {got}; an ALL_TO_ALL method takes a list with one entry for each of the {world_size} ranks; "
        "to send one value to every rank use ONE_TO_ALL",
    )


def padding_of(
    protocol: Protocol,
    mesh: Mesh,
    items: Iterable[tuple[int | str, Any]],
    *,
    site: Site,
    pad: Pad | None = None,
    group: int = 1,
) -> Padding:
    """The padding that splitting these arguments takes, as far as they are here; errors as for ``dispatch``."""
    counts = {site.argument(key): rows_of(value, site.argument(key)) for key, value in items if not is_later(value)}
    if not counts:
        return NO_PADDING
    same_rows(counts)
    what, rows = next(iter(counts.items()))
    return Padding(rows, pad_size(rows, protocol.chunk_count(mesh), pad=pad, group=group, what=what))


def same_rows(counts: Mapping[str, int]) -> None:
    """Raise ``ProtocolError`` (HF420) unless all arguments, by name, have the same number of rows.

    >>> same_rows({"argument 'a' of f": 4, "argument 'b' of f": 4})
    """
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{what} has {rows}" for what, rows in counts.items())
        raise ProtocolError("HF420", f"arguments of one call need the same number of rows to be split alike: {listed}")


def collect(
    protocol: Protocol,
    mesh: Mesh,
    outputs: Sequence[Any],
    *,
    site: Site | None = None,
    padding: Padding = NO_PADDING,
) -> Any:
    """What the caller gets from one output a rank; outputs of ranks that are not collected are never looked at.

    >>> from hfdsl.protocols.predefined import THREE_D_PROTO
    >>> collect(THREE_D_PROTO, Mesh(pp=2, dp=2), [None, None, [1], [2]])
    [1, 2]
    """
    site = site or Site()
    if len(outputs) != mesh.world_size:
        raise ProtocolError("HF407", f"{site.method} has {len(outputs)} outputs for {mesh.world_size} ranks of {mesh}")
    ranks = protocol.collected(mesh)
    pieces = [outputs[rank] for rank in ranks]
    if not protocol.joins:
        return pieces
    if all(isinstance(piece, Batch) for piece in pieces):
        same_columns(pieces, [f"rank {rank}" for rank in ranks])
    what = f"the output of {site.method}"
    return undone(join(pieces, what=what), padding, what)


def undone(value: Any, padding: Padding, what: str) -> Any:
    """A joined output as if nothing had been padded or balanced."""
    return drop_pad(put_back(value, padding.order, what), padding.added, padding.rows, what=what)
