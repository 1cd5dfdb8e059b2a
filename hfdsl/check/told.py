"""Told sizes: which dims a run knows, from the sizes that are given and from its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hfdsl.check.findings import Finding, Label
from hfdsl.check.sizes import argument_rows
from hfdsl.check.subject import Subject
from hfdsl.graph.infer import LOST, RecordValue
from hfdsl.graph.program import Input, Node, RoleCall
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.dims import Kept, Size, atom_size, solve


def told(given: Iterable[Any], lengths: Iterable[Size]) -> set[Any]:
    """The dims that are known once these lengths are, beside those that are given: each length tells at most one.

    >>> from hfdsl.types.dims import Add, Dim, size
    >>> class P(Dim): ...
    >>> class R(Dim): ...
    >>> sorted(map(str, told([], [size(Add[P, R]), size(P)])))
    ['P', 'R']
    """
    known = set(given)
    for length in sorted(lengths, key=lambda size: len(size.atoms)):
        known |= (solve(length, atom_size(LOST), {atom: atom_size(atom) for atom in known}) or {}).keys()
    return known


def untold(subject: Subject) -> dict[Any, int]:
    """The row dims that no input has and that have no size, each with the node that first makes such rows."""
    records = [node.op.record for node in subject.graph.inputs if isinstance(node.op, Input)]
    known = told(subject.dims, (dim for r in records for spec in schema(r).fields.values() for dim in spec.dims))
    found: dict[Any, int] = {}
    for node, value in zip(subject.graph.nodes, subject.inference.values, strict=True):
        rows = value.rows if isinstance(value, RecordValue) else None
        if isinstance(value, (ColumnSpec, ObjSpec)):
            rows = value.dims[0]
        lost = rows is None or LOST in rows.atoms or _splits_nothing(subject, node)
        for atom in rows.atoms if rows is not None and not lost else ():
            if atom not in known and not isinstance(atom, Kept):
                found.setdefault(atom, node.id)
    return found


def _splits_nothing(subject: Subject, node: Node) -> bool:
    """Whether a call splits its rows and is given none (HF413)."""
    placement, protocol = subject.placement(node), node.op.signature.protocol if isinstance(node.op, RoleCall) else None
    if placement is None or protocol is None or not protocol.splits or argument_rows(subject, node):
        return False
    return protocol.chunk_count(placement.mesh) > 1


def row_dims_are_told(subject: Subject) -> Iterator[Finding]:
    """To cut and join rows a run must know how many there are."""
    for dim, node in untold(subject).items() if subject.deployment else ():
        yield Finding(
            "HF301",
            f"'{subject.graph.nodes[node].label}' makes {subject.inference.values[node]}, and nothing tells how large "
            f"{dim.__name__} is: no input tells it and no size is given",
            Label(subject.graph.nodes[node].span),
            help=(f"give the size: dims={{{dim.__name__}: ...}}",) if isinstance(dim, type) else (),
        )
