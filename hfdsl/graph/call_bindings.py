"""The bindings of a call: match its ports to their arguments, from left to right, and solve for dims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from hfdsl.graph.fits import fits_metric, fits_static
from hfdsl.graph.program import Constant, Node
from hfdsl.graph.signatures import ListType, PortType, RecordType, StaticType
from hfdsl.graph.values import LOST, ListValue, Mismatch, MismatchKind, RecordValue
from hfdsl.protocols.kinds import PerRank
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Answer, Size, atom_size, solve


@dataclass
class CallBindings:
    """The bindings of one call while its ports are matched left to right."""

    node: Node
    mismatches: list[Mismatch]
    bound: dict[Any, Size] = field(default_factory=dict)
    bound_by: dict[Any, str] = field(default_factory=dict)
    broken: bool = False  # a mistake has left dims unbound: their sizes are unknown, not the declared ones
    uneven: bool = False  # two ports have different rows: either may be wrong

    def row(self, declared: Size) -> Size:
        """The row dim of the call's result; ``LOST`` where a mistake left it unbound."""
        if self.uneven or (self.broken and any(atom not in self.bound for atom in declared.atoms)):
            return atom_size(LOST)
        return declared.substitute(self.bound)

    def inner(self, declared: Size) -> Size:
        """Another dim of the call's result; ``LOST`` where a mistake left a type variable in it unbound."""
        if self.broken and any(isinstance(atom, TypeVar) and atom not in self.bound for atom in declared.atoms):
            return atom_size(LOST)
        return declared.substitute(self.bound)

    def report(
        self, kind: MismatchKind, port: str, formal: PortType, actual: Any, source: Any, **detail: object
    ) -> None:
        """Record a mismatch of an argument with its port."""
        self.broken = True
        facts = tuple((name, str(value)) for name, value in detail.items())
        sizes = tuple(value for value in detail.values() if isinstance(value, Size))
        self.mismatches.append(
            Mismatch(
                kind=kind,
                node=self.node.id,
                port=port,
                formal=formal,
                actual=actual,
                source=source,
                detail=facts,
                sizes=sizes,
            )
        )

    def match(self, port: str, formal: PortType, actual: Any, source: Any) -> None:
        """Match a port with the value that is wired to it; check presence only if the types fit."""
        if isinstance(formal, (ColumnSpec, ObjSpec)) and formal.optional and actual == Constant(None):
            return
        before = len(self.mismatches)
        self.fit(port, formal, actual, source)
        if len(self.mismatches) == before:
            self.presence(port, formal, actual, source)

    def fit(self, port: str, formal: PortType, actual: Any, source: Any) -> None:
        """Compare the type of a value with that of its port."""
        match formal:
            case ListType():
                self.entries(port, formal, actual, source)
            case _ if isinstance(actual, ListValue):
                self.report(MismatchKind.LIST, port, formal, actual, source)
            case RecordType(record) if isinstance(actual, RecordValue):
                if not issubclass(actual.type.record, record):
                    self.report(MismatchKind.RECORD, port, formal, actual, source)
                elif actual.rows is not None and (row := schema(record).row) is not None:
                    self.rows(port, formal, row, actual.rows, actual, source)
            case ColumnSpec() if isinstance(actual, ColumnSpec):
                self.column(port, formal, actual, source)
            case ObjSpec(kind) if isinstance(actual, ObjSpec) and fits_static(StaticType(actual.type), kind):
                self.rows(port, formal, formal.row, actual.row, actual, source)
            case MetricSpec() if isinstance(actual, MetricSpec) and fits_metric(actual, formal):
                pass
            case StaticType(annotation) if fits_static(actual, annotation):
                pass
            case _:
                self.report(MismatchKind.VALUE, port, formal, actual, source)

    def presence(self, port: str, formal: PortType, actual: Any, source: Any) -> None:
        """Check that a column that may be absent goes to an optional port or column."""
        if isinstance(formal, (ColumnSpec, ObjSpec)) and isinstance(actual, (ColumnSpec, ObjSpec)):
            if actual.optional and not formal.optional:
                self.report(MismatchKind.ABSENT, port, formal, actual, source)
        elif isinstance(formal, RecordType) and isinstance(actual, RecordValue):
            have = schema(actual.type.record).fields
            for name, spec in schema(formal.record).fields.items():
                if name in have and have[name].optional and not spec.optional:  # made optional by a derived record
                    self.report(MismatchKind.ABSENT, port, formal, actual, source, column=name)

    def entries(self, port: str, formal: ListType, actual: Any, source: Any) -> None:
        """Match a list of ranks' values: its kind, and one entry for all."""
        if isinstance(actual, Constant) and isinstance(actual.value, (list, tuple, PerRank)):
            inner = formal.inner
            if not isinstance(inner, StaticType) or any(
                not fits_static(Constant(v), inner.annotation) for v in actual.value
            ):
                self.report(MismatchKind.VALUE, port, formal, actual, source)
        elif not isinstance(actual, ListValue) or actual.kind != formal.kind:
            self.report(MismatchKind.LIST, port, formal, actual, source)
        elif actual.inner is not None:
            self.match(port, formal.inner, actual.inner, source)

    def column(self, port: str, formal: ColumnSpec, actual: ColumnSpec, source: Any) -> None:
        """Match a column to its port: raggedness, dtype and dims."""
        if actual.ragged is not formal.ragged:
            self.report(MismatchKind.RAGGED, port, formal, actual, source)
        elif actual.dtype is not formal.dtype:
            self.report(MismatchKind.DTYPE, port, formal, actual, source)
        elif len(actual.dims) != len(formal.dims):
            self.report(MismatchKind.RANK, port, formal, actual, source)
        else:
            before = len(self.mismatches)
            for position, (expected, actual_dim) in enumerate(zip(formal.dims[1:], actual.dims[1:], strict=True), 1):
                self.dim(port, formal, expected, actual_dim, position, actual, source)
            if len(self.mismatches) == before:  # else it is the wrong column, and its rows are irrelevant
                self.rows(port, formal, formal.dims[0], actual.dims[0], actual, source)

    def dim(
        self, port: str, formal: ColumnSpec, want: Size, have: Size, position: int, actual: Any, source: Any
    ) -> None:
        """Match an inner dim to that of its port."""
        if LOST in have.atoms:
            self.broken = True
            return
        variables = {a: self.bound[a] for a in want.atoms if a in self.bound and isinstance(a, TypeVar)}
        free = [a for a in want.atoms if isinstance(a, TypeVar) and a not in self.bound]
        if free:
            rigid = {a: atom_size(a) for a in want.atoms if not isinstance(a, TypeVar)}
            solution = solve(want, have, {**rigid, **variables})
            if solution is None:
                self.report(
                    MismatchKind.UNSOLVED, port, formal, actual, source, position=position, want=want, have=have
                )
            for atom, value in (solution or {}).items():
                self.bound[atom], self.bound_by[atom] = value, port
            return
        want = want.substitute(variables)
        if want.equals(have) is not Answer.PROVED:
            origin = next((self.bound_by[a] for a in variables), "")
            self.report(
                MismatchKind.DIM, port, formal, actual, source, position=position, want=want, have=have, origin=origin
            )

    def rows(self, port: str, formal: PortType, want: Size, have: Size, actual: Any, source: Any) -> None:
        """Bind the row dim at the first port that has it; compare it at all others."""
        if LOST in have.atoms:
            self.broken = True
            return
        solution = solve(want, have, self.bound)
        if solution is None and want.substitute(self.bound) == have:
            solution = {
                atom: atom_size(atom) for atom in want.atoms if atom not in self.bound
            }  # a product of several dims, equal as declared
        if solution is None:
            self.report(MismatchKind.UNSOLVED, port, formal, actual, source, position=0, want=want, have=have)
            return
        for atom, value in solution.items():
            self.bound[atom], self.bound_by[atom] = value, port
        if solution:
            return
        expected = want.substitute(self.bound)
        answer = expected.equals(have)
        if answer is not Answer.PROVED:
            kind = MismatchKind.ROWS if answer is Answer.REFUTED else MismatchKind.ROWS_UNKNOWN
            self.uneven = kind is MismatchKind.ROWS
            origin = self.bound_by[want.atoms[0]] if want.atoms else ""
            self.report(kind, port, formal, actual, source, want=expected, have=have, origin=origin)
