"""Findings about a sync of weights, with the methods of both sides."""

from __future__ import annotations

from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.weight_syncs import WeightSync


def sync_finding(sync: WeightSync, code: str, message: str, notes: tuple[str, ...] = ()) -> Finding:
    """A finding at the call that loads the weights."""
    return Finding(code, message, Label(sync.target.node.span, "the weights go here"), side_labels(sync), notes=notes)


def side_labels(sync: WeightSync) -> tuple[Label, ...]:
    """The methods of both sides."""
    return tuple(
        Label(side.node.op.signature.span, f"'{side.node.label}' {side.effect.kind} '{sync.state}'")  # type: ignore[union-attr]  # a call
        for side in (sync.source, sync.target)
    )


def other_count(count: int) -> str:
    """How many parameters have a mistake beside the first, as the end of a message."""
    return f"; the same holds for {count - 1} other parameter{'s' * (count > 2)}" if count > 1 else ""
