"""Suggestions for groups of rows: another size of groups, another count, or a filter that keeps whole groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from hfdsl.check.context import Change, Context
from hfdsl.check.repair.suggestions import Suggestion
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Constant, Filter, FunctionCall, Node, Repeat
from hfdsl.graph.signatures import Signature, in_groups


def whole_groups(context: Context, filters: Sequence[int], group: int) -> Iterator[Suggestion]:
    """The filters at these nodes keep whole groups; of several, all of them."""
    spans = {context.program.graph.nodes[i].span for i in filters}

    def changed(node: Node) -> Node:
        return replace(node, op=Filter(group)) if isinstance(node.op, Filter) and node.span in spans else node

    words = f"keep whole groups: hf.filter(..., group={group})"
    yield Suggestion((Change(words, partial(with_nodes, changed)),))


def with_nodes(change: Callable[[Node], Node], context: Context) -> Context:
    """The program with other nodes; it has no text that could be traced once more."""
    graph = replace(context.program.graph, nodes=tuple(map(change, context.program.graph.nodes)))
    return context.with_program(replace(context.program, graph=graph, inference=infer(graph), body=None))


def other_groups(call: Node, signature: Signature, repeats: int) -> Iterator[Suggestion]:
    """The groups that ``repeat`` made, where a caller chooses."""
    chosen = getattr(call.op, "signature", None)
    parameter = signature.group_parameter
    if parameter is not None and isinstance(call.op, FunctionCall) and repeats > 1:

        def regrouped(node: Node) -> Node:
            if node.span != call.span or not isinstance(node.op, FunctionCall) or node.op.signature is not chosen:
                return node
            arguments = tuple((dict(node.arguments) | {parameter: Constant(repeats)}).items())
            return replace(node, op=replace(node.op, signature=in_groups(signature, repeats)), arguments=arguments)

        yield Suggestion((Change(f"set {parameter} to {repeats}", partial(with_nodes, regrouped)),))


def repeated_as_often(times: int, group: int) -> Iterator[Suggestion]:
    """As many repeats as a group has rows, where ``times`` are too few or too many."""

    def repeated(node: Node) -> Node:
        return replace(node, op=Repeat(group)) if isinstance(node.op, Repeat) and node.op.times == times else node

    yield Suggestion((Change(f"repeat {group} times", partial(with_nodes, repeated)),))
