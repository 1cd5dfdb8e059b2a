"""Unread masks: does anything read the mask that says which tokens are to be learned?

A worked example, an agent whose responses have the outputs of tools among their tokens::

    class Episodes(Rollout):
        loss_mask: bool_[B, R]                       # false on the outputs of tools

    episodes = agent.play(prompts)
    actor.update(hf.merge(Experience, episodes, advantages))     # HF356: an Experience has no 'loss_mask'

A record takes the columns that it declares and drops the others, so the update gets the tokens without their mask. The
rule knows the mask by its name. The mask counts as read if any call or filter reads it, under that name or another, or
reads another mask of these tokens beside it. Only ``response_mask`` does not count: it has all tokens of a response.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Filter, FunctionCall, Input, Node, Ref, RoleCall
from hfdsl.graph.reads import RowColumn, inner_dims
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.values import RecordValue
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dtypes import Bool

LEARNED = re.compile(r"(loss|train(able|ing)?)_(tokens?_)?masks?")
"""The names of masks that say which tokens are to be learned; an ``action_mask`` is often another ``response_mask``."""


def masks_of_learned_tokens_are_read(context: Context) -> Iterator[Finding]:
    """HF356: an update does not learn from tokens whose mask nothing reads."""
    program = context.program
    masks = _masks(program) if not program.graph.misuses else {}
    if not masks:
        return
    readers = [n for n in program.graph.nodes if isinstance(n.op, (RoleCall, FunctionCall, Filter))]
    read = {stored_column(program.graph, column.ref) for n in readers for column in program.origins.columns(n.id)}
    unread = {mask: dims for mask, dims in masks.items() if read.isdisjoint(_alternatives(program, mask, dims))}
    reported = set[int]()
    for update in update_lines(program) if unread else ():
        columns = program.origins.columns(update.id)
        for mask, dims in unread.items():
            if mask.node not in reported and _learns(program, columns, mask, dims):
                reported.add(mask.node)
                yield _finding(program, update, mask)


def _masks(program: Program) -> dict[Ref, tuple[object, ...]]:
    """The masks of learned tokens that inputs and roles give, each with its dims beside the rows."""
    makers = [node.id for node in program.graph.nodes if isinstance(node.op, (Input, RoleCall))]
    named = (
        column
        for node in makers
        for column in _bool_columns(program, node)
        if LEARNED.fullmatch(column[0].column or "")
    )
    return {mask: dims for mask, dims in named if dims}


def _alternatives(program: Program, mask: Ref, dims: tuple[object, ...]) -> set[Ref]:
    """The mask and those beside it that may stand for it: all but ``response_mask``."""
    columns = _bool_columns(program, mask.node)
    return {other for other, other_dims in columns if other_dims == dims and other.column != "response_mask"}


def _bool_columns(program: Program, node: int) -> Iterator[tuple[Ref, tuple[object, ...]]]:
    """The bool columns of a record that a node gives, each with its dims beside the rows."""
    value = program.inference.values[node]
    if isinstance(value, RecordValue):
        for name, spec in schema(value.type.record).fields.items():
            if isinstance(spec, ColumnSpec) and issubclass(spec.dtype, Bool):
                yield Ref(node, name), inner_dims(spec)


def _learns(program: Program, columns: list[RowColumn], mask: Ref, dims: tuple[object, ...]) -> bool:
    """Whether an update reads tokens from where a mask comes from, counted by the dims of the mask."""
    stored = [(stored_column(program.graph, column.ref), column) for column in columns]
    of_record = [column for ref, column in stored if isinstance(ref, Ref) and ref.node == mask.node]
    return any(is_token_column(column.spec) and set(dims) <= set(column.inner) for column in of_record)


def _finding(program: Program, update: Node, mask: Ref) -> Finding:
    maker = program.graph.nodes[mask.node]
    return Finding(
        "HF356",
        f"'{update.label}' learns from tokens of '{maker.label}', and nothing reads their '{mask.column}': tokens that "
        "this mask leaves out are trained on, too",
        Label(update.span, f"gets the tokens without their '{mask.column}'"),
        (program.producer_label(maker.id),),
        notes=(f"give '{update.label}' the mask, in place of the 'response_mask' or beside it",),
    )
