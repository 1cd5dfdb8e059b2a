"""Bin packing: do parts that must not be split fit on the nodes?

This is the one place that decides whether a cluster holds a pool: a check asks it about a described cluster, and a
launch about the nodes that Ray reports. It lies in this room because the imperative layer may import it from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from hfdsl.types.dims import Answer

Amounts: TypeAlias = tuple[int, ...]
"""An amount of every resource: needed by a part, or left on a node."""

CPU_UNITS = 10_000
"""Units of a CPU in whole amounts: the resolution of Ray."""

SEARCH_SIZE, SEARCH_STEPS = 64, 500  # parts and nodes that are searched through one by one, and how long


def fits(parts: Mapping[Amounts, int], nodes: Mapping[Amounts, int]) -> Answer:
    """Whether these numbers of parts of each kind fit on these numbers of nodes of each kind.

    PROVED and REFUTED are certain. What neither a greedy packing, nor counting, nor a short search settles is UNKNOWN.

    >>> fits({(4,): 3}, {(6,): 2}).value
    'refuted'
    """
    if _greedy(parts, nodes):
        return Answer.PROVED
    if too_many(parts, nodes) is not None:
        return Answer.REFUTED
    return _search(parts, nodes)


def too_many(parts: Mapping[Amounts, int], nodes: Mapping[Amounts, int]) -> tuple[Amounts, int, int] | None:
    """A size at which there are more parts, of at least that size, than the nodes have room for: (size, parts, room).

    In a size of several resources a zero leaves a resource out. None where counting refutes nothing.
    """
    resources = range(len(next(iter(parts), ())))
    for i in resources:
        need, have = (sum(amounts[i] * n for amounts, n in side.items()) for side in (parts, nodes))
        if need > have:
            return tuple(int(i == j) for j in resources), need, have
    scales = [sorted({part[i] for part in parts} | {0}) for i in resources]
    sizes: list[Amounts] = [()]
    for scale in scales:
        sizes = [(*size, amount) for size in sizes for amount in scale]
    for size in sizes:
        if any(size):
            count = sum(n for part, n in parts.items() if all(map(int.__ge__, part, size)))
            room = sum(n * times(node, size) for node, n in nodes.items())
            if count > room:
                return size, count, room
    return None


def times(node: Amounts, part: Amounts) -> int:
    """Count how often a part fits into a node; 0 for a part without needs.

    >>> times((8, 100), (2, 30))
    3
    """
    return min((have // need for have, need in zip(node, part, strict=True) if need), default=0)


def _less(node: Amounts, part: Amounts, count: int) -> Amounts:
    return tuple(have - need * count for have, need in zip(node, part, strict=True))


def _greedy(parts: Mapping[Amounts, int], nodes: Mapping[Amounts, int]) -> bool:
    """Place the largest parts first, each on the fullest nodes with room; one kind of node at a time."""
    free = Counter(nodes)
    for part in sorted(parts, reverse=True):
        missing = parts[part]
        for node in sorted(free):
            fits = times(node, part)
            if not missing or not fits:
                continue
            filled = min(free[node], missing // fits)
            free[_less(node, part, fits)] += filled
            free[node] -= filled
            missing -= filled * fits
            if missing < fits and free[node]:
                free[_less(node, part, missing)] += 1
                free[node] -= 1
                missing = 0
        if missing:
            return False
    return True


def _search(parts: Mapping[Amounts, int], nodes: Mapping[Amounts, int]) -> Answer:
    """Every way to place the parts one by one, equal nodes being one, as long as there are few."""
    if sum(parts.values()) + sum(nodes.values()) > SEARCH_SIZE:
        return Answer.UNKNOWN
    queue = sorted(Counter(parts).elements(), reverse=True)
    failed: set[tuple[int, tuple[Amounts, ...]]] = set()

    def place(number: int, free: tuple[Amounts, ...]) -> bool:
        if number == len(queue):
            return True
        if (number, free) in failed or len(failed) > SEARCH_STEPS:
            return False
        for i, node in enumerate(free):
            if (not i or node != free[i - 1]) and times(node, queue[number]):
                after = (*free[:i], _less(node, queue[number], 1), *free[i + 1 :])
                if place(number + 1, tuple(sorted(after))):
                    return True
        failed.add((number, free))
        return False

    if place(0, tuple(sorted(Counter(nodes).elements()))):
        return Answer.PROVED
    return Answer.UNKNOWN if len(failed) > SEARCH_STEPS else Answer.REFUTED
