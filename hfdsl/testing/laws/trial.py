"""One case of a law: numbered rows sent through the protocol, and the values observed on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hfdsl.protocols.mesh import AXES, Mesh, axis_rank
from hfdsl.protocols.partitioning import NO_SPLIT, Pad, RowSplit
from hfdsl.testing.code import as_code
from hfdsl.testing.laws.subject import LawSubject
from hfdsl.testing.laws.values import ContainerKind


class Breach(Exception):  # noqa: N818  # what a law says when it does not hold; users see BrokenLaws
    """A law does not hold: what happened, in words."""


@dataclass(frozen=True, slots=True)
class Case:
    """Rows 0 to ``rows`` - 1 in a container of some kind, on a mesh."""

    mesh: Mesh
    rows: int
    kind: ContainerKind

    def __str__(self) -> str:
        rows, article = "row" if self.rows == 1 else "rows", "an" if self.kind.name[0] == "a" else "a"
        return f"{self.rows} {rows} in {article} {self.kind.name} on {as_code(self.mesh)}"


def usual(mesh: Mesh) -> Mesh:
    """A mesh with its ranks in the usual order."""
    return replace(mesh, order=AXES)


Body = Callable[[list[int]], list[int]]
"""The computation of a rank on the numbers of its rows."""


def unchanged(rows: list[int]) -> list[int]:
    """Rows as they are."""
    return rows


def mapped(rows: list[int]) -> list[int]:
    """Map each row to another one, in reverse order, so that a sort cannot go unnoticed."""
    return [9000 - 7 * row for row in rows]


def doubled(rows: list[int]) -> list[int]:
    """Two rows of each."""
    return [twin for row in rows for twin in (9000 - 2 * row, 8999 - 2 * row)]


@dataclass(slots=True)
class Trial:
    """A case, run on a protocol; it remembers what was dispatched and collected last, for the report."""

    subject: LawSubject
    case: Case
    parts: list[Any] = field(default_factory=list)
    got: Any = None

    @property
    def mesh(self) -> Mesh:
        """The mesh of the case."""
        return self.case.mesh

    @property
    def rows(self) -> list[int]:
        """The numbers of the rows."""
        return list(range(self.case.rows))

    def value(self) -> Any:
        """The rows, in a container of their own; where the caller gives one per rank, a list of those."""
        if self.subject.per_rank:
            return [self.case.kind.make(self.of_rank(rank)) for rank in range(self.mesh.world_size)]
        return self.case.kind.make(self.rows)

    def of_rank(self, rank: int) -> list[int]:
        """The rows that the caller passes to a rank, if it passes one value per rank."""
        return [row + rank for row in self.rows]

    def dispatch(
        self, value: Any, pad: Pad | None = None, mesh: Mesh | None = None, named: Any = None
    ) -> tuple[list[Any], RowSplit]:
        """One argument, as the ranks receive it."""
        mesh = mesh or self.mesh
        placed, _, row_split = self.subject.dispatch(mesh, (value,), None if named is None else {"other": named}, pad)
        if len(placed) != 1 or not isinstance(placed[0], (list, tuple)):
            raise Breach(f"dispatch of one argument gave {_kind(placed)}: give ([one value per rank], {{}})")
        if len(placed[0]) != mesh.world_size:
            ranks = "1 rank" if mesh.world_size == 1 else f"{mesh.world_size} ranks"
            raise Breach(f"dispatch has to give a list of {mesh.world_size} for {ranks}, and gave {len(placed[0])}")
        self.parts = list(placed[0])
        return self.parts, row_split

    def apply(self, body: Body, parts: Sequence[Any]) -> list[Any]:
        """The outputs of the ranks, each in its own container."""
        return [self.case.kind.make(body(self.read(part))) for part in parts]

    def collect(self, outputs: Sequence[Any], row_split: RowSplit = NO_SPLIT, mesh: Mesh | None = None) -> Any:
        """The value that the caller receives."""
        self.got = self.subject.collect(mesh or self.mesh, list(outputs), row_split)
        return self.got

    def run(self, body: Body, pad: Pad | None = None, mesh: Mesh | None = None) -> Any:
        """The whole call."""
        parts, row_split = self.dispatch(self.value(), pad, mesh)
        return self.collect(self.apply(body, parts), row_split, mesh)

    def read(self, value: Any) -> list[int]:
        """The numbers of a value's rows.

        Raises:
            Breach: where it is none of the kind that was given.
        """
        try:
            return self.case.kind.read(value)
        except (TypeError, AttributeError, IndexError, ValueError):
            raise Breach(f"{_kind(value)} stands where a {self.case.kind.name} of rows is needed") from None

    def describe(self, value: Any) -> str:
        """The row numbers of a value, for the report; or its kind."""
        try:
            return " ".join(map(str, self.case.kind.read(value))) or "no rows"
        except Exception:  # noqa: BLE001  # the report of whatever a protocol under test gave
            return _kind(value)

    def place(self, rank: int) -> tuple[int, ...]:
        """Where a rank sits on the axes that the protocol splits over."""
        declared = self.subject.declared
        axes = declared.split if declared is not None and self.subject.splits else ()
        return tuple(axis_rank(self.mesh, axis, rank) for axis in axes)


def _kind(value: Any) -> str:
    if isinstance(value, Breach):
        return str(value)
    return f"a {type(value).__name__}" if len(repr(value)) > 60 else repr(value)


def want(holds: object, message: str) -> None:
    """Raise ``Breach`` unless it holds."""
    if not holds:
        raise Breach(message)
