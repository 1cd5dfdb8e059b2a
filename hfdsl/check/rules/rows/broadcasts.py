"""Broadcasts: do the rows of two tensors meet each other in a body, or another dim?

A worked example, two questions with four responses each::

    groups = scores.reward.tensor.view(-1, 4)                 [2, 4]
    gains = groups - groups.mean(1)                           HF367: [2, 4] with [2]
    gains = groups - groups.mean(1, keepdim=True)             [2, 4] with [2, 1]

torch aligns the last dims of two tensors, so the two means meet the four responses, and a run refuses that. It would
not refuse four means, and each response would learn from another question's. The rule knows the number of dims of
columns, and follows it in the statements that run in every call. It does not report tensors whose number of dims it
does not know, such as the output of a model, nor code that compares all pairs of rows: comparisons, and
``x[:, None] - x``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hfdsl.check.bodies.row_alignment import RowAlignment
from hfdsl.check.bodies.row_tensors import RowTensor
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.rows.mixed_rows import body_of_call
from hfdsl.check.sources import span_of
from hfdsl.graph.program import Node
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import definition_span


def rows_meet_rows(context: Context) -> Iterator[Finding]:
    """HF367: a body computes no row from another dim of a tensor with more dims."""
    seen = set[object]()
    for node, signature in context.program.graph.bodies:
        if signature.body in seen or signature.is_ready_made or is_decorated(signature.body):
            continue
        seen.add(signature.body)
        definition = definition_of(signature.body)
        if definition is None:
            continue
        body = body_of_call(RowAlignment, context.program, node, signature, definition)
        for expression, wide, narrow in body.completed().misaligned[:1]:
            yield _finding(node, signature, expression, wide, narrow)


def _finding(node: Node, signature: Signature, place: ast.expr, wide: RowTensor, narrow: RowTensor) -> Finding:
    of_each = "groups" if narrow.first in ("groups", "cut groups") else "rows"
    advice = f"give the smaller one a last dim: y[:, None], or x.mean(1, keepdim=True) for numbers of {of_each}"
    if wide.narrow:
        advice = "to pair all rows, write x[:, None] and y[None, :]; to go row by row, drop the last dim: x.squeeze(-1)"
    return Finding(
        "HF367",
        f"'{node.label}' computes '{ast.unparse(place)}' of tensors with {wide.dims} dims and with {narrow.dims}: the "
        f"{of_each} of the one meet the last dim of the other",
        Label(span_of(definition_span(signature.body).file, place), "aligned by their last dims"),
        (Label(node.span, "called here"),),
        notes=(advice,),
    )
