"""The laws of transfer protocols, a small function each, and the table of them.

Of a pair of functions it is known that it splits rows and joins them again. A declared protocol says more, and so does
a pair with ``like=``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

from hfdsl.errors import SizeError
from hfdsl.protocols.mesh import Mesh, axis_rank, axis_size
from hfdsl.protocols.partitioning import Pad
from hfdsl.protocols.protocol import Protocol
from hfdsl.testing.laws.composed import composition
from hfdsl.testing.laws.subject import LawSubject
from hfdsl.testing.laws.trial import Body, Breach, Trial, doubled, mapped, unchanged, usual, want

RowCounts: TypeAlias = Literal["even", "mostly_even", "any"]


@dataclass(frozen=True, slots=True)
class Law:
    """A law: its statement, the function that raises ``Breach`` if it fails, and the cases to try it on.

    ``rows`` says whether they divide over the ranks: always, except in some cases of a pair of functions, or in any
    way. ``orders`` says whether ranks are numbered in any way, or as usual. ``share`` is the part of the examples that
    it is tried on.
    """

    id: str
    name: str
    says: str
    holds: Callable[[Trial], None]
    applies: Callable[[LawSubject], bool] = lambda subject: True
    rows: RowCounts = "even"
    orders: bool = False
    share: float = 1.0

    def __str__(self) -> str:
        return f"{self.id} {self.name.replace('_', ' ')}: {self.says}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_law, (self.id,))  # a failure crosses to another process: pytest-xdist sends it


def coverage(trial: Trial) -> None:
    """Every argument is a list with one entry per rank; no rank is left without rows, and no row without a rank."""
    world = trial.mesh.world_size
    placed, named, _ = trial.subject.dispatch(trial.mesh, (trial.value(),), {"other": trial.value()})
    want(len(placed) == 1, f"one positional argument was given, and dispatch gave {len(placed)}")
    want(list(named) == ["other"], f"the argument other= was given, and dispatch gave {', '.join(named) or 'none'}")
    for parts in (placed[0], named["other"]):
        trial.parts = list(parts)
        want(len(parts) == world, f"dispatch made {len(parts)} parts for {world} ranks")
        lost = sorted(set(trial.rows).difference(*map(trial.read, parts)))
        want(not lost, f"no rank receives row {lost[0] if lost else ''}")
        for rank, part in enumerate(parts):
            want(trial.read(part), f"rank {rank} receives no rows")
    if not trial.subject.joins and trial.subject.declared is not None:
        got = trial.collect(list(placed[0]))
        wanted = {"per_rank": world, "per_stage": trial.mesh.pp}[trial.subject.declared.gives]
        want(len(got) == wanted, f"collect gives a list of {len(got)} where there are {wanted}")


def agreement(trial: Trial) -> None:
    """Ranks that differ along no split axis receive equal values; of a pair, ranks that have the same rows."""
    parts, _ = trial.dispatch(trial.value())
    is_declared = trial.subject.declared is not None
    first: dict[Any, int] = {}
    for rank, part in enumerate(parts):
        rows = trial.read(part)
        first_rank = first.setdefault(trial.place(rank) if is_declared else frozenset(rows), rank)
        same = trial.read(parts[first_rank]) == rows and trial.case.kind.whole(part) == trial.case.kind.whole(
            parts[first_rank]
        )
        want(same, f"ranks {first_rank} and {rank} are replicas of each other and receive different values")


def round_trip(trial: Trial) -> None:
    """Values that ranks return unchanged come back unchanged."""
    if trial.subject.joins:
        _comes_back(trial, unchanged, "ranks return what they receive")
        return
    for place, entry in enumerate(trial.run(unchanged)):
        expected = trial.of_rank(place) if trial.subject.per_rank else trial.rows
        want(
            trial.read(entry) == expected,
            f"entry {place} of the result is {trial.describe(entry)}; the rank gave {expected}",
        )


def row_map(trial: Trial) -> None:
    """A body that works row by row gives what it gives on all rows at once."""
    for body, returned in (
        (mapped, "9000 - 7 * row for each row"),
        (doubled, "two rows, 9000 - 2 * row and 8999 - 2 * row, for each row"),
    ):
        _comes_back(trial, body, f"each rank returns {returned}")


def _comes_back(trial: Trial, body: Body, returned: str) -> None:
    """Rows that ranks return come back in order. Rows that do not divide may be refused; their number is for L7."""
    even = trial.case.rows % trial.subject.chunks(trial.mesh) == 0
    expected = body(trial.rows)
    try:
        got = trial.read(trial.run(body))
    except Exception:
        if even:
            raise
        return
    if even or sorted(got) == sorted(expected):
        want(got == expected, f"{returned}: {_should_get(expected)}")


def order(trial: Trial) -> None:
    """The numbering of ranks does not change the value that the caller receives."""
    usual_rows = trial.read(trial.run(mapped, mesh=usual(trial.mesh)))
    usually = " ".join(map(str, usual_rows))
    got = trial.read(trial.run(mapped))
    want(got == usual_rows, f"each rank returns 9000 - 7 * row; in the usual order the caller gets {usually}")


def _should_get(rows: Iterable[int]) -> str:
    return f"the caller should get {' '.join(map(str, rows))}"


def partition(trial: Trial) -> None:
    """No row goes to two coordinates of the split axes; of a pair, sets of rows do not overlap."""
    parts, _ = trial.dispatch(trial.value())
    is_declared = trial.subject.declared is not None
    holders: dict[Any, list[int]] = {}
    for rank, part in enumerate(parts):
        rows = trial.read(part)
        holders.setdefault(trial.place(rank) if is_declared else frozenset(rows), sorted(rows))
    placed = sorted(row for rows in holders.values() for row in rows)
    twice = next((a for a, b in pairwise(placed) if a == b), None)
    want(twice is None, f"row {twice} arrives twice, beside the replicas that have the same rows")
    foreign = sorted(set(placed) - set(trial.rows))
    want(not foreign, f"the ranks receive row {foreign[0] if foreign else ''}, which the caller does not have")


def padding(trial: Trial) -> None:
    """Pad rows never come back, and which rows they are changes nothing; without padding uneven rows are refused."""
    chunks = trial.subject.chunks(trial.mesh)
    even = trial.case.rows % chunks == 0
    rows = "1 row does" if trial.case.rows == 1 else f"{trial.case.rows} rows do"
    uneven = f"{rows} not divide into {chunks} chunks"
    bodies = (unchanged, "ranks return what they receive"), (doubled, "ranks return two rows for each row")
    if trial.subject.functions is None:
        for pad in get_args(Pad):
            for body, returned in bodies:
                expected = body(trial.rows)
                want(
                    trial.read(trial.run(body, pad=pad)) == expected,
                    f"pad={pad!r}, {returned}: {_should_get(expected)}",
                )
        if not even:
            want(_refused(trial), f"{uneven}, and are not refused without padding")
    elif not even:
        for body, returned in bodies:
            try:
                got = trial.run(body)
            except Exception:  # noqa: BLE001  # rows that do not divide are refused: as good as padding them
                return
            expected = body(trial.rows)
            right = sorted(trial.read(got)) == sorted(expected)
            want(right, f"{uneven}, and {returned}: {_should_get(expected)} in some order, or an error at dispatch")


def _refused(trial: Trial) -> bool:
    try:
        trial.dispatch(trial.value())
    except SizeError:
        return True
    return False


def no_aliasing(trial: Trial) -> None:
    """The caller's object and the ranks' outputs stay as they are, and no rank receives the caller's own object."""
    pad: Pad | None = "cycle" if trial.subject.functions is None and _splits_and_joins(trial.subject) else None
    value, named, kind = trial.value(), trial.value(), trial.case.kind
    mine = [*value, *named] if trial.subject.per_rank else [value, named]

    def unharmed(when: str) -> None:
        current = [trial.describe(container) for container in mine]
        damaged = next((damage for container in mine if (damage := kind.whole(container)) is not None), None)
        want(damaged is None, f"the caller's object is {damaged} {when}")
        expected = [
            trial.describe(container) for container in (trial.value() if trial.subject.per_rank else [trial.value()])
        ] * 2
        for number, (rows, before) in enumerate(zip(current, expected, strict=True)):
            passed = "by position" if 2 * number < len(expected) else "by name"
            want(rows == before, f"the caller passed rows {before} {passed}, and its object has {rows} {when}")

    try:
        parts, added = trial.dispatch(value, pad, named=named)
    except Exception:
        unharmed("after a dispatch that failed")
        if pad or trial.case.rows % trial.subject.chunks(trial.mesh) == 0:
            raise
        return  # rows that do not divide are refused
    unharmed("after dispatch")
    outputs = trial.apply(unchanged, parts)
    if trial.subject.splits:
        owner = next((rank for rank, part in enumerate(parts) if part is value), None)
        want(owner is None, f"rank {owner} receives the caller's own object")
        for part in parts if kind.name == "list" else ():
            part.append(-1)
        unharmed("after ranks have appended to their own lists")
    handed, before_collect = list(outputs), [trial.describe(output) for output in outputs]
    trial.got = trial.subject.collect(trial.mesh, handed, added)
    same = len(handed) == len(outputs) and all(a is b for a, b in zip(handed, outputs, strict=True))
    want(same, "collect changed the list of outputs that it received")
    want([trial.describe(output) for output in outputs] == before_collect, "collect changed an output that it received")
    unharmed("after collect")


