"""Filtered rows: their number is known only at run time, so each split of them needs ``take``, ``fill`` or ``pad=``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import lcm

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.alternatives import registered
from hfdsl.check.repair.search import MAX_SIZES
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.rows.padding import counted_pad_rows
from hfdsl.check.sizes.constraints import Constraint, SizeSet
from hfdsl.check.sizes.demands import Divisible, EnoughRows, at_calls, filtered
from hfdsl.graph.program import Filter, Node, RoleCall, Take
from hfdsl.types.dims import Answer, Atom, KeptGroups, Size, at_most, atom_size, constant

Called = tuple[Node, Divisible]
"""A demand at one of its calls."""


def filtered_rows(context: Context) -> Iterator[Finding]:
    """Kept rows need a policy before a split, mini-batches or groups: take, fill, or padding.

    There is one finding for everything that is demanded of what one filter keeps.
    """
    undecided = [d for d, answer in context.verdicts if answer is Answer.UNKNOWN and isinstance(d, Divisible)]
    calls: dict[tuple[KeptGroups, ...], list[Called]] = {}
    for node, demand in at_calls(undecided):
        size = context.known(demand.size)
        if filtered(size):
            atoms = tuple(atom for atom in size.atoms if isinstance(atom, KeptGroups))
            calls.setdefault(atoms, []).append((node, demand))
    for (node, first), *others in calls.values():
        more = {n.span: Label(n.span, f"for {d.why}: {d.need}") for n, d in others if n.id != node.id}
        filters = (_filter_label(context, node) for node, _ in _filters(context, first.size).values())
        finding = Finding(
            "HF321",
            f"'{node.label}' needs {first.why}, but the number of rows is known only at run time ({first.size})",
            Label(node.span, first.need),
            (*filters, *first.labels, *more.values()),
        )
        suggestions = _policies(context, [first, *(demand for _, demand in others)])
        yield with_suggestions(context, finding, suggestions, _policy(node, first.code))


def _policies(context: Context, demands: list[Divisible]) -> Iterator[Suggestion]:
    """Whole groups where groups are read; a number of rows that meets all demands; pad rows where rows are split."""
    from hfdsl.check.repair.fixes import cut, cut_groups  # late: most programs need none

    first = demands[0]
    groups = [size for demand in demands if (size := _group_size(demand)) > 1]
    if groups:
        from hfdsl.check.repair.groups import whole_groups

        filters = [node.id for node, _ in _filters(context, first.size).values()]
        yield from whole_groups(context, filters, lcm(*groups))
    for atom, (node, group) in _filters(context, first.size).items():
        if group == 1 and groups:
            count = _enough(context, demands, atom, lcm(*groups))
            if count is not None:
                yield from cut_groups(node.span, lcm(*groups), count)
            continue
        count = _enough(context, demands, atom)
        if count is not None:
            yield from cut(node.span, count * group)
    op = first.node.op
    if isinstance(op, RoleCall) and op.signature.registration is not None and _may_pad(first.node, first.code):
        padded = replace(op.signature.registration, pad="repeat_last")
        words = f"register '{first.node.label}' with pad=\"repeat_last\""
        yield Suggestion((Change(words, partial(registered, op.signature.body, padded)),))


def _enough(context: Context, demands: list[Divisible], atom: Atom, multiple: int = 1) -> int | None:
    """The greatest number of groups that a filter may keep with which all demands hold; a ``multiple`` of some."""
    most = context.known(at_most(atom_size(atom))).value
    if most is None:
        return None
    constraints = {Constraint(context.known(demand.size), demand.divisor) for demand in demands}
    counts = SizeSet(step=multiple, most=int(most))
    for constraint in constraints:
        counts = counts.satisfying(atom, constraint) or counts  # what is not linear is looked at for each count
    for count in counts.downward(int(most), MAX_SIZES):
        if not context.budget.spend("evaluations", len(constraints)):
            break
        sizes = (
            (constraint.size.substitute({atom: constant(count)}), constraint.divisor or 1) for constraint in constraints
        )
        if all(size.divisible_by(divisor) is Answer.PROVED for size, divisor in sizes):
            return count
    return None


def _group_size(demand: Divisible) -> int:
    """The size of the groups that a call reads; a filter cannot know it."""
    signature = signature_of(demand.node)
    return signature.group_size if demand.code == "HF313" and signature is not None else 1


def _policy(node: Node, code: str) -> str:
    fixed_rows = "fix the number of rows: hf.take(x, n) or hf.fill(x, n)"
    if code == "HF313":
        return "keep whole groups: hf.filter(x, keep, group=n)"
    return f'{fixed_rows}, or register the method with pad="repeat_last"' if _may_pad(node, code) else fixed_rows


def _may_pad(node: Node, code: str) -> bool:
    """Whether pad rows make a split even and are cut off again: what a method counts over its rows would have them."""
    return code == "HF310" and isinstance(node.op, RoleCall) and not counted_pad_rows(node.op.signature.returns)


def _filters(context: Context, size: Size) -> dict[Atom, tuple[Node, int]]:
    """The first filter that each unknown number comes from, and the size of its groups."""
    filters: dict[Atom, tuple[Node, int]] = {}
    for node in context.program.graph.nodes:
        rows = context.program.inference.rows(node.id)
        if rows is not None and isinstance(node.op, Filter):
            new = set(rows.atoms) & (set(size.atoms) - filters.keys())
            filters |= dict.fromkeys(new, (node, node.op.group))
    return filters


def _filter_label(context: Context, node: Node) -> Label:
    before = context.program.inference.rows(node.batch.node) if node.batch else None
    return Label(node.span, f"keeps some of {before} rows")


def enough_rows(context: Context) -> Iterator[Finding]:
    """``take`` finds the rows that it takes."""
    unproved = (d for d, answer in context.verdicts if answer is not Answer.PROVED and isinstance(d, EnoughRows))
    for node, demand in at_calls(unproved):
        size, count, most = demand.size, demand.count, context.known(at_most(demand.size)).value
        if most is not None and node.batch is not None:
            available = f"at most {most} are kept" if filtered(size) else f"there are {most}"
            finding = Finding(
                "HF321",
                f"take of {count} rows, but {available} ({size})",
                Label(node.span),
                (context.program.producer_label(node.batch.node),),
            )
            note = f"take at most {most}, or hf.fill(x, {count}) which starts over from the first"
            yield with_suggestions(context, finding, _fewer(node, count, int(most)), note)
        elif not filtered(size):
            message = f"cannot decide before launch whether there are {count} rows to take of {size}"
            yield Finding("HF319", message, Label(node.span))


def fills_need_not_repeat(context: Context) -> Iterator[Finding]:
    """``fill`` makes up for what a filter drops in some steps; where it repeats every row in all, a size is wrong.

    Up to twice the rows may be meant: the next number that divides.
    """
    for node in context.program.graph.nodes:
        if not isinstance(node.op, Take) or not node.op.fill or node.batch is None:
            continue
        size = context.program.inference.rows(node.batch.node)
        if size is None or not filtered(size) or any(number.denominator > 1 for _, number in size.terms):
            continue  # a part of what is kept is HF321, until it is known to divide
        most = context.known(at_most(size)).value
        if most and node.op.rows >= 2 * most:
            yield Finding(
                "HF360",
                f"fill of {node.op.rows} rows, but at most {most} are kept ({size}): every row appears at least "
                f"{int(node.op.rows // most)} times",
                Label(node.span),
                (context.program.producer_label(node.batch.node),),
                notes=(f"fill up to {most} rows, or make more of them before the filter",),
            )


def _fewer(node: Node, count: int, most: int) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import fewer_rows  # as above

    yield from fewer_rows(node.span, count, most)
