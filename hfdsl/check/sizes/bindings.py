"""Bindings: which combinations of sizes a check tries when dims have several sizes.

A worked example. ``dims={B: (64, 60), P: (256, 512), R: (256, 768)}``, two ranks split the ``B`` rows, and a method
requires ``P + R <= 1024``. No demand reads ``B`` together with ``P`` or ``R``, so that there are two components, and
each is combined while the dims of the other keep their first size::

    component   B    P    R      2 divides B   P + R <= 1024
                64   256  256    holds         holds
    B           60   256  256    holds
    P, R        64   256  768                  holds
                64   512  256                  holds
                64   512  768                  fails          "for P = 512 and R = 768"

Five bindings stand for all eight combinations: ``B = 60`` with ``R = 768`` shows nothing new.

Why this is right. A demand is a function of the sizes that it reads. They lie in one component by its definition, and
every combination of a component's sizes is among the bindings, unless there are more than ``limit``. Then each size
of a dim is there with the first sizes of the others, and the rest is spread evenly; the report counts what is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd, prod
from typing import TypeAlias

from hfdsl.types.dims import Dim

Binding: TypeAlias = Mapping[type[Dim], int]
Alternatives: TypeAlias = Mapping[type[Dim], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Component:
    """Dims that demands read together, and the combinations of their sizes that a check looks at, the first one first.

    ``combinations`` is how many there are.
    """

    dims: tuple[type[Dim], ...]
    bindings: tuple[Binding, ...]
    combinations: int


def components(
    alternatives: Alternatives, read_dims: Iterable[Collection[object]], limit: int
) -> tuple[Component, ...]:
    """The dims with several sizes in groups, by the sets of dims that are ``read`` together; ``limit`` bounds them all.

    >>> class B(Dim): ...
    >>> class P(Dim): ...
    >>> class R(Dim): ...
    >>> sizes = {B: (64, 60), P: (256, 512), R: (256, 768)}
    >>> [(part.dims, len(part.bindings)) for part in components(sizes, [{B}, {R, P}], 100)]
    [((B,), 2), ((P, R), 4)]
    """
    groups: list[set[type[Dim]]] = []
    for dims in read_dims:
        joined = {dim for dim in alternatives if dim in dims}
        apart = [group for group in groups if joined.isdisjoint(group)]
        if joined:
            groups = [*apart, joined.union(*(group for group in groups if not joined.isdisjoint(group)))]
    connected = {dim for group in groups for dim in group}
    groups += [{dim} for dim in alternatives if dim not in connected]
    places = {dim: place for place, dim in enumerate(alternatives)}
    ordered = sorted((sorted(group, key=places.__getitem__) for group in groups), key=lambda dims: places[dims[0]])
    share = max(1, limit // max(1, len(ordered)))
    return tuple(_component({dim: alternatives[dim] for dim in dims}, share) for dims in ordered)


def _component(sizes: Alternatives, limit: int) -> Component:
    total = prod(map(len, sizes.values()))
    combinations = product(*sizes.values()) if total <= limit else _spread(tuple(sizes.values()), total, limit)
    return Component(tuple(sizes), tuple(dict(zip(sizes, numbers, strict=True)) for numbers in combinations), total)


def _spread(sizes: tuple[tuple[int, ...], ...], total: int, limit: int) -> Iterator[tuple[int, ...]]:
    """The first combination, those that differ from it in one size, and others at even distances."""
    first = tuple(numbers[0] for numbers in sizes)
    changed = [
        (*first[:place], number, *first[place + 1 :])
        for place, numbers in enumerate(sizes)
        for number in numbers[1 : 1 + limit]
    ]
    # With a distance that has no factor in common with the total, no combination comes twice.
    distance = next(n for n in range(total * 5 // 8, total) if gcd(n, total) == 1)
    others = (_combination(sizes, number * distance % total) for number in range(max(0, limit - len(changed))))
    yield from dict.fromkeys((first, *changed, *others))


def _combination(sizes: tuple[tuple[int, ...], ...], number: int) -> tuple[int, ...]:
    """The combination of that number, in the order of ``itertools.product``."""
    places: list[int] = []
    for numbers in reversed(sizes):
        number, place = divmod(number, len(numbers))
        places.append(numbers[place])
    return tuple(reversed(places))
