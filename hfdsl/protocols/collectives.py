"""Collectives between the ranks of one role."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar
from typing import Protocol as Structural

from hfdsl.errors import ProtocolError
from hfdsl.protocols.mesh import GENERATION_AXES, Mesh, axis_rank

T = TypeVar("T")


class AxisGroup(ABC):
    """The ranks along a mesh axis, in coordinate order; all of them must make the same calls in the same order."""

    size: int
    rank: int
    process_group: Any = None
    """The group of ``torch.distributed``, if every rank is a separate process."""
    in_threads: bool = False
    """Whether the ranks are threads of one process: on a GPU autograd has one thread for all of them."""

    @abstractmethod
    def all_gather(self, value: T) -> list[T]:
        """Every rank's value (a tensor of one shape, or any object that pickles), in coordinate order."""

    def begin_gathers_into(self, gathered: Sequence[Any], values: Sequence[Any]) -> Callable[[], None]:
        """Begin ``all_gather`` of tensors [N, ...], each into a tensor [ranks * N, ...]; the result waits for all.

        It is called in the order of the beginnings, and before that nothing writes or frees any of the tensors.
        """
        for joined, value in zip(gathered, values, strict=True):
            for place, arrived in zip(joined.chunk(self.size), self.all_gather(value), strict=True):
                place.copy_(arrived)
        return lambda: None

    def all_reduce(self, value: T, op: str = "sum") -> T:
        """The ``sum``, ``mean``, ``max`` or ``min`` over ranks of a tensor or number.

        It is added in coordinate order, so that a run gives the same bits on every backend.
        """
        reduced: T = reduce_in_order(self.all_gather(value), op)
        return reduced

    def broadcast(self, value: T, source: int = 0) -> T:
        """The value of the rank with coordinate ``source``."""
        return self.all_gather(value)[source]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.all_gather(None)


Endpoint: TypeAlias = tuple["Collectives", int]
"""The connection of a role's ranks, and a rank: its identity in collectives, from any of its threads."""

_recorded: dict[Endpoint, list[tuple[str, Any]]] = {}


@contextmanager
def recorded_collectives(endpoint: Endpoint) -> Iterator[list[tuple[str, Any]]]:
    """Within this, results of a rank's collectives are recorded: ``("gathered", values)`` or ``("reduced", value)``.

    All threads are recorded: autograd runs backward passes, and their collectives, in a thread per GPU.
    """
    results = _recorded[endpoint] = []
    try:
        yield results
    finally:
        del _recorded[endpoint]


def record_collective(endpoint: Endpoint, how: str, value: T) -> T:
    """The result of a collective, which is recorded if the step is."""
    results = _recorded.get(endpoint)
    if results is not None:
        results.append((how, list(map(_on_host, value)) if isinstance(value, list) else _on_host(value)))
    return value


def is_recorded(endpoint: Endpoint) -> bool:
    """Whether results of a rank's collectives are recorded now."""
    return endpoint in _recorded


def _on_host(value: Any) -> Any:
    """A copy of a tensor in host memory, so that a recording holds no GPU memory; other objects unchanged."""
    return value.detach().to("cpu", copy=True) if hasattr(value, "detach") else value


_without_peers: dict[Endpoint, str] = {}


@contextmanager
def without_peers(endpoint: Endpoint, label: str) -> Iterator[None]:
    """Within this a rank may not use collectives, from any thread: not all ranks take part in the call ``label``."""
    _without_peers[endpoint] = label
    try:
        yield
    finally:
        del _without_peers[endpoint]


def refuse_without_peers(endpoint: Endpoint) -> None:
    """Raise where the running call has no peers.

    Raises:
        ProtocolError: HF410.
    """
    label = _without_peers.get(endpoint)
    if label is not None:
        raise ProtocolError("HF410", f"'{label}' runs on rank 0 alone (Execute.RANK_ZERO): its peers are not there")


class SoleRank(AxisGroup):
    """A group of one."""

    size, rank = 1, 0

    def all_gather(self, value: T) -> list[T]:
        """The value alone; a tensor is a copy, as it would be from another process."""
        return [copied(value)]


def copied(value: T) -> T:
    """A tensor that shares nothing with the value; of other objects the value itself."""
    clone: Callable[[], T] | None = getattr(value, "clone", None)
    return clone() if clone is not None else value


class Collectives(Structural):
    """The connection of ranks by a backend."""

    def group(self, ranks: tuple[int, ...], rank: int) -> AxisGroup:
        """The group of these ranks, seen from ``rank``."""
        ...


def reduce_in_order(values: Sequence[Any], op: str) -> Any:
    """The reduction of values, one after another from the first.

    >>> reduce_in_order([1, 2, 6], "mean")
    3.0
    """
    total = values[0]
    if op in ("sum", "mean"):
        for value in values[1:]:
            total = total + value
        return total / len(values) if op == "mean" else total
    if op in ("max", "min"):
        for value in values[1:]:
            better = value > total if op == "max" else value < total
            total = value.where(better, total) if hasattr(value, "where") else (value if better else total)
        return total
    raise ProtocolError("HF424", f"no reduction {op!r} over ranks; there are sum, mean, max, min")


def peers(mesh: Mesh, rank: int, axis: str) -> tuple[int, ...]:
    """The ranks that differ from ``rank`` along ``axis`` only, in coordinate order.

    >>> peers(Mesh(dp=2, tp=2), 1, "dp")
    (1, 3)
    >>> [peers(Mesh(tp=4, gen_tp=2), 1, axis) for axis in ("gen_tp", "micro_dp")]
    [(1, 3), (0, 1)]
    """
    if axis == "world":
        return tuple(range(mesh.world_size))
    axes = mesh.order if axis in mesh.order else GENERATION_AXES
    if axis not in axes:
        names = mesh.order if mesh.micro_dp_size == 1 else (*mesh.order, "gen_pp", "gen_tp", "micro_dp")
        raise ProtocolError("HF409", f"the mesh {mesh} has no axis {axis!r}; there are {', '.join(names)} and world")
    fixed = {name: axis_rank(mesh, name, rank) for name in axes if name != axis}
    ranks = (r for r in range(mesh.world_size) if all(axis_rank(mesh, a, r) == at for a, at in fixed.items()))
    return tuple(sorted(ranks, key=lambda r: axis_rank(mesh, axis, r)))
