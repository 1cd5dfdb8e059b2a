"""Groups: do functions and filters on groups read complete groups, as ``repeat`` made them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm, prod
from typing import TypeAlias

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.row_comparison import PROBES, Comparison, disjoint
from hfdsl.check.rules.rows.provenance import words
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Filter, Input, Node, Ref, Repeat, Take
from hfdsl.graph.reads import RowColumn, row_columns, signature_rows
from hfdsl.graph.row_steps import (
    FillStep,
    FilterKey,
    FilterStep,
    GroupStep,
    Origin,
    RepeatStep,
    RowInterval,
    RowStep,
    SampleStep,
    SizeCase,
)
from hfdsl.graph.signatures import VALUE, Signature
from hfdsl.types.dims import Size


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of ``size`` rows that a node reads: a call, by its ``signature``, or a filter, which has none."""

    size: int
    signature: Signature | None

    @property
    def returned_rows(self) -> Size | None:
        """The row dim of what a call returns."""
        return None if self.signature is None else signature_rows(self.signature.returns)

    @property
    def declaration_labels(self) -> tuple[Label, ...]:
        """The declaration of a call's groups; a filter declares them on its own line."""
        return () if self.signature is None else (Label(self.signature.span, f"declared rows={self.signature.rows}"),)


Reading: TypeAlias = "tuple[tuple[RowStep, ...] | None, bool, Groups, Size | None, Size | None]"
"""The facts that decide whether a node reads whole groups: steps, whether rows were repeated, groups, row dim, rows."""


def groups_are_of_one_question(context: Context) -> Iterator[Finding]:
    """HF330, HF331, HF332: what reads groups of rows reads the groups that ``repeat`` made."""
    compare, passed, data = Comparison(context), set[Reading](), _groups_of_data(context)
    for node in context.program.graph.nodes:
        groups = _groups_read(node)
        if groups is None:
            continue
        origins: list[Origin] = []
        for column in _grouped_columns(context, node):
            origin = compare.origin(column)
            if origin is not None and origin not in origins:
                origins.append(origin)
                finding = _groups(context, compare, passed, data, node, groups, column, origin)
                if finding is not None:
                    yield finding
                    break


def _groups_read(node: Node) -> Groups | None:
    """The groups of more than one row that a node reads."""
    if isinstance(node.op, Filter):
        return Groups(node.op.group, None) if node.op.group > 1 else None
    signature = signature_of(node)
    return None if signature is None or signature.group_size == 1 else Groups(signature.group_size, signature)


def _grouped_columns(context: Context, node: Node) -> Sequence[RowColumn]:
    """The columns that a node reads in groups; for a filter its own column, unless the data decides what it keeps."""
    columns = context.program.origins.columns(node.id)
    if not isinstance(node.op, Filter):
        return columns
    deciding = [column for column in columns if column.port == "keep"]
    stored = [stored_column(context.program.graph, column.ref) for column in deciding]
    of_data = any(isinstance(s, Ref) and isinstance(context.program.graph.nodes[s.node].op, Input) for s in stored)
    return [] if of_data else deciding


def _groups(
    context: Context,
    compare: Comparison,
    passed: set[Reading],
    data: Mapping[int, int],
    node: Node,
    groups: Groups,
    column: RowColumn,
    origin: Origin,
) -> Finding | None:
    size, group = column.rows, groups.size
    rows = None if size is None else compare.base.number(size)
    if rows is None or rows % group or not isinstance(compare.nodes[origin.source].op, Input):
        return None
    if (reading := (origin.path(), origin.repeated, groups, column.row, size)) in passed:
        return None
    if groups.signature is None and _repeated_once(origin):
        return None  # the filter says that the data has groups
    repeats = _made_groups(origin, rows, group, compare.base)
    together = 1 if _repeated_once(origin) else data.get(origin.source, 1)
    if repeats and _mixes(origin, rows, group, compare.base, together):
        return _mixed(context, node, groups, column, repeats)
    if context.is_shuffled and _mixes_shuffled(origin, groups):
        return _of_shuffled_rows(context, node, groups, origin)
    for case in compare.cases(*origin.filters()):
        if case.dropping is None or size is None or not (row_count := case.number(size)) or row_count % group:
            continue
        if repeats:
            cut = _mixes(origin, row_count, group, case, together)
        else:
            cut = _cuts(origin, row_count, group, compare.base, case)
        if cut:
            return _thinned(context, node, groups, column, origin, case.dropping)
    if repeats and 2 < group < repeats and groups.signature is not None and groups.returned_rows == column.row:
        sizes = _sizes_of_groups(origin)
        if group not in sizes:
            return _partial(context, node, groups, column, repeats)
    passed.add(reading)
    return None


