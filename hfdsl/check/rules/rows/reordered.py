"""Reordered rows: do rows that a body has put in another order meet rows in the order from before?

A worked example, a function of all rows::

    @hf.function(rows=hf.Whole)
    def shortest_first(rollout: Rollout) -> Rollout:
        order = rollout.mask.tensor.sum(1).argsort()
        return Rollout(ids=rollout.ids.tensor[order], mask=rollout.mask.tensor[order])

    rollout = actor.generate(prompts)
    gains = gained(reward.score(rollout))             the order of 'rollout'
    actor.update(shortest_first(rollout), gains)      HF333: each response gets the gain of another one

A body reorders its rows if every dense column that it returns is one of the same name in another order. A column under
another name may be meant for the old rows, such as the score of another row for a baseline. Columns that meet
themselves in another order are paired on purpose, such as responses with those of other prompts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hfdsl.check.bodies.row_interpretation import RowInterpretation
from hfdsl.check.bodies.row_tensors import RowTensor
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.row_comparison import Meeting, made_name, meetings, read_name
from hfdsl.check.sources import argument_span, span_of
from hfdsl.graph.program import Node
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.row_steps import GroupStep, Origin, RowStep
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import definition_span
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.rows import Whole


class Reordering(NamedTuple):
    """A call that puts its rows in another order, the place in its body, and the origin of the rows before."""

    call: Node
    place: ast.expr
    before: Origin


def reordered_rows_meet_their_own(context: Context) -> Iterator[Finding]:
    """HF333: rows in another order meet no rows in the order from before."""
    reorderings = _reorderings(context.program)
    for meeting in meetings(context) if reorderings else ():
        for reordering in [*reorderings.values()]:
            columns = _in_two_orders(context.program, meeting, reordering)
            if columns is not None:
                del reorderings[reordering.call.id]  # what follows from it is the same mistake
                yield _finding(meeting.node, reordering, *columns)


def _finding(node: Node, reordering: Reordering, moved: RowColumn, unmoved: RowColumn) -> Finding:
    names, call = (read_name(node, moved), read_name(node, unmoved)), reordering.call
    signature = signature_of(call)
    file = call.span.file if signature is None else definition_span(signature.body).file
    return Finding(
        "HF333",
        f"'{node.label}' combines '{names[0]}' and '{names[1]}', whose rows are in different orders",
        Label(argument_span(node.span, signature_of(node), moved.port), f"in the order of '{call.label}'"),
        (
            Label(call.span, "all rows are put in another order here"),
            Label(span_of(file, reordering.place), "by this"),
            Label(argument_span(node.span, signature_of(node), unmoved.port), "in the order from before"),
        ),
        notes=(f"compute '{names[1]}' from what '{call.label}' returns, or have it reorder both",),
    )


def _reorderings(program: Program) -> dict[int, Reordering]:
    """The calls that put their rows in another order."""
    reorderings, places = dict[int, Reordering](), dict[object, Mapping[str, ast.expr]]()
    for node, signature in program.graph.bodies:
        if signature.rows != Whole or is_decorated(signature.body):
            continue
        if signature.body not in places:
            places[signature.body] = reordered_columns(signature)
        paths = places[signature.body]
        columns = [c for c in program.origins.columns(node.id) if f"{c.port}.{c.name}" in paths] if paths else []
        before = {program.origins.of(column) for column in columns}
        if len(before) == 1 and (origin := before.pop()) is not None:
            reorderings[node.id] = Reordering(node, next(iter(paths.values())), origin)
    return reorderings


def reordered_columns(signature: Signature) -> Mapping[str, ast.expr]:
    """The columns of arguments that a body returns in another order, each with the expression; none if it keeps any."""
    definition, returns = definition_of(signature.body), signature.returns
    if definition is None or not isinstance(returns, RecordType):
        return {}
    reordered = dict[str, ast.expr]()
    for name, (place, value) in RowInterpretation.of(signature, definition).completed().columns.items():
        spec = schema(returns.record).fields.get(name)
        if isinstance(value, RowTensor) and value.first == "reordered" and (value.column or "").endswith(f".{name}"):
            reordered[str(value.column)] = place
        elif isinstance(spec, ColumnSpec) and not spec.ragged:
            return {}
    return reordered


def _steps(origin: Origin) -> tuple[RowStep, ...]:
    """The steps that change rows; a function that gives each group as many as it had leaves them in their places."""
    steps = origin.path() or ()
    return tuple(step for step in steps if not (isinstance(step, GroupStep) and step.group == step.results))


def _in_two_orders(program: Program, meeting: Meeting, reordering: Reordering) -> tuple[RowColumn, RowColumn] | None:
    """A column in the new order and one in the old order, of the same rows, that meet without being pairs."""
    call, before, moved, unmoved = reordering.call.id, reordering.before, list[RowColumn](), list[RowColumn]()
    reads = program.origins.columns(meeting.node.id, meeting.reads)
    columns = [(column, origin) for column in reads if (origin := program.origins.of(column)) is not None]
    paths = {(*_steps(origin), *_steps(before)) for _, origin in columns if origin.source == call}
    for column, origin in columns if paths else ():
        if origin.source == call:
            moved.append(column)
        elif origin.source == before.source and _steps(origin) in paths:
            unmoved.append(column)
    sides = [{made_name(program.graph, column) for column in side} for side in (moved, unmoved)]
    return (moved[0], unmoved[0]) if unmoved and sides[0].isdisjoint(sides[1]) else None
