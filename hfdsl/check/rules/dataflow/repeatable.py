"""Repeatability: is the dataflow the same program each time it is traced? One trace makes the plan for all steps."""

from __future__ import annotations

import io
import math
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.program import Constant, Graph, Node, Operand, Queue, Ref, Repeat, Take
from hfdsl.graph.spans import Span
from hfdsl.graph.trace import trace

LIMIT = 500
"""Programs with more nodes are not traced again: the check would be noticeably slower."""


def traces_agree(context: Context) -> Iterator[Finding]:
    """Random numbers, the time and exhausted iterators make each trace a different program.

    The order of a set of strings is not detected: it only changes between processes.
    """
    if context.program.body is None or context.program.graph.misuses or len(context.program.graph.nodes) > LIMIT:
        return
    with redirect_stdout(io.StringIO()):  # what it prints was printed by the first trace
        again = trace(context.program.body)
    difference = _difference(context.program.graph, again)
    if difference is not None:
        span, difference_text = difference
        yield Finding(
            "HF609",
            f"'{context.program.graph.name}' is a different program each time it is traced: {difference_text}",
            Label(span),
            notes=(
                "a plan is made from one trace, and every step runs what that trace recorded",
                "read what changes (a random number, the time, an iterator) once, outside of the dataflow",
            ),
        )


def _difference(before: Graph, again: Graph) -> tuple[Span, str] | None:
    for node, later in zip(before.nodes, again.nodes, strict=False):
        difference_text = _of_nodes(node, later)
        if difference_text is not None:
            return node.span, difference_text
    if again.misuses:
        misuse = again.misuses[0]
        return misuse.span, f"the second time {misuse.kind.value} ({(misuse.name or misuse.subject).strip(': ')})"
    if len(before.nodes) != len(again.nodes):
        longer = max(before, again, key=lambda graph: len(graph.nodes))
        extra = longer.nodes[min(len(before.nodes), len(again.nodes))]
        return extra.span, f"'{extra.label}' is called in one of two traces only"
    if list(before.output.refs()) != list(again.output.refs()):
        return before.span, "the second time it returns another value"
    return None


def _of_nodes(first: Node, second: Node) -> str | None:
    if type(first.op) is not type(second.op) or first.label != second.label:
        return f"this is '{first.label}' the first time, and '{second.label}' the second"
    count, later_count = _count(first), _count(second)
    if count != later_count:
        return f"'{first.label}' takes {count} the first time, and {later_count} the second"
    before, after = dict(first.arguments), dict(second.arguments)
    for name in before | after:
        was, now = before.get(name), after.get(name)
        if isinstance(was, Ref) and isinstance(now, Ref) and was != now:
            return f"argument '{name}' is another value of the graph the second time"
        if was is None or now is None or not _alike(was, now):
            return (
                f"argument '{name}' is {_operand_in_words(was)} the first time, and {_operand_in_words(now)} the second"
            )
    return None


def _count(node: Node) -> int | None:
    """The count that an operation on rows takes."""
    match node.op:
        case Repeat(number) | Take(number) | Queue(lag=int(number)):
            return number
    return None


def _operand_in_words(operand: Operand | None) -> str:
    if isinstance(operand, Constant):
        return reprlib.repr(operand.value)
    return "left out" if operand is None else "a value of the graph"


def _alike(operand: Operand, later: Operand) -> bool:
    if isinstance(operand, Constant) and isinstance(later, Constant):
        return _equal(operand.value, later.value)
    return operand == later


def _equal(value: Any, later: Any) -> bool:
    """Whether two values may be the same data; objects are compared only by parts that can be compared."""
    if type(value) is not type(later):
        return False
    if isinstance(value, float):
        return bool(value == later) or (math.isnan(value) and math.isnan(later))
    if isinstance(value, (str, bytes, int, complex, Enum)):
        return bool(value == later)
    if isinstance(value, Mapping):
        pairs = zip(value.items(), later.items(), strict=False)
        return len(value) == len(later) and all(_equal(a, b) for pair in pairs for a, b in zip(*pair, strict=True))
    if isinstance(value, (list, tuple)):
        return len(value) == len(later) and all(_equal(a, b) for a, b in zip(value, later, strict=True))
    if is_dataclass(value):
        return all(_equal(getattr(value, f.name, None), getattr(later, f.name, None)) for f in fields(value))
    return True