class Junk:
    """The output of a rank that a collect must not read."""

    def __repr__(self) -> str:
        return "junk"


def placement(trial: Trial) -> None:
    """Ranks hold what is declared; collect looks only at those that have the result, whatever the others give."""
    declared = trial.subject.declared
    if declared is None:
        return  # the law applies to none of these
    parts, added = trial.dispatch(trial.value())
    rows, size = trial.rows, trial.case.rows // trial.subject.chunks(trial.mesh)
    seen = set[int]()
    for rank, chunk in enumerate(declared.chunk_of(trial.mesh)):
        expected = rows[chunk * size : (chunk + 1) * size] if trial.subject.splits else rows
        if trial.subject.per_rank:
            expected = trial.of_rank(rank)
        if chunk not in seen:  # of replicas the first: that they agree is another law
            want(trial.read(parts[rank]) == expected, f"rank {rank} is to hold the rows {' '.join(map(str, expected))}")
        seen.add(chunk)
    outputs = trial.apply(mapped, parts)
    full = trial.collect(outputs, added)
    silent = [rank for rank in range(trial.mesh.world_size) if not _has_result(declared, trial.mesh, rank)]
    try:
        others = trial.collect([Junk() if rank in silent else output for rank, output in enumerate(outputs)], added)
    except Exception as error:  # noqa: BLE001  # of whatever a protocol under test does
        looks = f"collect looks at what ranks {silent} return, which have no part in the result: with junk in its place"
        raise Breach(f"{looks}, it raises {type(error).__name__}: {error}") from None
    same = trial.read(others) == trial.read(full) if trial.subject.joins else len(others) == len(full)
    want(same, f"ranks {silent} have no part in the result and gave junk, which changed it")


