"""Dims: does each given size belong to a dim of the program, and is every row dim determined?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

from hfdsl.check.context import EVERYTHING, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sizes.requirements import names
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.type_sizes import dims_of, sizes_of
from hfdsl.graph.values import LOST
from hfdsl.protocols.conditions import requirements_of
from hfdsl.types.dims import Dim, Size, atom_size, solve
from hfdsl.types.numbers import brief, count_range


def determined_dims(sized: Iterable[Any], lengths: Iterable[Size]) -> set[Any]:
    """The dims that are known once these lengths are, with those that have a size: each length determines at most one.

    >>> from hfdsl.types.dims import Add, Dim, size
    >>> class P(Dim): ...
    >>> class R(Dim): ...
    >>> sorted(map(str, determined_dims([], [size(Add[P, R]), size(P)])))
    ['P', 'R']
    """
    determined = set(sized)
    for length in sorted(lengths, key=lambda size: len(size.atoms)):
        determined |= (solve(length, atom_size(LOST), {atom: atom_size(atom) for atom in determined}) or {}).keys()
    return determined


def undetermined_row_dims(context: Context) -> dict[Any, int]:
    """The row dims that no input has and that have no size, each with the node that first makes such rows.

    Among them are the type variables that nothing binds (HF108).
    """
    determined = determined_dims(
        context.sizes, (size for node in context.program.graph.inputs for size in sizes_of(node.result))
    )
    producers: dict[Any, int] = {}
    for node, *_ in context.program.kinds:
        rows = context.program.rows(node)
        if rows is None or LOST in rows.atoms or _splits_nothing(context, node):
            continue
        for atom in rows.atoms:
            if isinstance(atom, TypeVar) or (isinstance(atom, type) and atom not in determined):
                producers.setdefault(atom, node.id)
    return producers


def _splits_nothing(context: Context, node: Node) -> bool:
    """Whether a call splits its rows and is given none (HF413)."""
    placement, protocol = (
        context.program.placement(node),
        node.op.signature.protocol if isinstance(node.op, RoleCall) else None,
    )
    return (
        placement is not None
        and protocol is not None
        and protocol.splits
        and protocol.chunk_count(placement.mesh) > 1
        and not context.program.argument_rows[node.id]
    )


def row_dims_are_determined(context: Context) -> Iterator[Finding]:
    """To cut and join rows a run must know how many there are."""
    program = context.program
    for dim, node in undetermined_row_dims(context).items() if program.deployment else ():
        if isinstance(dim, type):
            yield Finding(
                "HF301",
                f"'{program.graph.nodes[node].label}' returns {program.inference.values[node]}, but the size of "
                f"{dim.__name__} is unknown: no input has this dim and no size is given",
                Label(program.graph.nodes[node].span),
                notes=(f"give the size: dims={{{dim.__name__}: ...}}",),
            )


def whole_sizes(context: Context) -> Iterator[Finding]:
    """A size is a whole number of at least 1, given for a dim."""
    for dim, number in context.invalid.items():
        if dim == EVERYTHING:
            message = f"dims= takes a dict of dim classes with their sizes, got {brief(number)}"
        elif isinstance(dim, type) and issubclass(dim, Dim):
            sizes = number if isinstance(number, (list, tuple)) else (number,)
            message = f"size {dim} = {brief(number)} is not {count_range(*sizes)}"
        else:
            unquoted = f"; write {dim} without quotes" if isinstance(dim, str) and dim.isidentifier() else ""
            message = f"dims= takes dim classes with their sizes, got {brief(dim)}: {brief(number)}{unquoted}"
        yield Finding("HF302", message, Label(context.call_site))


def dims_are_known(context: Context) -> Iterator[Finding]:
    """A size is given for a dim that the program names: in a record, or in a signature or requirement of its roles."""
    if context.program.graph.misuses:
        return
    signatures = list(context.program.signatures())
    dims = dict.fromkeys(chain(context.program.input_dims, *map(dims_of, signatures)))
    required = {name for s in signatures for text in requirements_of(s.body) for name in names(text)}
    required -= {dim.__name__ for dim in dims}  # another class of the same name is the mistake that is looked for
    for dim, number in context.sizes.items():
        if dim not in dims and dim.__name__ not in required:
            same = any(declared.__name__ == dim.__name__ for declared in dims)
            dim_names = ", ".join(declared.__name__ for declared in dims) or "none"
            yield Finding(
                "HF305",
                f"size {dim} = {number} is given, but '{context.program.graph.name}' does not have "
                + (f"this dim: its '{dim}' is another class of that name" if same else "a dim of that name"),
                Label(context.call_site),
                notes=(f"its dims: {dim_names}",),
            )
