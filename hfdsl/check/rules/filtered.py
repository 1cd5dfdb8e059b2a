"""Filtered rows: their number is known only at run time, so whatever splits them needs a policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hfdsl.check.context import Context, Option
from hfdsl.check.demands import Divisible, at_calls, filtered
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.alternatives import registered
from hfdsl.check.repair.search import SEARCH
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.graph.infer import LOST
from hfdsl.graph.program import Filter, Node, RoleCall, Take
from hfdsl.types.dims import Answer, Atom, KeptGroups, Size, atom_size, constant

Called = tuple[Node, Divisible]
"""A demand at one of its calls."""


def filtered_rows(context: Context) -> Iterator[Finding]:
    """What a filter keeps goes into a split, mini-batches or groups only by a policy: take, fill, or padding.

    There is one finding for everything that is demanded of what one filter keeps.
    """
    undecided = [d for d, answer in context.verdicts if answer is Answer.UNKNOWN and isinstance(d, Divisible)]
    calls: dict[tuple[KeptGroups, ...], list[Called]] = {}
    for node, demand in at_calls(undecided):
        size = context.known(demand.size)
        if filtered(size):
            kept = tuple(atom for atom in size.atoms if isinstance(atom, KeptGroups))
            calls.setdefault(kept, []).append((node, demand))
    for (node, first), *others in calls.values():
        more = {n.span: Label(n.span, f"for {d.why}: {d.need}") for n, d in others if n.id != node.id}
        filters = (_made(context, maker) for maker, _ in _makers(context, first.size).values())
        finding = Finding(
            "HF321",
            f"'{node.label}' needs {first.why}, but the number of rows is known only at run time ({first.size})",
            Label(node.span, first.need),
            (*filters, *first.labels, *more.values()),
        )
        suggestions = _policies(context, [first, *(demand for _, demand in others)])
        yield with_suggestions(context, finding, suggestions, _policy(node, first.code))


def _policies(context: Context, demands: list[Divisible]) -> Iterator[Suggestion]:
    """A number of rows that meets all demands; or pad rows for a method that splits them."""
    from hfdsl.check.repair.fixes import cut  # late: most programs need none

    first = demands[0]
    for kept, (maker, group) in _makers(context, first.size).items():
        number = _enough(context, demands, kept)
        if number is not None:
            yield from cut(maker.span, number * group)
    op = first.node.op
    if isinstance(op, RoleCall) and op.signature.registration is not None and first.code == "HF310":
        padded = replace(op.signature.registration, pad="repeat_last")
        words = f"register '{first.node.label}' with pad=\"repeat_last\""
        yield Suggestion((Option(words, partial(registered, op.signature.body, padded)),))


def _enough(context: Context, demands: list[Divisible], kept: Atom) -> int | None:
    """The greatest number of rows that a filter may keep with which all demands hold."""
    most = context.known(at_most(atom_size(kept))).value
    sizes = [context.known(demand.size) for demand in demands]
    for number in range(int(most), max(0, int(most) - SEARCH), -1) if most is not None else ():
        pairs = ((size.substitute({kept: constant(number)}), d.divisor) for size, d in zip(sizes, demands, strict=True))
        if all(size.divisible_by(divisor) is Answer.PROVED for size, divisor in pairs):
            return number
    return None


def _policy(node: Node, code: str) -> str:
    known = "say how many rows go on: hf.take(x, n) or hf.fill(x, n)"
    if code == "HF313":
        return f"keep whole groups, hf.filter(x, keep, group=n), or {known}"
    padded = isinstance(node.op, RoleCall) and code == "HF310"
    return f'{known}, or register the method with pad="repeat_last"' if padded else known


def _makers(context: Context, size: Size) -> dict[Atom, tuple[Node, int]]:
    """The first filter that each unknown number comes from, and the size of its groups."""
    makers: dict[Atom, tuple[Node, int]] = {}
    for node in context.program.graph.nodes:
        rows = context.program.inference.rows(node.id)
        if rows is not None and isinstance(node.op, Filter):
            new = set(rows.atoms) & (set(size.atoms) - makers.keys())
            makers |= dict.fromkeys(new, (node, node.op.group))
    return makers


def _made(context: Context, node: Node) -> Label:
    before = context.program.inference.rows(node.batch.node) if node.batch else None
    return Label(node.span, f"keeps some of {before} rows")


def enough_rows(context: Context) -> Iterator[Finding]:
    """``take`` finds the rows that it takes."""
    for node in context.program.graph.nodes:
        if not isinstance(node.op, Take) or node.op.fill or node.batch is None:
            continue
        rows = context.program.inference.rows(node.batch.node)
        if rows is None or LOST in rows.atoms:
            continue
        most = context.known(at_most(rows)).value
        if most is None and not filtered(rows):
            yield Finding(
                "HF319",
                f"cannot decide before launch whether there are {node.op.rows} rows to take of {rows}",
                Label(node.span),
            )
        elif most is not None and most < node.op.rows:
            available = f"at most {most} are kept" if filtered(rows) else f"there are {most}"
            finding = Finding(
                "HF321",
                f"take of {node.op.rows} rows, but {available} ({rows})",
                Label(node.span),
                (context.program.produced(node.batch.node),),
            )
            advice = f"take at most {most}, or hf.fill(x, {node.op.rows}) which starts over from the first"
            yield with_suggestions(context, finding, _fewer(node, node.op.rows, int(most)), advice)


def _fewer(node: Node, rows: int, most: int) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import taken  # as above

    yield from taken(node.span, rows, most)


def at_most(size: Size) -> Size:
    """A size with every filter keeping all its rows."""
    kept = {atom: at_most(atom.most) for atom in size.atoms if isinstance(atom, KeptGroups)}
    return size.substitute(kept)
