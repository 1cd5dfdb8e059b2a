"""``check_laws`` and ``lawful``: every law on many cases, and of a broken one the smallest case that breaks it.

A case is a mesh, a number of rows and a kind of container. There are so few of each that the smallest case is not
shrunk to but looked up: meshes, row counts and containers are listed by size, and the first that breaks the law is the
smallest. For example, a collect that joins parts from the last rank to the first, and the law that rows which ranks
give back unchanged come back in their order::

    tried first   Mesh(dp=3), 6 rows, record   [4, 5, 2, 3, 0, 1]   broken
    container     Mesh(dp=3), 6 rows, list     [4, 5, 2, 3, 0, 1]   broken in the simplest one too
    by size       Mesh(dp=1), 1 row,  list     [0]                  holds
                  Mesh(dp=1), 2 rows, list     [0, 1]               holds
                  Mesh(dp=1), 3 rows, list     [0, 1, 2]            holds
                  Mesh(dp=2), 2 rows, list     [1, 0]               broken: this one is reported

``MAX_SHRINKING_CASES`` bounds how far the list is followed; beyond it, the case that was found first is reported.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, permutations
from pathlib import Path
from typing import Any, TypeVar

import hfdsl
from hfdsl.errors import HfError
from hfdsl.protocols.dispatch import Dispatch, Functions
from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import ModeLike
from hfdsl.testing.arguments import meshes_of, names_of, nothing, number_of, seed_of
from hfdsl.testing.code import as_code
from hfdsl.testing.laws.subject import LawSubject, subject_of
from hfdsl.testing.laws.table import LAWS, Law
from hfdsl.testing.laws.trial import Breach, Case, Trial, usual
from hfdsl.testing.laws.values import ContainerKind, kinds

__tracebackhide__ = True  # pytest shows the user's own lines

T = TypeVar("T", bound=type)

PACKAGE = Path(hfdsl.__file__).parent
"""Errors are placed on lines outside of it, which are those of the protocol."""

MAX_RANKS = 16
"""Ranks of the largest mesh that is tried by default."""

MAX_SHRINKING_CASES = 4000
"""How many cases are tried to shrink a failing one."""


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """A broken law: its smallest failing case, the mistake in it, and the observed values."""

    law: Law
    case: Case
    said: str
    shown: str

    def __str__(self) -> str:
        return f"{self.law}\n  {self.said}\n{self.shown}"


class BrokenLaws(AssertionError):  # noqa: N818  # that it is an error is in its base
    """A protocol breaks laws: ``broken`` has each of them with its smallest case."""

    def __init__(self, name: str, broken: Sequence[BrokenLaw], of: int) -> None:
        self.name, self.broken, self.of = name, tuple(broken), of
        listed = "\n\n".join(map(str, broken))
        super().__init__(f"{name} breaks {len(broken)} of the {of} laws that apply to it\n\n{listed}")

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.name, self.broken, self.of))


def check_laws(
    protocol: ModeLike | Functions,
    *,
    like: Dispatch | Protocol | str | None = None,
    only: str | Iterable[str] | None = None,
    meshes: Iterable[Mesh] | None = None,
    containers: str | Iterable[str] | None = None,
    max_examples: int = 200,
    seed: int = 0,
) -> None:
    """Hold a transfer protocol to the laws: a declared one, a mode by name, or a pair of functions.

    Of a pair it is known that it splits rows and joins them again. Where it is to do what a declared protocol does,
    ``like`` names that one, and more laws apply. ``only`` names laws, as ``"L5"`` or ``"order"``. ``meshes`` are those
    that the protocol is made for, instead of all of up to 16 ranks in every numbering, and ``containers`` what it is
    made for of ``"list"``, ``"record"``, ``"tensor"`` and ``"array"``. Each law is tried on ``max_examples`` cases, the
    smallest ones and others by ``seed``.

    Raises:
        BrokenLaws: of each law that does not hold, the smallest case.
        DefinitionError: HF921 for what is not a protocol, and for a mesh, law or container that is none; HF922 if no
            law would be tried.

    >>> import hfdsl as hf
    >>> check_laws(hf.Dispatch.THREE_D_PROTO, max_examples=20)
    >>> def from_the_last(group, outputs):
    ...     return [row for output in reversed(outputs) for row in output]
    >>> pair = hf.protocols.get_predefined_dispatch_fn("DP_PROTO") | {"collect_fn": from_the_last}
    >>> check_laws(pair, only="round_trip", max_examples=20)
    Traceback (most recent call last):
    hfdsl.testing.laws.check.BrokenLaws: the pair dispatch_fn, from_the_last breaks 1 of the 1 laws that apply to it
    ...
    """
    number_of("check_laws", "max_examples=", max_examples)
    seed = seed_of("check_laws", seed)
    subject = subject_of(protocol, like)
    laws = applying(subject, only)
    if not laws:
        raise nothing("check_laws", f"no law of only={only!r} applies to {subject.name}")
    kinds = _kinds(containers)
    cases = Cases(subject, _meshes(subject, meshes_of("check_laws", meshes)), kinds, chosen=meshes is not None)
    again = _again(protocol, like, seed)
    breaks = [broken for law in laws if (broken := _broken_law(cases, law, max_examples, seed, again))]
    if breaks:
        raise BrokenLaws(subject.name, breaks, len(laws))


def _again(protocol: object, like: object, seed: int) -> str:
    """How a call like this one begins; a pair of functions has no name that could be pasted."""
    pair = isinstance(protocol, (Mapping, Functions))
    return ", ".join(
        [
            "check_laws(..." if pair else f"check_laws({as_code(protocol)}",
            *([f"like={as_code(like)}"] if like is not None else []),
            *([f"seed={seed}"] if seed else []),
        ]
    )


def lawful(
    protocol: ModeLike | Functions,
    *,
    like: Dispatch | Protocol | str | None = None,
    only: str | Iterable[str] | None = None,
    meshes: Iterable[Mesh] | None = None,
    containers: str | Iterable[str] | None = None,
    max_examples: int = 200,
    seed: int = 0,
) -> Callable[[T], T]:
    """Give a test class a test for every law that applies to a protocol; options are those of ``check_laws``.

    Raises:
        DefinitionError: as ``check_laws`` does, where the class is decorated.

    >>> @lawful("DP_PROTO", max_examples=20)
    ... class TestMyProtocol:
    ...     "Whatever else is to be tested of it."
    >>> TestMyProtocol().test_l3_round_trip()
    """
    subject = subject_of(protocol, like)
    laws, lawful_meshes = (
        applying(subject, only),
        meshes_of("lawful", meshes),
    )  # several tests read what may be a generator
    names = None if containers is None else [kind.name for kind in _kinds(containers)]
    number_of("lawful", "max_examples=", max_examples)
    seed_of("lawful", seed)
    if not laws:
        raise nothing("lawful", f"no law of only={only!r} applies to {subject.name}")

    def test_of(law: Law) -> Callable[[Any], None]:
        def test(self: Any) -> None:
            check_laws(
                protocol,
                like=like,
                only=law.id,
                meshes=lawful_meshes,
                containers=names,
                max_examples=max_examples,
                seed=seed,
            )

        test.__doc__ = f"{law.says[0].upper()}{law.says[1:]}."
        return test

    def add(cls: T) -> T:
        for law in laws:
            setattr(cls, f"test_{law.id.lower()}_{law.name}", test_of(law))
        return cls

    return add


def applying(subject: LawSubject, only: str | Iterable[str] | None = None) -> tuple[Law, ...]:
    """The laws that apply to a protocol, or those of them that are named; HF921 for a name that no law has."""
    law_names = [name for law in LAWS for name in (law.id, law.name)]
    names = names_of("check_laws", "only=", only, law_names, "law")
    return tuple(law for law in LAWS if law.applies(subject) and {law.id, law.name} & set(names))


# -- cases


@lru_cache(maxsize=8)
def meshes_up_to(ranks: int) -> tuple[Mesh, ...]:
    """All meshes with up to ``ranks`` ranks, every generation size and every distinct order, the simplest first."""
    sizes = [
        (pp, dp, tp)
        for pp in range(1, ranks + 1)
        for dp in range(1, ranks // pp + 1)
        for tp in range(1, ranks // (pp * dp) + 1)
    ]
    shapes = [
        Mesh(pp=pp, dp=dp, tp=tp, gen_pp=gen_pp, gen_tp=gen_tp)
        for pp, dp, tp in sizes
        for gen_pp in (None, *(n for n in range(1, pp) if pp % n == 0))
        for gen_tp in (None, *(n for n in range(1, tp) if tp % n == 0))
    ]
    every = [mesh for shape in shapes for mesh in orders_of(shape)]
    return tuple(sorted(every, key=_size))


def orders_of(mesh: Mesh) -> Iterator[Mesh]:
    """The mesh in every order of its axes that numbers its ranks in another way."""
    seen = set[tuple[str, ...]]()
    for order in permutations(AXES):
        long = tuple(axis for axis in order if getattr(mesh, axis) > 1)
        if long not in seen:
            seen.add(long)
            yield Mesh(pp=mesh.pp, dp=mesh.dp, tp=mesh.tp, gen_pp=mesh.gen_pp, gen_tp=mesh.gen_tp, order=order)


def _size(mesh: Mesh) -> tuple[object, ...]:
    axes = sum(getattr(mesh, axis) > 1 for axis in AXES)
    folds = sum(size is not None for size in (mesh.gen_pp, mesh.gen_tp))
    return mesh.world_size, axes, folds, mesh.order != AXES, -mesh.dp, -mesh.tp


def _meshes(subject: LawSubject, chosen: Sequence[Mesh] | None) -> tuple[Mesh, ...]:
    """The meshes to try: of a declared protocol those that have the coordinates that it picks."""
    every = meshes_up_to(MAX_RANKS) if chosen is None else tuple(sorted(chosen, key=_size))

    def has_all_picks(mesh: Mesh) -> bool:
        try:
            return subject.declared is None or bool(subject.declared.collected(mesh))
        except HfError:
            return False

    usable = tuple(mesh for mesh in every if has_all_picks(mesh)) if _picks_numbers(subject) else every
    if not usable:
        raise nothing("check_laws", f"no mesh has the coordinates that {subject.name} picks")
    return usable


def _picks_numbers(subject: LawSubject) -> bool:
    return subject.declared is not None and any(isinstance(pick, int) for _, pick in subject.declared.picks)


def _kinds(containers: str | Iterable[str] | None) -> tuple[ContainerKind, ...]:
    """The kinds of container with these names, the simplest first."""
    kinds_by_name = {kind.name: kind for kind in kinds()}
    wanted = names_of("check_laws", "containers=", containers, list(kinds_by_name), "container")
    return tuple(kind for name, kind in kinds_by_name.items() if name in wanted)


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a protocol: its meshes and containers, the simplest of both first."""

    subject: LawSubject
    meshes: tuple[Mesh, ...]
    kinds: tuple[ContainerKind, ...]
    chosen: bool = False

    def grounds(self, law: Law) -> Sequence[Mesh]:
        """The meshes of a law: most laws use the usual numbering of ranks, and one compares it with others."""
        if law.orders or self.chosen:
            return self.meshes
        return tuple(dict.fromkeys(map(usual, self.meshes)))

    def rows(self, law: Law, mesh: Mesh) -> Sequence[int]:
        """How many rows to try on a mesh."""
        chunks = self.subject.chunks(mesh)
        if law.rows == "any":
            return range(1, 2 * chunks + 2)
        uneven = (
            [chunks + 1, 2 * chunks - 1] if law.rows == "mostly_even" and self.subject.functions is not None else []
        )
        return sorted({chunks, 2 * chunks, 3 * chunks, *uneven})

    def some(self, law: Law, count: int, seed: int) -> Iterator[Case]:
        """Three in four on the simplest meshes, in turn, the fourth on any; half of them in the simplest container."""
        ground, kind = self.grounds(law)[0], self.kinds[0]
        if len(self.grounds(law)) == len(self.kinds) == 1 and len(self.rows(law, ground)) <= count:
            yield from (Case(ground, rows, kind) for rows in self.rows(law, ground))  # there are no others
            return
        source, meshes, (simple, *others) = random.Random(f"{seed} {law.id}"), self.grounds(law), self.kinds
        for number in range(count):
            mesh = meshes[number - number // 4] if number % 4 and number < len(meshes) else source.choice(meshes)
            kind = simple if number % 2 or not others else others[number // 2 % len(others)]
            yield Case(mesh, source.choice(self.rows(law, mesh)), kind)


# -- trying them


def _broken_law(cases: Cases, law: Law, count: int, seed: int, again: str) -> BrokenLaw | None:
    """Check the law on all cases; if it fails, on smaller ones."""
    examples = max(min(count, 5), round(count * law.share))
    for case in cases.some(law, examples, seed):
        if _fault(cases.subject, law, case) is not None:
            return _reported(cases.subject, law, _smallest(cases, law, case), again)
    return None


def _fault(subject: LawSubject, law: Law, case: Case) -> tuple[str, Trial] | None:
    """The breach of a law in a case; None if the law holds."""
    trial = Trial(subject, case)
    try:
        law.holds(trial)
    except Breach as breach:
        return str(breach), trial
    except Exception as error:  # noqa: BLE001  # whatever a protocol under test raises
        return _raised(error), trial
    return None


def _raised(error: Exception) -> str:
    text = str(error) if isinstance(error, HfError) else f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    of_protocol = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE)]
    places = [f" ({Path(frame.filename).name}:{frame.lineno} in {frame.name})" for frame in of_protocol[-1:]]
    return "".join(["raised ", text, *places])


