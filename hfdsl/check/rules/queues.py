"""Queues: what has no stages, and so no meaning."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label


def nothing_goes_around(context: Context) -> Iterator[Finding]:
    """HF742: what is read together with rows of a queue goes through that queue as well."""
    if context.program.graph.misuses:
        return
    for queue, value, reader in context.program.split.around:
        yield Finding(
            "HF742",
            f"'{reader.label}' reads '{value.label}' of this step together with rows of a queue, which may be of an "
            "earlier step",
            Label(reader.span, "reads rows of two steps"),
            (Label(queue.span, "the queue"), Label(value.span, "does not go through it")),
            notes=(f"put the columns of '{value.label}' into the record that goes through the queue",),
        )
