"""The cases on which ``check_rows`` tries a function: arguments drawn from their types, in whole groups of rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hfdsl.errors import WiringError
from hfdsl.graph.signatures import VALUE, PortType, RecordType, Signature
from hfdsl.testing.row_calls import picked
from hfdsl.types.batches import Batch, schema, wrap_field
from hfdsl.types.columns import Column, ColumnSpec, FieldSpec, Obj, ObjSpec
from hfdsl.types.dims import evaluate

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__tracebackhide__ = True  # pytest shows the user's own lines

MAX_UNITS = 4
"""Groups of rows in the largest example."""


@dataclass(frozen=True, slots=True)
class RowCase:
    """Arguments of ``units`` groups of rows, the group to split at, and the group that a rotation starts with."""

    arguments: Mapping[str, Any]
    units: int
    cut: int
    turn: int

    def order(self) -> list[int]:
        """The groups from another one on."""
        return [*range(self.turn, self.units), *range(self.turn)]


def find_case(
    signature: Signature,
    arguments: Mapping[str, Any],
    unit: int,
    shows: Callable[[RowCase], object],
    max_examples: int,
    seed: int,
    *,
    smallest: bool = True,
) -> RowCase | None:
    """A case with the fault, or None if no example has it each time that it is tried."""
    from hfdsl.testing import strategies  # noqa: F401, I001  # first: it says how to install hypothesis
    from hypothesis import Phase, find, settings
    from hypothesis.errors import Flaky, NoSuchExample
    from hypothesis.strategies import composite

    phases = [Phase.generate, *([Phase.shrink] if smallest else [])]
    options = settings(max_examples=max_examples, database=None, deadline=None, phases=phases)
    try:
        return find(
            composite(_cases)(signature, arguments, unit),
            lambda case: shows(case) is not None,
            settings=options,
            random=random.Random(seed),
        )
    except (NoSuchExample, Flaky):
        return None


def fewest(case: RowCase, unit: int, shows: Callable[[RowCase], object]) -> RowCase:
    """The case without the groups that it does not take: rows of one number are nothing that hypothesis can drop."""
    for out in range(case.units):
        rows = [row for row in range(case.units * unit) if row // unit != out]
        arguments = {name: picked(value, rows) for name, value in case.arguments.items()}
        less = [
            RowCase(arguments, case.units - 1, cut, turn) for cut in range(case.units) for turn in range(case.units - 1)
        ]
        smaller = next((candidate for candidate in less if shows(candidate) is not None), None)
        if smaller is not None:
            return fewest(smaller, unit, shows)
    return case


def _cases(draw: DrawFn, signature: Signature, arguments: Mapping[str, Any], unit: int) -> RowCase:
    from hypothesis import reject
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy

    from hfdsl.testing.strategies.sizes import rows_bound, whole_sizes

    values = {
        name: draw(argument) if isinstance(argument, SearchStrategy) else argument
        for name, argument in arguments.items()
    }
    lengths_given = [len(cast(Sized, value)) for value in values.values() if isinstance(value, (Batch, Column, Obj))]
    units = min(lengths_given) // unit if lengths_given else draw(st.integers(1, MAX_UNITS))
    if not units:
        reject()  # less than one group
    drawn_ports = {port.name: port.type for port in signature.ports if port.required and port.name not in arguments}
    dims = {
        name: [dim for spec in fields_of(name, kind).values() for dim in spec.dims]
        for name, kind in drawn_ports.items()
    }
    sizes: dict[Any, int] = {}
    for name, lengths in dims.items():
        sizes |= rows_bound(name, lengths[0], units * unit, sizes) if lengths else {}
    sizes = whole_sizes(draw, [length for lengths in dims.values() for length in lengths], sizes)
    values |= {name: draw(_value(name, kind, sizes)) for name, kind in drawn_ports.items()}
    return RowCase(values, units, draw(st.integers(0, units)), draw(st.integers(0, units - 1)))


def fields_of(name: str, kind: PortType) -> Mapping[str, FieldSpec]:
    """The columns of a port; HF203 for one that takes a plain value."""
    if isinstance(kind, RecordType):
        return schema(kind.record).fields
    return {VALUE: _column(name, kind)}


def _column(name: str, kind: PortType) -> ColumnSpec | ObjSpec:
    if isinstance(kind, (ColumnSpec, ObjSpec)):
        return kind
    raise lacking(f"'{name}' takes a value of type {kind}, which is not drawn", name, "...")


def lacking(why: str, parameter: str, example: str) -> WiringError:
    """HF203: a parameter that needs a value in ``given=``."""
    return WiringError("HF203", f"{why}: check_rows(..., given={{{parameter!r}: {example}}})")


def _value(name: str, kind: PortType, sizes: Mapping[Any, int]) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    from hfdsl.testing.strategies.batches import batches, column

    if isinstance(kind, RecordType):
        return batches(kind.record, sizes=sizes, extreme=False)
    spec = _column(name, kind)
    values = column(spec, tuple(int(evaluate(dim, sizes)) for dim in spec.dims), extreme=False).map(
        lambda raw: wrap_field(spec, raw)
    )
    return st.none() | values if spec.optional else values
