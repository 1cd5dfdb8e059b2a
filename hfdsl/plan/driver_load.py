"""HF804: much data that moves through the driver. It is a rule of the check that needs a plan, hence its place here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hfdsl.check.findings import Finding, Label, order
from hfdsl.check.report import Report
from hfdsl.check.sources import return_span
from hfdsl.graph.columns import columns_read, result_origins, row_bytes
from hfdsl.graph.program import Input
from hfdsl.plan.edges import sizes_known
from hfdsl.plan.plan import Plan
from hfdsl.plan.rows import most_rows, row_table
from hfdsl.plan.show import amount

LIMIT_BYTES = 1 << 30
"""Bytes per step from which there is a warning: they take the driver about a second, and every step waits for it."""


def report_with_driver_load(plan: Plan) -> Report:
    """The plan's report, with a warning for every place that moves much data through the driver."""
    findings = (*plan.report.findings, *_findings(plan)) if sizes_known(plan) else plan.report.findings
    return replace(plan.report, findings=order(findings))


def _findings(plan: Plan) -> Iterator[Finding]:
    rows = row_table(plan, plan.dims, most_rows(plan, plan.dims)).rows

    def fetched_bytes(columns: Iterable[tuple[int, str]]) -> int:
        fetched = {pair for pair in columns if not isinstance(plan.node(pair[0]).op, Input)}  # inputs are there already
        return sum((row_bytes(plan.graph, *pair, plan.dims) or 0) * rows.get(pair[0], 0) for pair in fetched)

    for step in plan.steps:
        read = fetched_bytes(columns_read(plan.graph, step.node)) if step.custom else 0
        if read > LIMIT_BYTES:
            yield Finding(
                "HF804",
                f"'{step.label}' reads {amount(read)} per step through the driver: its protocol is a pair of "
                "functions, which get whole values there",
                Label(plan.node(step.node).span),
                (Label(step.signature.span, "registered with a pair of functions"),),
                notes=("declare the protocol, hf.Protocol(...): what it sends goes from worker to worker",),
            )
    returned = fetched_bytes(pair for ref in plan.graph.output.refs() for pair in result_origins(plan.graph, ref))
    if returned > LIMIT_BYTES:
        yield Finding(
            "HF804",
            f"'{plan.name}' returns {amount(returned)} per step, all of which the driver fetches",
            Label(return_span(plan.graph.span)),
            notes=("return metrics, or a record of fewer columns",),
        )
