"""``hfdsl requires``: what a program demands of its sizes."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any

from hfdsl.check.run import build_context
from hfdsl.check.sizes.report import DemandReport, DimReport, size_report
from hfdsl.graph.spans import NOWHERE
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.output import OK, machine, say, show_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands of a dataflow, by dim and beyond dims; not ``complete`` where mistakes hide some."""

    dataflow: str
    dims: tuple[DimReport, ...]
    others: tuple[DemandReport, ...]
    complete: bool
    deployed: bool

    @classmethod
    def of(cls, target: CommandTarget) -> Demands:
        """The demands of a target, for any sizes."""
        deployment = target.experiment.deployment if target.experiment else None
        context = build_context(target.dataflow.body, deployment, target.dims)
        sizes, others = size_report(context)
        mistakes = [*context.program.graph.misuses, *context.program.inference.mismatches]
        return cls(context.program.graph.name, tuple(sizes), tuple(others), not mistakes, deployment is not None)

    def __str__(self) -> str:
        others = [_other_demands(self.others)] if self.others else []
        parts = ["\n\n".join([*map(_dim, self.dims), *others]) or "any sizes will do"]
        if not self.complete:
            parts.append("values that do not fit their ports hide some demands; 'hfdsl check' reports which")
        if not self.deployed:
            parts.append("without a deployment, splits over ranks are unknown; an hf.Experiment has one")
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """For tools."""
        return {
            "version": VERSION,
            "dataflow": self.dataflow,
            "dims": {str(size.dim): _as_dict(size) for size in self.dims},
            "others": [_rule_as_dict(rule) for rule in self.others],
            "complete": self.complete,
        }


def requires(target: CommandTarget, arguments: argparse.Namespace) -> int:
    """The command. It succeeds for any sizes, since it only lists demands."""
    demands = Demands.of(target)
    if machine(arguments):
        show_json(demands.as_dict())
    else:
        say(demands)
    return OK


def _dim(dim_report: DimReport) -> str:
    broken = len(dim_report.broken)
    sizes = ", ".join(map(str, dim_report.given))
    verdict = f"breaks {broken} of {len(dim_report.demands)}" if broken else "works"
    now = f" (given: {sizes}, which {verdict})" if dim_report.given else " (not given)"
    beside = f" with {', '.join(f'{dim} = {size}' for dim, size in dim_report.beside)}" if dim_report.beside else ""
    return "\n".join([f"{dim_report.dim}: {dim_report}{beside}{now}", *map(_line, dim_report.demands)])


def _other_demands(rules: tuple[DemandReport, ...]) -> str:
    return "\n".join(["beside these:", *map(_line, rules)])


def _line(rule: DemandReport) -> str:
    mark = {True: "ok    ", False: "broken", None: "open  "}[rule.holds]
    place = "" if rule.span == NOWHERE else f", {os.path.relpath(rule.span.file)}:{rule.span.line}"
    why = "" if rule.why.removeprefix("the requirement ") in rule.need else f", for {rule.why}"
    return f"  {mark}  {rule.node}: {rule.need}{why}{place}"


def _as_dict(dim_report: DimReport) -> dict[str, Any]:
    return {
        "given": list(dim_report.given),
        "beside": {str(dim): size for dim, size in dim_report.beside},
        "possible": not dim_report.sizes.empty,
        "multipleOf": dim_report.sizes.step,
        "remainder": dim_report.sizes.residue,
        "least": dim_report.sizes.least,
        "most": dim_report.sizes.most,
        "demands": [_rule_as_dict(rule) for rule in dim_report.demands],
    }


def _rule_as_dict(rule: DemandReport) -> dict[str, Any]:
    return {
        "need": rule.need,
        "why": rule.why,
        "node": rule.node,
        "file": rule.span.file,
        "line": rule.span.line,
        "holds": rule.holds,
    }
