"""Dispatch and collect by a declared protocol: from a call's arguments to every rank's, and back from the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hfdsl.errors import ProtocolError
from hfdsl.protocols.balancing import weights_of
from hfdsl.protocols.kinds import PerRank
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.partitioning import NO_SPLIT, Pad, RowSplit
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.split import Site, cut, join, kind_of, restored, rows_of
from hfdsl.types.batches import Batch, same_columns


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
) -> tuple[tuple[list[Any], ...], dict[str, list[Any]], RowSplit]:
    """Every argument as a list with one entry per rank, and how their rows were split.

    Rows are balanced by the column ``balance`` where all arguments are here; HF425 if none of them has it.

    Raises ``ProtocolError`` for an argument without rows (HF413), arguments with different rows (HF420) or a per-rank
    argument that is not a list of ``world_size`` (HF411), and ``SizeError`` for rows that do not divide (HF310, HF313).

    >>> from hfdsl.protocols.predefined import THREE_D_PROTO
    >>> dispatch(THREE_D_PROTO, Mesh(dp=2, tp=2), ([1, 2],), {})[0]
    ([[1], [1], [2], [2]],)
    """
    site = site or Site()
    row_split = NO_SPLIT
    if protocol.takes == "per_rank":
        spread = _per_rank(mesh, site)
    elif protocol.splits:
        items: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        row_split = split_of(protocol, mesh, items, site=site, pad=pad, group=group)
        if balance is not None and not any(is_later(value) for _, value in items):
            weights = weights_of(items, balance, site)
            row_split = row_split if weights is None else row_split.balanced(weights, row_split.rows // group)
        spread = _chunked(protocol, mesh, site, row_split, pad, group)
    else:
        spread = _everywhere(mesh)
    placed = tuple(spread(key, value) for key, value in enumerate(args))
    return placed, {key: spread(key, value) for key, value in kwargs.items()}, row_split


def _everywhere(mesh: Mesh) -> Callable[[int | str, Any], list[Any]]:
    return lambda key, value: [value] * mesh.world_size


def _per_rank(mesh: Mesh, site: Site) -> Callable[[int | str, Any], list[Any]]:
    def spread(key: int | str, value: Any) -> list[Any]:
        return per_rank_list(value, mesh.world_size, site.argument(key))

    return spread


def _chunked(
    protocol: Protocol, mesh: Mesh, site: Site, row_split: RowSplit, pad: Pad | None, group: int
) -> Callable[[int | str, Any], list[Any]]:
    def spread(key: int | str, value: Any) -> list[Any]:
        subject, count = site.argument(key), protocol.chunk_count(mesh)
        if is_later(value):
            chunks = [value.__hf_cut__(i, count, pad=pad, group=group, subject=subject) for i in range(count)]
        else:
            chunks = [cut(value, row_split.chunk_rows(i), subject) for i in range(count)]
        return [chunks[index] for index in protocol.chunk_of(mesh)]

    return spread


def is_later(value: Any) -> bool:
    """Whether a value is pending and is cut where it arrives: it has ``__hf_cut__(index, count, ...)``."""
    return hasattr(type(value), "__hf_cut__")


def per_rank_list(value: Any, world_size: int, subject: str) -> list[Any]:
    """``value`` as a list with one entry per rank; HF411 for all but a list (or per-rank result) of that length."""
    if isinstance(value, (list, PerRank)) and len(value) == world_size:
        return list(value)
    got = f"a {type(value).__name__} of {len(value)}" if isinstance(value, (list, PerRank)) else kind_of(value)
    raise ProtocolError(
        "HF411",
        f"{subject} is {got}; an ALL_TO_ALL method takes a list with one entry for each of the {world_size} ranks; "
        "to send one value to every rank use ONE_TO_ALL",
    )


def split_of(
    protocol: Protocol,
    mesh: Mesh,
    items: Iterable[tuple[int | str, Any]],
    *,
    site: Site,
    pad: Pad | None = None,
    group: int = 1,
) -> RowSplit:
    """Compute the split of the arguments that are already present; errors as for ``dispatch``."""
    counts = {site.argument(key): rows_of(value, site.argument(key)) for key, value in items if not is_later(value)}
    if not counts:
        return NO_SPLIT
    same_rows(counts)
    subject, rows = next(iter(counts.items()))
    return RowSplit.even(rows, protocol.chunk_count(mesh), pad=pad, group=group, subject=subject)


def same_rows(counts: Mapping[str, int]) -> None:
    """Raise ``ProtocolError`` (HF420) unless all arguments, by name, have the same number of rows.

    >>> same_rows({"argument 'a' of f": 4, "argument 'b' of f": 4})
    """
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{subject} has {rows}" for subject, rows in counts.items())
        raise ProtocolError("HF420", f"arguments of one call need the same number of rows to be split alike: {listed}")


def collect(
    protocol: Protocol,
    mesh: Mesh,
    outputs: Sequence[Any],
    *,
    site: Site | None = None,
    row_split: RowSplit = NO_SPLIT,
) -> Any:
    """The caller's value, from one output per rank; outputs of ranks that are not collected are never read.

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
    subject = f"the output of {site.method}"
    return restored(join(pieces, subject=subject), row_split, subject)