def _made_groups(origin: Origin, rows: int, group: int, case: SizeCase) -> int:
    """The number of consecutive rows of one question, where rows are repeated; 0 if each row is another question.

    Rows that start over in ``fill`` are as many copies, which are not consecutive. ``repeat(x, 1)`` alone makes groups
    of one, unless a filter of groups says that the data has larger ones.
    """
    intervals = [origin.row(row, case) for row in range(min(rows, 2 * group + 2, PROBES))]
    times = [step.times for step in origin.steps if isinstance(step, RepeatStep)]
    if any(a is not None and a == b and (times or a[1] - a[0] == 1) for a, b in pairwise(intervals)):
        return prod(times)
    for step in reversed(origin.steps):  # the first fill, which later ones only lengthen
        if isinstance(step, FillStep) and not origin.filters():
            before = case.number(step.before)
            return 1 if before and rows == group * before else 0
    return 1 if _repeated_once(origin) and not any(filter_key.group > 1 for filter_key in origin.filters()) else 0


def _repeated_once(origin: Origin) -> bool:
    """Whether ``repeat(x, 1)`` alone has made the groups: they have one row."""
    return origin.repeated and not any(isinstance(step, RepeatStep) for step in origin.steps)


def _groups_of_data(context: Context) -> dict[int, int]:
    """By input how many consecutive rows of it belong together: a call or a filter takes them so before any repeat."""
    sizes: dict[int, int] = {}
    origins = context.program.origins
    for node in context.program.graph.nodes:
        groups = _groups_read(node)
        if groups is None:
            continue
        for column in origins.columns(node.id):
            origin = origins.of(column)
            if origin is not None and _is_as_read(origin):
                sizes[origin.source] = lcm(sizes.get(origin.source, 1), groups.size)
    return sizes


def _is_as_read(origin: Origin) -> bool:
    """Whether rows are in the order of the data, each of them once at most."""
    return not origin.repeated and all(isinstance(s, (SampleStep, GroupStep, FilterStep)) for s in origin.steps)


