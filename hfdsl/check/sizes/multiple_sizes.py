"""Multiple sizes: a dim may have several, such as those of an evaluation batch or a last batch; each must work."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TypeAlias

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.types.dims import Dim
from hfdsl.types.numbers import join_numbers

Rule: TypeAlias = Callable[[Context], Iterable[Finding]]

SizesShown: TypeAlias = Mapping[type[Dim], tuple[int, ...]]
"""The sizes of each dim with which a mistake shows, where it depends on the dim."""

MAX_SEARCHED = 4
"""With how many of the combinations of sizes that show mistakes a rule searches for other sizes."""


def check_each_size(context: Context, rule: Rule) -> list[Finding]:
    """The findings of a rule for all combinations of sizes: each mistake once, with the sizes that show it.

    Repairs are searched for with a few combinations only.
    """
    bindings = context.combinations
    findings = [list(rule(binding.plain)) for binding in bindings]
    mistakes: dict[object, dict[int, int]] = {}  # by the place of the combination, the place among its findings
    for place, findings_there in enumerate(findings):
        for number, finding in enumerate(findings_there):
            mistakes.setdefault(_mistake(finding), {}).setdefault(place, number)
    sizes_shown = [
        _sizes_shown(context, bindings, {place: findings[place][number].message for place, number in numbers.items()})
        for numbers in mistakes.values()
    ]
    searched: dict[int, list[Finding]] = {}
    places_to_search = [
        list(_representatives(bindings, *pair)) for pair in zip(mistakes.values(), sizes_shown, strict=True)
    ]
    if context.search:
        places = dict.fromkeys(chain.from_iterable(places_to_search))
        searched = {place: list(rule(bindings[place])) for place in islice(places, MAX_SEARCHED)}
        context.budget.exhausted |= len(places) > MAX_SEARCHED
    merged: dict[object, Finding] = {}
    for numbers, sizes, representatives in zip(mistakes.values(), sizes_shown, places_to_search, strict=True):
        place, number = next(iter(numbers.items()))
        first = searched.get(place, findings[place])[number]
        repeated = [searched[place][numbers[place]] for place in representatives if place in searched]
        finding = _merged(context, first, repeated, sizes, complete=len(repeated) == len(representatives))
        merged.setdefault(_mistake(finding), finding)
    return list(merged.values())


def _mistake(finding: Finding) -> object:
    """The key by which findings are one mistake: the numbers in a message vary with the sizes, the mistake does not."""
    return finding.code, finding.primary.span, re.sub(r"\d+", "#", finding.message)


def _sizes_shown(context: Context, bindings: Sequence[Context], messages: Mapping[int, str]) -> SizesShown:
    """The sizes with which a mistake shows; ``messages`` are those of the combinations that show it."""
    first, sizes_shown = bindings[0].sizes, dict[type[Dim], tuple[int, ...]]()
    for part in context.components:
        others = context.alternatives.keys() - set(part.dims)
        combined = [p for p, b in enumerate(bindings) if all(b.sizes[dim] == first[dim] for dim in others)]
        showing = [place for place in combined if place in messages]
        alike = len({messages[place] for place in showing}) <= 1
        if showing and not (alike and len(showing) == len(combined)):  # else it does not depend on these dims
            for dim in part.dims:
                sizes_shown[dim] = tuple(dict.fromkeys(bindings[place].sizes[dim] for place in showing))
    return {dim: sizes_shown[dim] for dim in context.alternatives if dim in sizes_shown}


def _representatives(bindings: Sequence[Context], numbers: Mapping[int, int], sizes_shown: SizesShown) -> Iterator[int]:
    """The first combination that shows a mistake, the first one with each size that does, and the last one.

    A suggestion may depend on a size that the mistake does not depend on, and is made if all of these have it.
    """
    yield next(iter(numbers))
    for dim, sizes in sizes_shown.items():
        for size in sizes:
            yield next(place for place in numbers if bindings[place].sizes[dim] == size)
    for dim in bindings[0].alternatives:
        yield max(numbers, key=lambda place: (bindings[place].sizes[dim] != bindings[0].sizes[dim], -place))


def _merged(
    context: Context, first: Finding, helped: Sequence[Finding], sizes_shown: SizesShown, *, complete: bool
) -> Finding:
    where = " and ".join(
        f"{dim} = {join_numbers(sizes, ' or ')} of {join_numbers(context.alternatives[dim], ', ')}"
        for dim, sizes in sizes_shown.items()
        if len(sizes) < len(context.alternatives[dim])
    )
    # Each line at the last place that it has in a finding, so that what repairs one size comes before what repairs all.
    places = dict[str, int]()
    for place, line in chain.from_iterable(enumerate(finding.help) for finding in helped):
        places[line] = max(place, places.get(line, 0))
    mending = tuple(
        line
        for line in sorted(places, key=places.__getitem__)
        if _of_one_size(context, line) or (complete and all(line in finding.help for finding in helped))
    )
    fixes = tuple(fix for fix in first.fixes if complete and all(fix in finding.fixes for finding in helped))
    notes = (*((f"for {where}",) if where else ()), *first.notes)
    return replace(first, notes=notes, help=mending, fixes=fixes)


def _of_one_size(context: Context, line: str) -> bool:
    """Whether a help line changes one size of a dim, and says nothing about its other sizes."""
    return any(line.startswith(f"set {dim} = ") for dim in context.alternatives)


def refuse_multiple_sizes(context: Context) -> Finding:
    """The finding that a plan is for one size of each dim."""
    sizes = ", ".join(f"{dim} = ({join_numbers(sizes, ', ')})" for dim, sizes in context.alternatives.items())
    names = ", ".join(map(str, context.alternatives))
    return Finding(
        "HF302",
        f"a plan is for one size of a dim, got {sizes}; check takes several",
        Label(context.call_site),
        notes=(f"compile a plan for each of them, or leave {names} out: such a plan takes what its input has",),
    )
