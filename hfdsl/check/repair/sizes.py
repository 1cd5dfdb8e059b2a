"""Sizes that mend a program: of one dim or, where none of one will do, of two at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations

from hfdsl.check.alike import alike
from hfdsl.check.constraints import Divides, Key, Limit, arithmetic, refuted
from hfdsl.check.findings import Fix
from hfdsl.check.repair.search import Demand, PairSearch, Search
from hfdsl.check.repair.suggestions import Option, Suggestion
from hfdsl.check.subject import Subject
from hfdsl.types.dims import Dim, Size, constant

Sizes = Mapping[type[Dim], Sequence[int]]
"""The sizes that a dim may be given instead of its own, the others as they are."""

WORKS = "every split and requirement then works out"
PAIRS = 4  # how many pairs of dims are searched for one finding


def demands_on(subject: Subject, *dims: type[Dim]) -> dict[Demand, Divides | Limit]:
    """What the program demands of these dims, as it is with the sizes of the others, and where each first stands."""
    rest = {other: constant(number) for other, number in subject.dims.items() if other not in dims}
    found: dict[Demand, Divides | Limit] = {}
    for rule in arithmetic(subject):
        demand = replace(rule.demand, size=rule.demand.size.substitute(rest))
        if demand.size.atoms and set(demand.size.atoms) <= set(dims):
            found.setdefault(demand, rule)
    return found


def repairs(
    subject: Subject, atoms: Iterable[object], mine: set[Key], wanted: Size | None = None, divisor: int = 1
) -> dict[type[Dim], tuple[int, ...]]:
    """For each of the dims its nearest sizes for which every constraint works out; other dims stay as they are.

    Where ``divisor`` is to divide ``wanted`` too, it does.
    """
    found = {}
    for dim in given(subject, atoms):
        demands = list(demands_on(subject, dim))
        if wanted is not None:
            rest = {other: constant(number) for other, number in subject.dims.items() if other is not dim}
            demands.append(Demand(wanted.substitute(rest), divisor))
        sizes = Search(dim, subject.dims[dim], demands, _Arithmetic(subject, (dim,), mine).works).nearest()
        if sizes:
            found[dim] = sizes
    return found


def given(subject: Subject, atoms: Iterable[object]) -> list[type[Dim]]:
    """The dims among these that have a size."""
    return [atom for atom in atoms if isinstance(atom, type) and atom in subject.dims]


def resized(subject: Subject, sizes: Sizes, works: str = WORKS) -> Iterator[Suggestion]:
    """Other sizes of one dim; what is broken beside that stays so."""
    for dim, numbers in sizes.items():
        after = chain.from_iterable(_with(subject, {dim: number}) for number in numbers)
        then = "this then works out" if any(map(refuted, after)) else works
        options = tuple(_option(subject, {dim: number}, str(number)) for number in numbers)
        yield Suggestion(options, f"set {subject.named(dim)} to ", f": {then}")


def in_words(subject: Subject, sizes: Sizes) -> str:
    """Each dim with its sizes."""
    return " or ".join(f"{subject.named(dim)} set to {' or '.join(map(str, n))}" for dim, n in sizes.items())


def resized_together(subject: Subject, atoms: Iterable[object], mine: set[Key]) -> Iterator[Suggestion]:
    """Other sizes of two dims at once, the pair with the smallest relative change first."""
    found = []
    for dims in _together(subject, atoms)[:PAIRS]:
        now, arithmetic = tuple(subject.dims[dim] for dim in dims), _Arithmetic(subject, dims, mine)
        search = PairSearch(dims, (now[0], now[1]), list(demands_on(subject, *dims)), arithmetic.works)
        if (pair := search.nearest()) is not None:
            found.append((search.change(*pair), dims, pair))
    for _, dims, pair in sorted(found, key=lambda each: each[0]):
        sizes = dict(zip(dims, pair, strict=True))
        then = "this then works out" if any(map(refuted, _with(subject, sizes))) else WORKS
        words = " and ".join(f"{dim} to {number}" for dim, number in zip(dims, pair, strict=True))
        yield Suggestion((_option(subject, sizes, words),), "set ", f": {then}")


def _with(subject: Subject, sizes: Mapping[type[Dim], int]) -> Iterator[Subject]:
    """The program with these sizes, and with all sizes that the other dims have."""
    dim, *_ = sizes
    return (replace(each, dims={**each.dims, **sizes}) for each in subject.with_this(dim))


def _together(subject: Subject, atoms: Iterable[object]) -> list[tuple[type[Dim], type[Dim]]]:
    """The pairs of dims with a size each that a demand on one of these dims brings together."""
    mine = given(subject, atoms)
    sets = [mine, *dict.fromkeys(rule.demand.size.atoms for rule in arithmetic(subject))]
    found: dict[frozenset[type[Dim]], tuple[type[Dim], type[Dim]]] = {}
    for pair in chain.from_iterable(combinations(given(subject, together), 2) for together in sets):
        if not set(pair).isdisjoint(mine) and subject.several.keys().isdisjoint(pair):
            found.setdefault(frozenset(pair), pair)
    return list(found.values())


def _option(subject: Subject, sizes: Mapping[type[Dim], int], words: str) -> Option:
    several = subject.several.keys() & sizes.keys()
    if several:  # one of the sizes of a dim is changed, and compared with itself: the others may be wrong as well
        now = {dim: subject.dims[dim] for dim in sizes}
        return Option(words, partial(_pinned, sizes), beside=partial(_pinned, now))
    from hfdsl.check.repair import edits  # late: it reads the user's text

    found = [edits.size(subject.asked, dim, subject.dims[dim], number) for dim, number in sizes.items()]
    made = tuple(edit for edit in found if edit is not None)
    title = f"set {' and '.join(f'{dim} to {number}' for dim, number in sizes.items())}"
    return Option(words, partial(_pinned, sizes), Fix(title, made) if len(made) == len(sizes) else None)


def _pinned(sizes: Mapping[type[Dim], int], subject: Subject) -> Subject:
    """The program with one size for each of these dims."""
    several = {dim: numbers for dim, numbers in subject.several.items() if dim not in sizes}
    return replace(subject, dims={**subject.dims, **sizes}, several=several)


class _Arithmetic:
    """Whether other sizes mend what is ``mine`` and upset nothing, with all sizes of the other dims."""

    def __init__(self, subject: Subject, dims: tuple[type[Dim], ...], mine: set[Key]) -> None:
        like = alike(subject)
        self.dims, self.subjects = dims, subject.with_this(dims[0])
        self.mine = {(like[node].id, *rest) for node, *rest in mine}
        self.nodes = tuple(dict(zip(map(id, like), like, strict=True)).values())  # what one takes, all like it take
        self.before = [refuted(each, self.nodes) for each in self.subjects]

    def works(self, *numbers: int) -> bool:
        """Whether these sizes do."""
        sizes = dict(zip(self.dims, numbers, strict=True))
        pairs = zip(self.subjects, self.before, strict=True)
        return all(
            (after := refuted(replace(each, dims={**each.dims, **sizes}), self.nodes)) <= before
            and not after & self.mine
            for each, before in pairs
        )
