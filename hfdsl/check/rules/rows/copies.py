"""Copies: does a function that compares the rows of a group get different rows?

A worked example, two prompts with a response each::

    rollout = actor.generate(prompts)                  # 0 1
    scores = reward.score(rollout)                     # 0 1
    batch = hf.repeat(hf.merge(Scored, rollout, scores), 4)   # 0 0 0 0 1 1 1 1
    advantages = centered(batch, group=4)              # every group has one response and one score: all are 0

To sample four responses, put the ``repeat`` before ``generate``. If a role reads the copies first, its results may
differ from copy to copy, as those of a judge that is asked four times. A function may then compare these scores, and
the rule reports it only if it gives numbers of tokens by a difference: advantages that compare a response with itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.row_comparison import Comparison
from hfdsl.check.rules.rows.provenance import words
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import FunctionCall, Node, Ref
from hfdsl.graph.reads import RowColumn, columns_read, signature_rows
from hfdsl.graph.row_steps import Origin, SampleStep, row_back
from hfdsl.graph.samples import is_float_column, is_token_column
from hfdsl.graph.signatures import RecordType, Signature


def groups_are_no_copies(context: Context) -> Iterator[Finding]:
    """HF337: a function on groups that gives a number for each row is not given copies of one sample."""
    compare = Comparison(context)
    for node in context.program.graph.calls:
        signature = signature_of(node)
        if not isinstance(node.op, FunctionCall) or signature is None or signature.group_size < 2:
            continue
        columns, group = context.program.origins.columns(node.id), signature.group_size
        returned = signature_rows(signature.returns)
        if returned is None or any(column.row != returned for column in columns) or not _has_scores(columns):
            continue
        copies = [column for column in columns if _are_copies(compare, column, group)]
        responses = [column for column in copies if column.inner and is_token_column(column.spec)]
        if len(copies) == len(columns) or (responses and _compares_tokens(signature)):
            yield _copies(context, node, signature, (responses or copies)[0])


def _has_scores(columns: list[RowColumn]) -> bool:
    """Whether one of the columns has a float for each row, such as a reward."""
    return any(is_float_column(column.spec) and not column.inner for column in columns)


def _compares_tokens(signature: Signature) -> bool:
    """Whether a function returns a float for each token, and subtracts something, as a mean of the group."""
    returned = columns_read(signature.returns, signature.returns) if isinstance(signature.returns, RecordType) else ()
    if not any(is_float_column(spec) and inner for _, spec, inner in returned):
        return False
    definition = definition_of(signature.body)
    subtracts = definition is not None and any(isinstance(node, ast.Sub) for node in nodes_of(definition))
    return subtracts or signature.body.__module__.startswith("hfdsl.rl.")  # whose formulas are elsewhere


def _are_copies(compare: Comparison, column: RowColumn, group: int) -> bool:
    """Whether each group of a column has one row of the call that made it, after a response was sampled."""
    program, origin = compare.context.program, compare.origin(column)
    stored = stored_column(program.graph, column.ref)
    maker = program.origins.rows[stored.node] if isinstance(stored, Ref) else None
    if origin is None or not isinstance(maker, Origin) or not _sampled(maker):
        return False
    rows = None if column.rows is None else compare.base.number(column.rows)
    after = origin.steps[: len(origin.steps) - len(maker.steps)]
    if not rows or rows % group or not after or any(isinstance(step, SampleStep) for step in after):
        return False
    for first in (0, rows - group):
        places = {row_back(row, after, compare.base) for row in range(first, first + group)}
        if len(places) != 1 or (place := next(iter(places))) is None or place[1] - place[0] != 1:
            return False
    return True


def _sampled(origin: Origin) -> bool:
    return any(isinstance(step, SampleStep) for step in origin.steps)


def _copies(context: Context, node: Node, signature: Signature, column: RowColumn) -> Finding:
    group = signature.group_size
    finding = Finding(
        "HF337",
        f"'{node.label}' compares groups of {group} rows, but the rows of each are copies of one row",
        Label(node.span, f"reads {words(context, column)}"),
        (Label(signature.span, f"declared rows={signature.rows}"),),
    )
    advice = f"repeat the prompts before the call that generates: actor.generate(hf.repeat(prompts, {group}))"
    return with_suggestions(context, finding, (), advice)