def _smallest(cases: Cases, law: Law, case: Case) -> Case:
    """The simplest container that breaks it there, and then the first mesh and the fewest rows that do."""
    simpler_kinds = (replace(case, kind=kind) for kind in cases.kinds[: cases.kinds.index(case.kind)])
    case = next(
        (smaller_case for smaller_case in simpler_kinds if _fault(cases.subject, law, smaller_case) is not None), case
    )
    before = (Case(mesh, rows, case.kind) for mesh in cases.grounds(law) for rows in cases.rows(law, mesh))
    smaller = islice(before, max(10, round(MAX_SHRINKING_CASES * law.share)))
    return next(
        (smaller_case for smaller_case in smaller if _fault(cases.subject, law, smaller_case) is not None), case
    )


def _reported(subject: LawSubject, law: Law, case: Case, again: str) -> BrokenLaw:
    message, trial = _fault(subject, law, case) or ("it broke once, and did not when it was tried again", None)
    lines = [("case", str(case))]
    if trial is not None:
        lines += [
            (f"rank {rank} ({case.mesh.coordinates(rank)})", f"receives {trial.describe(part)}")
            for rank, part in enumerate(trial.parts[: case.mesh.world_size])
        ]
        lines += [("the caller", f"gets {_result(trial)}")] if trial.got is not None else []
    chosen = f'only="{law.id}", meshes=[{as_code(case.mesh)}], containers="{case.kind.name}"'
    lines.append(("again", f"{again}, {chosen})"))
    width = max(len(name) for name, _ in lines)
    return BrokenLaw(law, case, message, "\n".join(f"  {name:<{width}}  {text}" for name, text in lines))


def _result(trial: Trial) -> str:
    got = trial.got
    if not trial.subject.joins and isinstance(got, (list, tuple)):
        return ", ".join(trial.describe(output) for output in got)
    return trial.describe(got)
