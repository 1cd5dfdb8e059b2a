"""Multiple sizes: a dim may have several, for an evaluation batch or a last batch; each of them must work."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label

Occurrences = list[tuple[Context, Finding]]
"""The findings of one mistake, one for each combination of sizes that shows it."""


def check_each_size(context: Context, findings: Callable[[Context], Sequence[Finding]]) -> list[Finding]:
    """The findings for all combinations of sizes: each mistake once, with the sizes that show it."""
    mistakes: dict[tuple[object, ...], Occurrences] = {}
    for binding in context.each_size():
        for finding in findings(binding):
            # The numbers in a message differ from size to size, the mistake does not.
            mistake = finding.code, finding.primary.span, re.sub(r"\d+", "#", finding.message)
            mistakes.setdefault(mistake, []).append((binding, finding))
    return [_one(context, occurrences) for occurrences in mistakes.values()]


def _one(context: Context, occurrences: Occurrences) -> Finding:
    _, finding = occurrences[0]
    where = []
    for dim, sizes in context.alternatives.items():
        showing = dict.fromkeys(binding.sizes[dim] for binding, _ in occurrences)
        if len(showing) < len(sizes):
            where.append(f"{dim} = {' or '.join(map(str, showing))} of {', '.join(map(str, sizes))}")
    note = (f"for {' and '.join(where)}",) if where else ()
    lines = dict.fromkeys(line for _, each in occurrences for line in each.help)
    mending = tuple(
        line for line in lines if all(line in each.help for _, each in occurrences) or _of_one_size(context, line)
    )
    fixes = tuple(fix for fix in finding.fixes if all(fix in each.fixes for _, each in occurrences))
    return replace(finding, notes=(*note, *finding.notes), help=mending, fixes=fixes)


def _of_one_size(context: Context, line: str) -> bool:
    """Whether a help line changes one size of a dim, and says nothing about its other sizes."""
    return any(line.startswith(f"set {dim} = ") for dim in context.alternatives)


def refuse_multiple_sizes(context: Context) -> Finding:
    """The finding that a plan is for one size of each dim."""
    sizes = ", ".join(f"{dim} = {sizes}" for dim, sizes in context.alternatives.items())
    names = ", ".join(map(str, context.alternatives))
    return Finding(
        "HF302",
        f"a plan is for one size of a dim, got {sizes}; check takes several",
        Label(context.call_site),
        notes=(f"compile a plan for each of them, or leave {names} out: such a plan takes what its input has",),
    )
