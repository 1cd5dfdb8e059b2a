"""Mixed rows: does a body that declares independent rows compute them from a statistic over all rows?

A worked example, a function that says nothing about its rows, so that a plan may cut them anywhere::

    @hf.function                                     rows=hf.Independent
    def whiten(gains: Gains) -> Gains:
        x = gains.gain.tensor                        rows of the call
        spread = x.std() + 1e-6                      one number of all of them
        return Gains(gain=(x - x.mean()) / spread)   HF338: rows with a number of all of them

On two ranks each half is whitened by its own mean, and nothing fails. The rule evaluates the statements that run in
every call on two kinds of values: *rows*, whose first dim are the rows of the call, and *statistics*, which a reduction
or an order over that dim gives. It reports where both meet, or where a statistic is returned as a column. In
``x.view(-1, 8)`` the first dim are groups of rows, so that ``.mean(1)`` is a number of each group and ``.mean(0)`` one
of all; ``x.view(8, -1)`` cuts the rows of the call into eight pieces, and every mean of these depends on where a plan
has cut. Where groups have eight rows, its ``.mean(0)`` is that of rows of different groups, also in a function of all
rows, whose groups are those that ``repeat`` made. Of anything else, such as a sum over the ranks, nothing is known and
nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from hfdsl.check.bodies.interpretation import RowGroups, ports_of
from hfdsl.check.bodies.row_tensors import Mix, RowInterpretation
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, call_numbers
from hfdsl.check.sources import Function, span_of
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.graph.row_steps import RepeatStep
from hfdsl.graph.signatures import RecordType, Signature
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.protocol import Protocol
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec
from hfdsl.types.rows import Grouped, WholeRows

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

ALWAYS: Final = frozenset[Mix](("repeated groups", "split groups"))
"""What is wrong in a function that gets all rows, too."""


def rows_are_kept_apart(context: Context) -> Iterator[Finding]:
    """HF338: a body computes no row from a statistic of all, where it may get a part of them, or of another group."""
    seen = set[object]()
    for node, signature in context.program.graph.bodies:
        if signature.body in seen or is_decorated(signature.body):
            continue
        seen.add(signature.body)
        definition = definition_of(signature.body)
        mixed = () if definition is None else _interpretation(context.program, node, signature, definition).mixed
        may_be_cut = may_get_a_part(node, signature)
        for expression, mix in mixed:
            if may_be_cut or mix in ALWAYS:
                yield _finding(node, signature, expression, mix)
                break


def _interpretation(program: Program, node: Node, signature: Signature, definition: Function) -> RowInterpretation:
    """The interpretation of a body; one that gets all rows has the groups that ``repeat`` made."""
    kept = RowGroups.of(signature)
    if isinstance(signature.rows, WholeRows):
        kept = RowGroups(_repeats(program, node), None)
    if kept.size > 1 and kept.parameter is None:
        parameters = [name for name, number in call_numbers(node).items() if number == kept.size]
        kept = RowGroups(kept.size, parameters[0] if len(parameters) == 1 else None)
    return RowInterpretation(signature.body, definition, kept, ports_of(signature)).completed()


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
