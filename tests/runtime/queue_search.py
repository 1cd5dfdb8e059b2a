"""A search through all that a queue can do that drops late groups: the oracle of its liveness."""

from __future__ import annotations

from itertools import product


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
