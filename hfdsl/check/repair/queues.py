"""Suggestions for queues: another argument of ``hf.queue``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hfdsl.check.context import Change
from hfdsl.check.findings import Edit, Fix
from hfdsl.check.repair.groups import with_nodes
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.check.repair.trials import with_edits
from hfdsl.check.sources import call_at, span_of
from hfdsl.graph.program import Node, Queue


def queued(queue: Node, alternatives: Sequence[dict[str, Any]], before: str, after: str = "") -> Suggestion:
    """The queue with other arguments, any of the ``alternatives``."""
    return Suggestion(tuple(_change(queue, arguments) for arguments in alternatives), before, after)


def _change(queue: Node, arguments: dict[str, Any]) -> Change:
    words = ", ".join(f"{name}={_text(value)}" for name, value in arguments.items())
    edits = _edits(queue, arguments)
    if edits is not None:
        return Change(words, partial(with_edits, edits), Fix(f"hf.queue(..., {words})", edits))

    def changed(node: Node) -> Node:
        same = node.span == queue.span and isinstance(node.op, Queue)
        return replace(node, op=replace(node.op, **arguments)) if same else node

    return Change(words, partial(with_nodes, changed))


def _edits(queue: Node, arguments: dict[str, Any]) -> tuple[Edit, ...] | None:
    """The edits of the call's text; None if an argument is not a literal in it."""
    call = call_at(queue.span)
    if call is None or any(keyword.arg is None for keyword in call.keywords) or not (call.args or call.keywords):
        return None
    edits, new = list[Edit](), ""
    for name, value in arguments.items():
        keyword = next((keyword for keyword in call.keywords if keyword.arg == name), None)
        if keyword is None:
            new += f", {name}={_text(value)}"
        elif isinstance(keyword.value, ast.Constant):
            edits.append(Edit(span_of(queue.span.file, keyword.value), _text(value)))
        else:
            return None
    if new:
        last = span_of(queue.span.file, [*call.args, *(keyword.value for keyword in call.keywords)][-1])
        end = replace(last, line=last.end_line, column=last.end_column, calls=())
        edits.append(Edit(end, new))
    return tuple(edits)


def _text(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