def _has_result(declared: Protocol, mesh: Mesh, rank: int) -> bool:
    """Whether the declaration may look at what a rank gives."""
    for axis, pick in declared.picks:
        size, at = axis_size(mesh, axis), axis_rank(mesh, axis, rank)
        picked = {"first": 0, "last": size - 1}.get(pick) if isinstance(pick, str) else pick
        if picked is not None and at != picked:
            return False
    return True


def structure(trial: Trial) -> None:
    """Types, dtypes and columns stay, and every object stays with its row."""
    parts, added = trial.dispatch(trial.value())
    kind = trial.case.kind
    for rank, part in enumerate(parts):
        damage = kind.whole(part)
        want(damage is None, f"rank {rank} receives {damage}")
    got = trial.collect([kind.make(trial.read(part)) for part in parts], added)
    for result in [got] if trial.subject.joins else got:
        damage = kind.whole(result)
        want(damage is None, f"the caller gets {damage}")


def determinism(trial: Trial) -> None:
    """Equal calls give equal parts, whatever was called before and in any order of keywords."""

    def once(*names: str) -> dict[str, list[list[int]]]:
        _, named, _ = trial.subject.dispatch(trial.mesh, (), {name: trial.value() for name in names})
        return {name: [trial.read(part) for part in named[name]] for name in sorted(named)}

    def parts(call: Mapping[str, list[list[int]]]) -> str:
        return "ranks receive of a " + " | ".join(" ".join(map(str, rows)) or "no rows" for rows in call["a"])

    first = once("a", "b")
    trial.dispatch(trial.value())
    again, turned = once("a", "b"), once("b", "a")
    want(again == first, f"a call gives other parts the second time: first {parts(first)}, then {parts(again)}")
    want(turned == first, f"with a= before b= in a call, {parts(first)}; with b= before a=, {parts(turned)}")
    want(first["a"] == first["b"], "two arguments of one call have the same rows and are cut in different ways")


def _splits(subject: LawSubject) -> bool:
    return subject.splits


def _joins(subject: LawSubject) -> bool:
    return subject.joins


def _splits_and_joins(subject: LawSubject) -> bool:
    return subject.splits and subject.joins


def _declares(subject: LawSubject) -> bool:
    return subject.declared is not None


LAWS: tuple[Law, ...] = (
    Law("L1", "coverage", "every row reaches a rank, and every rank has rows", coverage, orders=True),
    Law("L2", "agreement", "replicas receive equal values", agreement, lambda s: not s.per_rank, orders=True),
    Law("L3", "round_trip", "if ranks return their arguments, the caller receives what it passed", round_trip,
        rows="mostly_even"),
    Law("L4", "row_map", "a row-wise body gives the same values as on all rows at once", row_map, _joins,
        rows="mostly_even"),
    Law("L5", "order", "the numbering of ranks does not change what the caller receives", order, _joins, orders=True),
    Law("L6", "partition", "no row goes to two places", partition, _splits, orders=True),
    Law("L7", "padding", "pad rows never come back", padding, _splits_and_joins, rows="any"),
    Law("L8", "no_aliasing", "arguments and outputs stay unchanged and unshared", no_aliasing, rows="any", orders=True),
    Law("L9", "placement", "ranks hold what is declared; no other output is read", placement, _declares, orders=True),
    Law("L10", "composition", "a plan gives the values of calls by hand", composition, _splits_and_joins, share=0.02),
    Law("L11", "structure", "types, dtypes, columns and the rows of objects are kept", structure, orders=True),
    Law("L12", "determinism", "the same call gives the same result", determinism, orders=True),
)  # fmt: skip  # a table
"""All laws, by their numbers."""


def _law(name: str) -> Law:
    return next(law for law in LAWS if law.id == name)
