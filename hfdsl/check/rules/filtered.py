"""Filtered rows: how many there are is known only when the program runs, so what splits them needs a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from hfdsl.check.constraints import Divides, constraints, filtered
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import registered
from hfdsl.check.repair.offers import Offer, Option, mended
from hfdsl.check.repair.search import SEARCH
from hfdsl.check.subject import Subject
from hfdsl.graph.infer import LOST
from hfdsl.graph.program import Filter, Node, RoleCall, Take
from hfdsl.types.dims import Answer, Kept, Size, constant


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
        finding = Finding(
            "HF321",
            f"'{node.label}' needs {first.why}, but only a run tells how many rows there are ({size})",
            Label(node.span, first.need),
            (*(_made(subject, maker) for maker in _makers(subject, size)), *first.others, *more.values()),
        )
        yield mended(subject, finding, _policies(subject, [first, *others]), _policy(node, first.code))


def _policies(subject: Subject, demands: list[Divides]) -> Iterator[Offer]:
    """As many rows as meet all demands, of those that a filter may keep; or pad rows for a method that splits them."""
    from hfdsl.check.repair.fixes import cut  # late: most programs need none

    first, makers = demands[0], list(_makers(subject, demands[0].size))
    sizes = [subject.known(demand.size) for demand in demands]
    kept = {atom for size in sizes for atom in size.atoms if isinstance(atom, Kept)}
    most = subject.known(at_most(next(iter(kept)).most)).value if len(kept) == len(makers) == 1 else None
    for number in range(int(most), max(0, int(most) - SEARCH), -1) if most is not None else ():
        rows = [size.substitute(dict.fromkeys(kept, constant(number))) for size in sizes]
        pairs = zip(rows, demands, strict=True)
        if all(size.divisible_by(demand.divisor) is Answer.PROVED for size, demand in pairs):
            yield from cut(makers[0].span, number)
            break
    op = first.node.op
    if isinstance(op, RoleCall) and op.signature.registration is not None and first.code == "HF310":
        padded = replace(op.signature.registration, pad="repeat_last")
        words = f"register '{first.node.label}' with pad=\"repeat_last\""
        yield Offer((Option(words, partial(registered, op.signature.body, padded)),))


def _policy(node: Node, code: str) -> str:
    known = "say how many rows go on: hf.take(x, n) or hf.fill(x, n)"
    if code == "HF313":
        return f"keep whole groups, hf.filter(x, keep, group=n), or {known}"
    padded = isinstance(node.op, RoleCall) and code == "HF310"
    return f'{known}, or register the method with pad="repeat_last"' if padded else known


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
            finding = Finding(
                "HF321",
                f"take of {node.op.rows} rows, but {there} ({rows})",
                Label(node.span),
                (subject.produced(node.batch.node),),
            )
            advice = f"take at most {most}, or hf.fill(x, {node.op.rows}) which starts over from the first"
            yield mended(subject, finding, _fewer(node, node.op.rows, int(most)), advice)


def _fewer(node: Node, rows: int, most: int) -> Iterator[Offer]:
    from hfdsl.check.repair.fixes import taken  # as above

    yield from taken(node.span, rows, most)


def at_most(size: Size) -> Size:
    """A size with every filter keeping all its rows."""
    kept = {atom: at_most(atom.most) for atom in size.atoms if isinstance(atom, Kept)}
    return size.substitute(kept)