def _mixes(origin: Origin, rows: int, group: int, case: SizeCase, together: int) -> bool:
    """Whether a group certainly mixes rows of different questions, or of groups of ``together`` questions.

    A few groups are looked at, among them the one in which the rows of the first question end.
    """
    groups, first_end = rows // group, together * prod(s.times for s in origin.steps if isinstance(s, RepeatStep))
    for index in {index for index in (0, 1, first_end // group, groups // 2, groups - 1) if index < groups}:
        members = [origin.row(index * group + row, case) for row in {0, 1, group // 2, group - 1}]
        if any(disjoint(_whole(members[0], together), _whole(member, together)) for member in members):
            return True
    return False


def _whole(rows: RowInterval | None, together: int) -> RowInterval | None:
    """The groups of the data that rows belong to."""
    return None if rows is None else (rows[0] // together, (rows[1] - 1) // together + 1)


def _cuts(origin: Origin, rows: int, group: int, before: SizeCase, after: SizeCase) -> bool:
    """Whether groups that are consecutive rows of the source are so no longer once a filter drops rows."""

    def whole(case: SizeCase) -> bool:
        members = [origin.row(row, case) for row in {0, group - 1}]
        return all(m is None or m[1] - m[0] > 1 or m[0] // group == members[0][0] // group for m in members)  # type: ignore[index]

    return whole(before) and not whole(after)


def _sizes_of_groups(origin: Origin) -> set[int]:
    """The sizes of the groups that one ``repeat`` after the other made, and of those that a filter kept."""
    sizes, size = set[int](), 1
    for step in origin.steps:
        if isinstance(step, RepeatStep):
            size *= step.times
            sizes.add(size)
    return sizes


def _mixed(context: Context, node: Node, groups: Groups, column: RowColumn, repeats: int) -> Finding:
    origin = context.program.origins.of(column) or Origin((), 0)
    together = f"groups of {repeats}" if repeats > 1 or _repeated_once(origin) else "rows that start over"
    finding = Finding(
        "HF330",
        f"'{node.label}' reads groups of {groups.size} rows, which mix different questions",
        Label(node.span, f"reads {words(context, column)}"),
        (*_makers(context, column, RepeatStep, FillStep), *groups.declaration_labels),
    )
    if groups.signature is None:
        on_purpose = (
            "to keep or drop several questions together, filter by a column that a function with rows=hf.Whole returns"
        )
    else:
        on_purpose = "a function that compares different questions on purpose declares rows=hf.Whole"
    advice = (
        f"the rows of one question stand together in {together}: repeat as many times as a group has rows; {on_purpose}"
    )
    return with_suggestions(context, finding, _other_groups(context, node, groups, column, repeats), advice)


def _mixes_shuffled(origin: Origin, groups: Groups) -> bool:
    """Whether groups of shuffled data certainly mix questions.

    Users' functions on groups may pack rows of different questions, or put copies of one in the place of others.
    """
    is_ready_made = groups.signature is not None and groups.signature.is_ready_made
    return is_ready_made and _is_as_read(origin) and not any(isinstance(step, GroupStep) for step in origin.steps)


def _of_shuffled_rows(context: Context, node: Node, groups: Groups, origin: Origin) -> Finding:
    """Groups of data that is shuffled, and that nothing repeats."""
    source = context.program.graph.nodes[origin.source]
    finding = Finding(
        "HF330",
        f"'{node.label}' reads groups of {groups.size} rows, but nothing repeats '{source.label}': a run shuffles its "
        "data, so the rows of a group belong to different questions",
        Label(node.span, f"reads groups of {groups.size}"),
        (Label(source.span, "one row for each question"), *groups.declaration_labels),
    )
    rows = context.program.inference.rows(origin.source)
    advice = f"repeat each row before sampling: hf.repeat({source.label}, {groups.size})"
    return with_suggestions(context, finding, () if rows is None else _repeats(context, rows, groups.size), advice)


def _repeats(context: Context, rows: Size, group: int) -> Iterator[Suggestion]:
    from hfdsl.check.repair.fixes import repeated_input  # late: most programs need none

    yield from repeated_input(context, rows, group)


def _thinned(
    context: Context, node: Node, groups: Groups, column: RowColumn, origin: Origin, filter_key: FilterKey
) -> Finding:
    filters = [step.node for step in origin.steps if isinstance(step, FilterStep) and step.by == filter_key]
    labels = [
        Label(
            context.program.graph.nodes[i].span,
            "keeps rows one by one" if filter_key.group == 1 else f"keeps groups of {filter_key.group}",
        )
        for i in filters
    ]
    finding = Finding(
        "HF331",
        f"'{node.label}' reads groups of {groups.size} rows, which an earlier filter cut",
        Label(node.span, f"reads {words(context, column)}"),
        (*labels, *groups.declaration_labels),
    )
    from hfdsl.check.repair.groups import whole_groups  # late: most programs need none

    advice = f"keep whole groups: hf.filter(x, keep, group={groups.size})"
    return with_suggestions(context, finding, whole_groups(context, filters, groups.size), advice)


def _partial(context: Context, node: Node, groups: Groups, column: RowColumn, repeats: int) -> Finding:
    finding = Finding(
        "HF332",
        f"'{node.label}' reads groups of {groups.size} rows, and hf.repeat made groups of {repeats}",
        Label(node.span, f"reads {words(context, column)}"),
        (*_makers(context, column, RepeatStep), *groups.declaration_labels),
    )
    return with_suggestions(
        context,
        finding,
        _other_groups(context, node, groups, column, repeats),
        f"compare all {repeats} rows of a question, or repeat {groups.size} times; to compare parts of a group, "
        f"repeat in two steps: hf.repeat(hf.repeat(x, n), {groups.size})",
    )


def _makers(context: Context, column: RowColumn, *kinds: type) -> list[Label]:
    """The labels of the operations of these kinds on the way of a column's rows."""
    names = {RepeatStep: Repeat, FillStep: Take}
    operations = tuple(names[kind] for kind in kinds)
    labels, ref = list[Label](), column.ref
    nodes = context.program.graph.nodes
    while True:
        node = nodes[ref.node]
        if isinstance(node.op, operations):
            words = f"makes groups of {node.op.times}" if isinstance(node.op, Repeat) else "starts over"
            labels.append(Label(node.span, words))
        source = node.source(ref.column or VALUE) or next(
            (c.ref for c in row_columns(context.program.inference, node)), None
        )
        if not isinstance(source, Ref) or source.node >= ref.node:
            return labels
        ref = source


def _other_groups(
    context: Context, node: Node, groups: Groups, column: RowColumn, repeats: int
) -> Iterator[Suggestion]:
    from hfdsl.check.repair.groups import other_groups, repeated_as_often, whole_groups  # late: most programs need none

    if groups.signature is not None:
        yield from other_groups(node, groups.signature, repeats)
    elif repeats > 1:
        yield from whole_groups(context, [node.id], repeats)
    origin = context.program.origins.of(column) or Origin((), 0)
    repeat_steps = [step for step in origin.steps if isinstance(step, RepeatStep)]
    if len(repeat_steps) == 1 or _repeated_once(origin):
        yield from repeated_as_often(repeats, groups.size)
