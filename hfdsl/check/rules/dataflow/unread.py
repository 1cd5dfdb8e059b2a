"""Unread results: records that nothing reads, row selections without effect, and skipped mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import index_in_loop
from hfdsl.graph.program import Filter, Graph, MiniBatch, Node, Queue, Repeat, Take
from hfdsl.graph.spans import Span
from hfdsl.graph.stages import effects
from hfdsl.graph.values import RecordValue
from hfdsl.types.numbers import join_numbers


def unused(context: Context) -> Iterator[Finding]:
    """A record that a role makes is read, or GPU time is wasted; rows that are selected are read, or all are used."""
    read_nodes = _nodes_read(context.program.graph)
    if context.program.graph.misuses:
        return
    yield from _unused_selections(context, read_nodes)
    yield from passed_over(context)
    for node in context.program.graph.calls:
        value = context.program.inference.values[node.id]
        if node.id not in read_nodes and isinstance(value, RecordValue) and value.rows is not None:
            trains = any(effect.kind == "writes" for _, effect in effects(node))
            yield Finding(
                "HF602",
                f"'{node.label}' returns {value}, which nothing reads",
                Label(node.span),
                notes=("return it" if trains else "return it or remove the call",),
            )


def _unused_selections(context: Context, read_nodes: AbstractSet[int]) -> Iterator[Finding]:
    """Lines that repeat or select rows and whose result is never read, as if the argument had changed.

    The last round of a loop may leave one over, so a line counts as read if any of its nodes is; so does one that asks
    whether a column is present, which is another mistake.
    """
    lines: dict[tuple[Span, str], list[Node]] = {}
    tested = {(span.file, span.line) for span, *_ in context.program.graph.optional_reads}
    for node in context.program.graph.nodes:
        if isinstance(node.op, (Repeat, MiniBatch, Filter, Take, Queue)):
            function = "minibatches" if isinstance(node.op, MiniBatch) else node.op.label
            lines.setdefault((node.span, function), []).append(node)
    for (span, function), nodes in lines.items():
        if (span.file, span.line) not in tested and read_nodes.isdisjoint(node.id for node in nodes):
            yield Finding(
                "HF602",
                f"nothing reads what 'hf.{function}' returns, and its argument does not change",
                Label(span),
                notes=("pass the result on or remove the call: rows are never changed in place",),
            )


def _nodes_read(graph: Graph) -> set[int]:
    """The nodes that something reads."""
    return {ref.node for node in graph.nodes for ref in node.refs} | {ref.node for ref in graph.output.refs()}


def passed_over(context: Context) -> Iterator[Finding]:
    """Mini-batches that nothing reads, since a loop reads the same one in every turn or leaves some out."""
    read_nodes = _nodes_read(context.program.graph)
    batches: dict[tuple[int | None, Span], list[Node]] = {}
    for node in context.program.graph.nodes:
        if isinstance(node.op, MiniBatch) and node.op.count > 1:
            batches.setdefault((node.batch.node if node.batch else None, node.span), []).append(node)
    for (_, span), nodes in batches.items():
        used = [node for node in nodes if node.id in read_nodes]
        if not used or len(used) == len(nodes):
            continue
        readers = {
            node.id: [n.span for n in context.program.graph.nodes if any(ref.node == node.id for ref in n.refs)]
            for node in used
        }
        if len(used) > 1:
            yield from _left_out(nodes, readers, {len(others) for others in batches.values()})
            continue
        [spans] = readers.values()
        indexed = index_in_loop(span) if len(spans) > len(set(spans)) else None
        if indexed is not None:
            name, place = indexed
            yield Finding(
                "HF602",
                f"nothing reads {len(nodes) - 1} of the {len(nodes)} mini-batches in '{name}': the loop over them "
                "reads the same one in every iteration",
                Label(place, "read in every iteration"),
                (Label(span, f"makes {len(nodes)} mini-batches"),),
                notes=(f"read the mini-batch of the iteration: for part in {name}",),
            )


def _left_out(nodes: list[Node], readers: dict[int, list[Span]], counts: AbstractSet[int]) -> Iterator[Finding]:
    """Mini-batches that nothing reads, where one line reads several of the others: a loop goes past them.

    A loop over ``zip(...)`` ends with the shorter of two values, without an error.
    """
    first, *others = readers.values()
    shared = next((span for span in first if any(span in spans for spans in others)), None)
    if shared is None:
        return
    unread = [number for number, node in enumerate(nodes, 1) if node.id not in readers]
    ends_early = len(readers) in counts and unread[0] == len(readers) + 1
    yield Finding(
        "HF602",
        f"nothing reads {len(unread)} of the {len(nodes)} mini-batches, number{'s' * (len(unread) > 1)} "
        f"{join_numbers(unread, ' and ')}: the loop that reads the others leaves their rows out",
        Label(nodes[0].span, f"makes {len(nodes)} mini-batches"),
        (Label(shared, f"reads {len(readers)} of them"),),
        notes=(
            f"zip ends with its shortest argument: make as many mini-batches of both, {len(nodes)} or {len(readers)}"
            if ends_early
            else "read all of them; hf.take(x, n) before hf.minibatches declares that a part of the rows is enough",
        ),
    )
