"""Is the dataflow the same program each time it is traced? A plan is made of one trace, and steps for all."""

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
from hfdsl.graph.program import Constant, Graph, Node, Operand, Ref, Repeat, Take
from hfdsl.graph.spans import Span
from hfdsl.graph.trace import trace

LIMIT = 500
"""The nodes up to which a program is traced again: beyond, a check would be noticeably slower."""


def traces_agree(context: Context) -> Iterator[Finding]:
    """Random numbers, the time and iterators that are used up make another program of each trace.

    The order of a set of strings is not seen: it changes from process to process only.
    """
    if context.program.body is None or context.program.graph.misuses or len(context.program.graph.nodes) > LIMIT:
        return
    with redirect_stdout(io.StringIO()):  # what it prints was printed by the first trace
        again = trace(context.program.body)
    difference = _difference(context.program.graph, again)
    if difference is not None:
        span, what = difference
        yield Finding(
            "HF609",
            f"'{context.program.graph.name}' is another program each time it is traced: {what}",
            Label(span),
            notes=(
                "a plan is made from one trace, and all its steps run what that trace saw",
                "read what changes (a random number, the time, an iterator) once, outside of the dataflow",
            ),
        )


def _difference(one: Graph, other: Graph) -> tuple[Span, str] | None:
    for first, second in zip(one.nodes, other.nodes, strict=False):
        what = _of_nodes(first, second)
        if what is not None:
            return first.span, what
    if other.misuses:
        misuse = other.misuses[0]
        return misuse.span, f"the second time {misuse.kind.value} ({(misuse.name or misuse.subject).strip(': ')})"
    if len(one.nodes) != len(other.nodes):
        longer = max(one, other, key=lambda graph: len(graph.nodes))
        extra = longer.nodes[min(len(one.nodes), len(other.nodes))]
        return extra.span, f"'{extra.label}' is called in one of two traces only"
    if list(one.output.refs()) != list(other.output.refs()):
        return one.span, "the second time it returns another value"
    return None


def _of_nodes(first: Node, second: Node) -> str | None:
    if type(first.op) is not type(second.op) or first.label != second.label:
        return f"this is '{first.label}' the first time, and '{second.label}' the second"
    one, other = _count(first), _count(second)
    if one != other:
        return f"'{first.label}' takes {one} the first time, and {other} the second"
    before, after = dict(first.arguments), dict(second.arguments)
    for name in before | after:
        was, now = before.get(name), after.get(name)
        if isinstance(was, Ref) and isinstance(now, Ref) and was != now:
            return f"argument '{name}' is another value of the graph the second time"
        if was is None or now is None or not _alike(was, now):
            return f"argument '{name}' is {_shown(was)} the first time, and {_shown(now)} the second"
    return None


def _count(node: Node) -> int | None:
    """The number that an operation on rows is given."""
    match node.op:
        case Repeat(number) | Take(number):
            return number
    return None


def _shown(operand: Operand | None) -> str:
    if isinstance(operand, Constant):
        return reprlib.repr(operand.value)
    return "left out" if operand is None else "a value of the graph"


def _alike(one: Operand, other: Operand) -> bool:
    if isinstance(one, Constant) and isinstance(other, Constant):
        return _equal(one.value, other.value)
    return one == other


def _equal(one: Any, other: Any) -> bool:
    """Whether two values may be the same data; objects are only told apart where their parts can be."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return bool(one == other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (str, bytes, int, complex, Enum)):
        return bool(one == other)
    if isinstance(one, Mapping):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(_equal(a, b) for pair in pairs for a, b in zip(*pair, strict=True))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    if is_dataclass(one):
        return all(_equal(getattr(one, f.name, None), getattr(other, f.name, None)) for f in fields(one))
    return True
