"""Mixed rows: does a body that declares independent rows compute them from a statistic over all rows?

A worked example, a function that says nothing about its rows, so that a plan may cut them anywhere::

    @hf.function                                     rows=hf.Independent
    def whiten(gains: Gains) -> Gains:
        x = gains.gain.tensor                        rows of the call
        spread = x.std() + 1e-6                      one number of all of them
        return Gains(gain=(x - x.mean()) / spread)   HF338: rows with a number of all of them

On two ranks each half is whitened by its own mean, and nothing fails. The rule evaluates the statements that run in
every call on two kinds of values: *rows*, whose first dim is the rows of the call, and *statistics*, which a reduction
or an order over that dim gives. It reports where both meet in rows that the body returns, or where a statistic is
returned as a column. A loss is no row: ``(x / n.sum()).sum()`` is a statistic, as ``x.sum() / n.sum()`` is.

In ``x.view(-1, 8)`` the first dim is groups of rows, so ``.mean(1)`` is a number of each group and ``.mean(0)`` one of
all. ``x.view(8, -1)`` cuts the rows of the call into eight pieces, and every mean of these depends on where a plan has
cut. Where groups have eight rows, its ``.mean(0)`` is that of rows of different groups, also in a function of all rows,
whose groups are those that ``repeat`` made. There the ``.mean(0)`` of ``x.view(-1, 8)`` is wrong beside these groups,
too. The rule knows nothing of anything else, such as a sum over the ranks, and reports nothing there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from math import prod
from typing import Final, TypeVar

from hfdsl.check.bodies.interpretation import RowGroups, ports_of
from hfdsl.check.bodies.row_interpretation import RowInterpretation
from hfdsl.check.bodies.row_tensors import STATISTICS, Mix, Mixed, RoleOutput, RowTensor, mixed_of
from hfdsl.check.bodies.specialized import specialized
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_constants, call_numbers
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.graph.row_steps import RepeatStep
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.protocol import Protocol
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec
from hfdsl.types.rows import Grouped, WholeRows

Rows = TypeVar("Rows", bound=RowInterpretation)

WORDS: Mapping[Mix, tuple[str, str, str]] = {
    "statistic": (
        (
            "'{label}' computes rows from a statistic of all that it gets, '{code}', and rows={rows} lets a plan give "
            "it a part of them"
        ),
        "other values for each part",
        "rows=hf.Whole gives it all rows at once",
    ),
    "split groups": (
        "'{label}' computes over rows of different groups, '{code}': the rows of a group follow one another",
        "takes one row of each piece, not a group",
        "x.view(-1, n) has a group of n rows in each of its rows, and x.view(-1, n).mean(1) their means",
    ),
    "reordered": (
        "'{label}' returns rows in another order, '{code}', and rows={rows} says that each is of the row in its place",
        "in another order",
        "y[order.argsort()] puts back what y[order] has; rows=hf.Whole lets a function return another order",
    ),
    "across groups": (
        "'{label}' computes over rows of different groups, '{code}': only the rows of one group are of one question",
        "a number of one row of each group",
        "x.view(-1, n).mean(1, keepdim=True) has the mean of each group",
    ),
    "cut groups": (
        "'{label}' computes with groups of rows, '{code}', and rows={rows} lets a plan cut them",
        "other values where a group is cut",
        "rows=hf.Grouped(n) keeps groups of n rows together; rows=hf.GroupedBy('n') has a function's parameter say n",
    ),
    "repeated groups": (
        "'{label}' computes rows with the numbers of all groups in turn, '{code}': a row meets that of another group",
        "the first rows meet one group each",
        ".repeat_interleave(n) gives each of the n rows of a group its number",
    ),
}
"""The message of each, the label of the expression, and advice."""

ALWAYS: Final = frozenset[Mix](("across groups", "repeated groups", "split groups"))
"""What is wrong in a function that gets all rows, too."""


def rows_are_kept_apart(context: Context) -> Iterator[Finding]:
    """HF338: a body computes no row from a statistic of all, where it may get a part of them, or of another group."""
    seen = set[object]()
    for node, signature in context.program.graph.bodies:
        constants = call_constants(node)
        call = (signature.body, *((name, _key(value)) for name, value in constants.items()))
        if call in seen or is_decorated(signature.body):
            continue
        seen.add(call)
        definition = definition_of(signature.body)
        mixed = () if definition is None else _mixed(context.program, node, signature, definition)
        may_be_cut = may_get_a_part(node, signature)
        for expression, mix in mixed:
            if may_be_cut or mix in ALWAYS:
                yield _finding(node, signature, expression, mix)
                break


def _key(value: object) -> object:
    """A key by which a constant differs from others; one that has no hash differs from all but itself."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _mixed(program: Program, node: Node, signature: Signature, definition: Function) -> Iterator[Mixed]:
    """The expressions that mix the rows which a body returns; these may also be a statistic, or in another order."""
    body = body_of_call(RowInterpretation, program, node, signature, definition).completed()
    yield from (*body.mixed, *mixed_of(body.returned))
    for name, (place, value) in body.columns.items():
        if isinstance(value, (RoleOutput, RowTensor)) and value.first == "reordered":
            yield Mixed(place, "reordered")
        elif name not in body.metrics and value in STATISTICS:
            yield Mixed(place, "statistic")


