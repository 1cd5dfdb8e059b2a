"""Unused masks: does an update behind a queue with ``late="mask"`` use the mask that leaves late rows out?

A worked example, whose record has a ``response_mask`` that no code reads::

    batch = hf.queue(rollout, lag=2, late="mask")          # a mask of zeros on late rows
    actor.update(batch)                                    # HF765

    def update(self, rollout: Rollout) -> None:
        loss = -(self.log_probs(rollout) * rollout.advantage.tensor).mean()      trains on late rows, too

The rule reports what no code of a stage does, so it reads all of it (``role_code.py``): the update, and the calls that
compute what it reads, since advantages may be masked before. It does not report code that it cannot read, that asks for
the versions of its rows, or that uses what hfdsl has for losses, which may read the mask of a record.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Final

from hfdsl.check.bodies.role_code import code_of, code_of_function, is_of_user, is_plain
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.check.rules.queues.followed_queues import surely_decides
from hfdsl.graph.columns import columns_read
from hfdsl.graph.program import FunctionCall, Node
from hfdsl.graph.queue_problems import MASKS as MASK_COLUMNS
from hfdsl.graph.signatures import RecordType
from hfdsl.graph.stages import effects
from hfdsl.types.batches import schema

MASKS: Final = frozenset(MASK_COLUMNS)
"""The columns that are zero on late rows."""

LIBRARY: Final = frozenset({"hfdsl", "rl"})
"""Parts of the names of what hfdsl has for losses, some of which takes a whole record."""

USES: Final = MASKS | {"row_versions", "rows_version"}
"""Names by which code may leave late rows out."""

TRAINS: Final = frozenset({"autograd", "backward"})
"""Names of what an update takes gradients with; one without has no body yet, or leaves it to others."""


def updates_use_masks(context: Context) -> Iterator[Finding]:
    """HF765: the code of an update behind ``late="mask"`` uses a mask of its rows."""
    program = context.program
    for queue, op in program.split.queues if surely_decides(context) else ():
        stage = program.split.calls(program.split.of[queue.id])
        transfers = {call for sync in program.syncs for call in (sync.export, sync.load)}
        names_by_call = [(node, _names(context, node)) for node in stage if node.id not in transfers]
        if op.late != "mask" or any(names is None or not names.isdisjoint(USES) for _, names in names_by_call):
            continue
        for node, names in names_by_call:
            writes = any(effect.kind == "writes" for _, effect in effects(node))
            if writes and _gets_mask(program, node) and not TRAINS.isdisjoint(names or ()):
                yield _finding(queue, node)


def _names(context: Context, node: Node) -> frozenset[str] | None:
    """All names in the code of a call; None if it may read a mask under another name, or was not read."""
    if _gets_mask(context.program, node) and MASKS.isdisjoint(_columns(node)):
        return None
    if isinstance(node.op, FunctionCall):
        body = node.op.signature.body
        if not isinstance(body, FunctionType) or not is_of_user(body.__module__):
            return None
        code, begins = code_of_function(body), [body.__name__]
    else:
        placement = context.program.placement(node)
        if placement is None or not all(map(is_plain, (*placement.args, *placement.kwargs.values()))):
            return None
        role: type = placement.role
        code, begins = code_of(role), ["__init__", node.method]
    names = frozenset[str]().union(*(function.names for function in code.reached(*begins)))
    return names if code.is_whole and names and not names >= LIBRARY else None


def _gets_mask(program: Program, node: Node) -> bool:
    """Whether a call gets a mask of tokens, under its own name or another."""
    return any(column in MASKS for _, column in columns_read(program.graph, node.id))


def _columns(node: Node) -> set[str]:
    """The columns of the records of a call, as its code names them."""
    signature = signature_of(node)
    ports = () if signature is None else signature.ports
    return {name for port in ports if isinstance(port.type, RecordType) for name in schema(port.type.record).fields}


def _finding(queue: Node, update: Node) -> Finding:
    masks = " or ".join(MASK_COLUMNS)
    return Finding(
        "HF765",
        f"late=\"mask\" sets {masks} of late rows to zero, and no code of '{update.label}' reads it: it would train on "
        "late rows",
        Label(update.span, "reads no mask"),
        (Label(queue.span, "has late rows"),),
        notes=("multiply each term of the loss by the mask, and divide the sum by that of the mask",),
    )
