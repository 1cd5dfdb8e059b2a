"""Proved bounds of a queue: its worst staleness, its rows in flight, and their memory.

A worked example: a step dispatches 512 rows, a batch has 512 in groups of 8, ``lag=4``, and 4 KiB of each row are read
behind the queue::

    staleness        at most 4 updates
    rows in flight   (4 + 1) * 512 = 2,560, from dispatch to the end of their update: 320 groups
    memory           2,560 * 4 KiB = 10 MiB, in the processes that made the rows
    least            512 + 512 - gcd(512, 512) = 512 rows: with places for fewer, both stages would wait forever
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from hfdsl.check.context import Context
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.columns import columns_read, result_origins, row_bytes
from hfdsl.graph.lags import Versions
from hfdsl.graph.program import Node, Queue
from hfdsl.graph.stages import HeldState
from hfdsl.protocols.queueing import Late
from hfdsl.types.dims import Size, at_most, atom_size, constant
from hfdsl.types.numbers import byte_amount


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The bounds of a queue; numbers that a size decides are None if unknown.

    ``worst`` is the largest staleness of a row behind this queue and those before it, None without a bound; ``states``
    are the trained states that its rows were made under, each with their staleness there. ``places``
    are rows: those in flight, and ``least_places`` the fewest with which the stages do not wait for each other.
    """

    file: str
    line: int
    lag: int
    late: Late | None
    group: int
    put_in: str
    taken: str
    worst: int | None
    states: tuple[tuple[str, int], ...]
    places: int | None
    least_places: int | None
    bytes: int | None

    def __str__(self) -> str:
        worst = f"at most {self.worst} update{'s' * (self.worst != 1)} late"
        if self.worst is None:
            worst = f"{self.lag} updates late in the mean, worst unbounded"
        together = f", groups of {self.group}" if self.group > 1 else ""
        parts = [f"lag={self.lag} {self.late or 'as ready'}{together}: {worst}"]
        if self.places is not None:
            memory = "" if self.bytes is None else f", {byte_amount(self.bytes)}"
            parts.append(f"{self.places} rows in flight{memory}")
            if self.least_places is not None:
                parts.append(f"at least {self.least_places} needed")
        return "; ".join(parts)


def queue_bounds(context: Context) -> tuple[QueueBounds, ...]:
    """The bounds of every queue that separates stages, in the order of the program."""
    return tuple(_bounds(context, node, queue) for node, queue in context.program.split.queues)


def stated_rows(context: Context, queue: Queue) -> Size | None:
    """The rows of a batch that a queue states by ``rows=``; None if it passes on those of a step."""
    if queue.rows is None:
        return None
    return context.known(constant(queue.rows) if isinstance(queue.rows, int) else atom_size(queue.rows))


def _bounds(context: Context, node: Node, queue: Queue) -> QueueBounds:
    rows = None if node.batch is None else context.program.inference.rows(node.batch.node)
    dispatched = None if rows is None else context.known(rows)
    most = None if dispatched is None else context.known(at_most(dispatched))
    stated = stated_rows(context, queue)
    batch_rows = most if stated is None else stated
    count, batch, lag = _number(most), _number(batch_rows), queue.lag or 0
    places = None if batch is None else (lag + 1) * batch
    together = queue.group if queue.decides and most != dispatched else gcd(count or 0, batch or 0)
    size = _row_bytes(context, node)
    states = tuple((f"{state.role}.{state.state}", versions.lag) for state, versions in _states(context, node))
    bounded = queue.late is not None or not lag
    return QueueBounds(
        file=node.span.file,
        line=node.span.line,
        lag=lag,
        late=queue.late,
        group=queue.group,
        put_in=str(dispatched),
        taken=str(batch_rows),
        worst=max((staleness for _, staleness in states), default=lag) if bounded else None,
        states=states,
        places=places,
        least_places=None if count is None or batch is None else count + batch - together,
        bytes=None if places is None or size is None else places * size,
    )


def _states(context: Context, node: Node) -> Iterator[tuple[HeldState, Versions]]:
    return iter(context.program.lags[node.id].items())


def _number(size: Size | None) -> int | None:
    return None if size is None or size.value is None or size.value.denominator != 1 else int(size.value)


def _row_bytes(context: Context, queue: Node) -> int | None:
    """Bytes of a row in the columns that are read behind a queue; None if a size is unknown, or differs by row."""
    graph = context.program.graph
    behind = descendants(graph, [queue.id])
    columns = {column for node in graph.calls if node.id in behind for column in columns_read(graph, node.id)}
    for ref in graph.output.refs():
        columns |= set(result_origins(graph, ref)) if ref.node in behind else set()
    sizes = [row_bytes(graph, node, column, context.sizes) for node, column in columns if node not in behind]
    return None if None in sizes else sum(size for size in sizes if size is not None)
