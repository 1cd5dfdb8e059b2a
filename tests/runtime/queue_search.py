"""A search through all that queues can do that drop late groups: the oracle of their liveness."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TypeAlias

from hfdsl.runtime.schedule import QueueSpec

Ages: TypeAlias = tuple[int, ...]
"""Groups on their way by age in updates, those that are late last."""


def never_stops(lag: int, batch: int, dispatch: int, loses: bool = False) -> bool:
    """Whether something can always happen, whichever groups are ready first and whenever a step is dispatched.

    A filter ``loses`` any of the groups on their way, and nobody can count on it.
    """
    start: tuple[int, ...] = (0,) * (lag + 2)  # groups on their way by age in updates, those that are late last
    states: list[tuple[int, ...]] = [start]
    seen = {start}
    while states:
        ages = states.pop()
        following = set[tuple[int, ...]]()
        if sum(ages) + dispatch <= (lag + 1) * batch:
            following.add((ages[0] + dispatch, *ages[1:]))
        for counts in product(*(range(count + 1) for count in ages[:-1])):
            if sum(counts) == batch:
                remaining = [count - gone for count, gone in zip(ages[:-1], counts, strict=True)]
                following.add((0, *remaining[:-1], remaining[-1] + ages[-1]))
        if ages[-1]:
            following.add((*ages[:-1], ages[-1] - 1))
        if not following:
            return False
        if loses:
            following |= {(*ages[:i], count - 1, *ages[i + 1 :]) for i, count in enumerate(ages) if count}
        states.extend(following - seen)
        seen |= following
    return True


def never_stops_in_a_row(first: QueueSpec, second: QueueSpec, places: int) -> bool:
    """The same of two queues in a row that together have this many places."""
    start: tuple[Ages, Ages] = (0,) * (first.lag + 2), (0,) * (second.lag + 2)
    states, seen = [start], {start}
    while states:
        ages, behind = states.pop()
        following = set[tuple[Ages, Ages]]()
        if sum(ages) + first.dispatch <= min(first.places, places - sum(behind)):
            following.add(((ages[0] + first.dispatch, *ages[1:]), behind))
        if sum(behind) + first.batch <= second.places:
            following |= {(left, (behind[0] + first.batch, *behind[1:])) for left in _taken(ages, first.batch)}
        following |= {(_older(ages), _older(left)) for left in _taken(behind, second.batch)}
        if ages[-1]:
            following.add(((*ages[:-1], ages[-1] - 1), behind))
        if behind[-1]:
            following.add((ages, (*behind[:-1], behind[-1] - 1)))
        if not following:
            return False
        states.extend(following - seen)
        seen |= following
    return True


def _taken(ages: Ages, batch: int) -> Iterator[Ages]:
    """What a batch may leave, whichever groups are ready first."""
    for counts in product(*(range(count + 1) for count in ages[:-1])):
        if sum(counts) == batch:
            yield tuple(count - gone for count, gone in zip(ages, (*counts, 0), strict=True))


def _older(ages: Ages) -> Ages:
    return (0, *ages[:-2], ages[-2] + ages[-1])