def body_of_call(
    interpretation: type[Rows], program: Program, node: Node, signature: Signature, definition: Function
) -> Rows:
    """The interpretation of a body as one call of it runs.

    A body that gets all rows has the groups that ``repeat`` made.
    """
    kept = RowGroups.of(signature)
    if isinstance(signature.rows, WholeRows):
        kept = RowGroups(_repeats(program, node), None)
    if kept.size > 1 and kept.parameter is None:
        parameters = [name for name, number in call_numbers(node).items() if number == kept.size]
        kept = RowGroups(kept.size, parameters[0] if len(parameters) == 1 else None)
    definition = specialized(definition, {}, values=call_constants(node))
    fields = schema(signature.returns.record).fields if isinstance(signature.returns, RecordType) else {}
    metrics = frozenset(name for name, spec in fields.items() if isinstance(spec, MetricSpec))
    return interpretation(signature.body, definition, kept, ports_of(signature), metrics=metrics)


def _repeats(program: Program, node: Node) -> int:
    """How many rows in a row are of one question, in all columns that a call takes; 1 if something may change that."""
    origins = {program.origins.of(column) for column in program.origins.columns(node.id)}
    steps = [step for origin in origins for step in (origin.path() or () if origin is not None else ())]
    if len(origins) != 1 or not all(isinstance(step, RepeatStep) for step in steps):
        return 1
    return prod(step.times for step in steps if isinstance(step, RepeatStep))


def _finding(node: Node, signature: Signature, mixed: ast.expr, mix: Mix) -> Finding:
    message, label, note = WORDS[mix]
    if mix == "statistic" and isinstance(signature.rows, Grouped):
        note += "; or compute it for each group, as x.view(-1, n).mean(1) does"
    declared = Label(signature.span, f"declared rows={signature.rows}")
    return Finding(
        "HF338",
        message.format(label=node.label, code=ast.unparse(mixed), rows=signature.rows),
        Label(span_of(definition_span(signature.body).file, mixed), label),
        (Label(node.span, "called here"), *(() if mix in ALWAYS else (declared,))),
        notes=(note,),
    )


def may_get_a_part(node: Node, signature: Signature) -> bool:
    """Whether a body may be called with some of the rows, and returns rows. A function with metrics is never cut."""
    returns, registration = signature.returns, signature.registration
    if isinstance(signature.rows, WholeRows):
        return False
    if isinstance(node.op, FunctionCall):
        return isinstance(returns, ColumnSpec) or (
            isinstance(returns, RecordType)
            and not any(isinstance(spec, MetricSpec) for spec in schema(returns.record).fields.values())
        )
    meaning = registration.meaning if registration is not None else None
    has_rows = isinstance(returns, ColumnSpec) or (
        isinstance(returns, RecordType) and schema(returns.record).row is not None
    )
    return has_rows and isinstance(meaning, Protocol) and meaning.splits
