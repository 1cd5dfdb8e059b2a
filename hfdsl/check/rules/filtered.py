"""Filtered rows: how many there are is known only when the program runs, so what splits them needs a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hfdsl.check.constraints import Divides, constraints, filtered
from hfdsl.check.findings import Finding, Label
from hfdsl.check.subject import Subject
from hfdsl.graph.infer import LOST
from hfdsl.graph.program import Filter, Node, RoleCall, Take
from hfdsl.types.dims import Answer, Kept, Size


def filtered_rows(subject: Subject) -> Iterator[Finding]:
    """What a filter keeps goes into a split, mini-batches or groups only by a policy: take, fill, or padding."""
    if any(isinstance(node.op, Filter) for node in subject.graph.nodes):
        yield from _unknown_rows(subject, constraints(subject))


def _unknown_rows(subject: Subject, demands: Iterable[Divides]) -> Iterator[Finding]:
    """The demands on rows that only a run tells: one finding for all that is demanded of what a filter keeps."""
    told: dict[tuple[Kept, ...], list[Divides]] = {}
    for demand in demands:
        size = subject.known(demand.size)
        if filtered(size) and size.divisible_by(demand.divisor) is Answer.UNKNOWN:
            told.setdefault(tuple(atom for atom in size.atoms if isinstance(atom, Kept)), []).append(demand)
    for first, *others in told.values():
        node, size = first.node, first.size
        more = {d.node.span: Label(d.node.span, f"for {d.why}: {d.need}") for d in others if d.node.id != node.id}
        yield Finding(
            "HF321",
            f"'{node.label}' needs {first.why}, but only a run tells how many rows there are ({size})",
            Label(node.span, first.need),
            (*(_made(subject, maker) for maker in _makers(subject, size)), *first.others, *more.values()),
            help=(_policy(node, first.code),),
        )


def _policy(node: Node, code: str) -> str:
    known = "say how many rows go on: hf.take(x, n) or hf.fill(x, n)"
    if code == "HF313":
        return f"keep whole groups, hf.filter(x, keep, group=n), or {known}"
    return f'{known}, or register the method with pad="repeat_last"' if isinstance(node.op, RoleCall) else known


def _makers(subject: Subject, size: Size) -> Iterator[Node]:
    """The first filter that each of the unknown numbers comes from."""
    left = {atom for atom in size.atoms if isinstance(atom, Kept)}
    for node in subject.graph.nodes:
        rows = subject.inference.rows(node.id) if isinstance(node.op, Filter) else None
        if rows is not None and left & set(rows.atoms):
            left -= set(rows.atoms)
            yield node


def _made(subject: Subject, node: Node) -> Label:
    before = subject.inference.rows(node.batch.node) if node.batch else None
    return Label(node.span, f"keeps some of {before} rows")


def enough_rows(subject: Subject) -> Iterator[Finding]:
    """``take`` finds the rows that it takes."""
    for node in subject.graph.nodes:
        if not isinstance(node.op, Take) or node.op.fill or node.batch is None:
            continue
        rows = subject.inference.rows(node.batch.node)
        if rows is None or LOST in rows.atoms:
            continue
        most = subject.known(at_most(rows)).value
        if most is None and not filtered(rows):
            yield Finding(
                "HF319",
                f"cannot decide before launch whether there are {node.op.rows} rows to take of {rows}",
                Label(node.span),
            )
        elif most is not None and most < node.op.rows:
            there = f"at most {most} are kept" if filtered(rows) else f"there are {most}"
            yield Finding(
                "HF321",
                f"take of {node.op.rows} rows, but {there} ({rows})",
                Label(node.span),
                (subject.produced(node.batch.node),),
                help=(f"take at most {most}, or hf.fill(x, {node.op.rows}) which starts over from the first",),
            )


def at_most(size: Size) -> Size:
    """A size with every filter keeping all its rows."""
    kept = {atom: at_most(atom.most) for atom in size.atoms if isinstance(atom, Kept)}
    return size.substitute(kept)
