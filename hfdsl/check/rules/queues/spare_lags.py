"""Spare lags: does a queue need its lag for the speed of its steps?

A worked example, an engine that generates in 41 s and an actor on another pool that updates in 18 s::

    lag                0   1   2   4
    seconds per step  59  41  41  41

With a lag of 1 the engine is never idle. A larger lag makes rows older, and a step takes as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.queues import queued
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.graph.program import Queue

OVERLAPS_NOTHING = "HF754"
"""The finding that with no lag a call begins sooner, which needs no durations."""


def lags_make_steps_faster(context: Context, findings: Iterable[Finding]) -> Iterator[Finding]:
    """HF759: no smaller lag gives steps that are as fast; ``findings`` are those of other rules."""
    time = context.step_time
    if time is None:
        return
    overlapping_nothing = {finding.primary.span for finding in findings if finding.code == OVERLAPS_NOTHING}
    for spare in time.spare_lags:
        node = context.program.graph.nodes[spare.node]
        if not isinstance(node.op, Queue) or node.span in overlapping_nothing:
            continue
        lag = node.op.lag
        mean = f"by simulation, {time.steps} steps take {time.seconds:.4g} s each"
        copied = f"a lag gains more if no sync waits for earlier calls: {time.copied}"
        finding = Finding(
            "HF759",
            f"with lag={lag} rows may be {lag} update{'' if lag == 1 else 's'} old, and steps are as fast with "
            f"lag={spare.least}",
            Label(node.span, "needs a smaller lag"),
            notes=(
                f"{mean}; what takes longest, by median times, is {time.bottleneck}",
                *([copied] * bool(time.copied)),
            ),
        )
        suggestion = queued(node, [{"lag": spare.least}], "learn from newer rows: ")
        yield with_suggestions(context, finding, [suggestion], "" if spare.least else "leave out the lag")
