"""Sizes of dims, built as multiples of their divisors, never drawn and discarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from hfdsl.check.run import build_context
from hfdsl.check.sizes.constraints import SizeSet
from hfdsl.check.sizes.report import size_report
from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import SizeError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.signatures import RecordType
from hfdsl.testing.arguments import number_of, refused, sizes_of
from hfdsl.types.batches import Batch, schema
from hfdsl.types.dims import Atom, Dim, Size, constant, solve

MAX_MULTIPLE = 4
"""The largest multiple of its divisor that a dim without a given size can have."""

MAX_CHOICES = 8
"""How many of the allowed sizes are drawn from, the smallest first."""


@st.composite
def dims(
    draw: st.DrawFn, *records: type[Batch], b: int | None = None, sizes: Mapping[Any, int] | None = None
) -> dict[Any, int]:
    """A size for each dim of some records, with which all of their columns have whole lengths.

    ``b`` is the number of rows of the first record; ``sizes`` are dims whose sizes are known.

    Raises:
        SizeError: HF310 if no size of the row dim makes ``b`` rows.
        DefinitionError: HF921 for what is no record, and for sizes of another kind.

    >>> import hfdsl as hf
    >>> from typing import Literal
    >>> from hypothesis import find
    >>> class B(hf.Dim): ...
    >>> class Halves(hf.Batch):
    ...     left: hf.f32[B]
    ...     right: hf.f32[B, hf.Div[B, Literal[2]]]
    >>> find(dims(Halves), lambda sizes: True)
    {B: 2}
    """
    for record in records:
        if not isinstance(record, type) or not issubclass(record, Batch):
            raise refused("dims", "records", "classes derived from hf.Batch", record)
    bound = {} if sizes is None else sizes_of("dims", sizes, "sizes=")
    row = schema(records[0]).row if records else None
    if b is not None and row is not None:
        bound |= rows_bound(records[0].__name__, row, number_of("dims", "b=", b, 0), bound)
    specs = [spec for record in records for spec in schema(record).fields.values()]
    return whole_sizes(draw, [dim for spec in specs for dim in spec.dims], bound)


def whole_sizes(draw: st.DrawFn, lengths: Sequence[Size], bound: Mapping[Any, int]) -> dict[Any, int]:
    """The sizes that are known, and drawn ones for all other dims, with which every length is a whole number."""
    sizes = dict(bound)
    terms = [term for length in lengths for term in length.terms]
    divides = {atom for monomial, _ in terms for atom, power in monomial if power < 0}
    atoms = dict.fromkeys(atom for length in lengths for atom in length.atoms)
    for atom in sorted(atoms, key=lambda atom: atom not in divides):  # what divides others is drawn before them
        if atom in sizes:
            continue
        step = 1
        for monomial, factor in terms:
            if (atom, 1) in monomial:
                below = factor.denominator
                for other_dim, power in monomial:
                    below *= sizes.get(other_dim, 1) ** -power if power < 0 else 1
                step = lcm(step, below)
        sizes[atom] = step * draw(st.integers(1, MAX_MULTIPLE))
    return sizes


def rows_bound(subject: str, row: Size, b: int, sizes: Mapping[Any, int]) -> dict[Atom, int]:
    """The dim that makes ``row`` be ``b``; HF310 if none does."""
    solved = solve(row, constant(b), {atom: constant(n) for atom, n in sizes.items()}) or {}
    numbers = {atom: size.value for atom, size in solved.items()}
    if any(number is None or number.denominator != 1 for number in numbers.values()):
        raise SizeError("HF310", f"'{subject}' has {row} rows, which {b} is not for any size of its dims")
    return {atom: int(number or 0) for atom, number in numbers.items()}


@st.composite
def bindings(
    draw: st.DrawFn,
    dataflow: Dataflow[..., Any],
    deployment: Deployment | None = None,
    *,
    sizes: Mapping[type[Dim], int] | None = None,
) -> dict[type[Dim], int]:
    """Sizes for the dims of a dataflow's inputs that satisfy every split and requirement of the program.

    Each dim is drawn from what the check leaves of it beside those that were drawn before: ``residue + k * step``.

    Raises:
        SizeError: HF310 if no size of a dim satisfies the program.
        DefinitionError: HF921 for what is no dataflow or deployment, and for sizes of another kind.

    >>> import hfdsl as hf
    >>> from hypothesis import find
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> class Judge(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def score(self, scores: Scores) -> Scores: ...
    >>> @hf.dataflow
    ... def flow(scores: Scores, judge: Judge) -> Scores:
    ...     return judge.score(scores)
    >>> three = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([3])))
    >>> find(bindings(flow, three), lambda sizes: sizes[B] > 4)
    {B: 6}
    """
    if not isinstance(dataflow, Dataflow):
        raise refused("bindings", "dataflow", "a function under @hf.dataflow", dataflow)
    if deployment is not None and not isinstance(deployment, Deployment):
        raise refused("bindings", "deployment", "an hf.Deployment", deployment)
    bound: dict[type[Dim], int] = {} if sizes is None else sizes_of("bindings", sizes, "sizes=")
    inputs = [node.result for node in build_context(dataflow.body, deployment, bound).program.graph.inputs]
    records = [kind.record for kind in inputs if isinstance(kind, RecordType)]
    atoms = dict.fromkeys(a for r in records for s in schema(r).fields.values() for d in s.dims for a in d.atoms)
    for dim in atoms:
        if not isinstance(dim, type) or dim in bound:
            continue
        reports, _ = size_report(build_context(dataflow.body, deployment, bound))
        allowed = next((report.sizes for report in reports if report.dim is dim), SizeSet())
        choices = list(allowed.upward(allowed.least, MAX_CHOICES))
        if not choices:
            if set(bound) == set(sizes or {}):
                raise SizeError("HF310", f"no size of {dim} satisfies '{dataflow.body.__name__}'")
            reject()  # another size of a dim before it may leave some
        bound[dim] = draw(st.sampled_from(choices))
    return bound
