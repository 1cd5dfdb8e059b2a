"""``hfdsl requires``: what a program demands of its sizes."""

from __future__ import annotations

import argparse
import os
from typing import Any

from hfdsl.check.run import examine
from hfdsl.check.size_report import DemandReport, DimReport, size_report
from hfdsl.graph.spans import NOWHERE
from hfdsl.tools.output import OK, machine, say, show_json
from hfdsl.tools.target import CommandTarget

VERSION = 1


def requires(target: CommandTarget, arguments: argparse.Namespace) -> int:
    """The command. It answers a question, so it succeeds whatever the sizes are."""
    deployment = target.experiment.deployment if target.experiment else None
    context = examine(target.dataflow.body, deployment, target.dims)
    sizes, others = size_report(context)
    mistakes = len(context.program.graph.misuses) + len(context.program.inference.mismatches)
    if machine(arguments):
        show_json(
            {
                "version": VERSION,
                "dataflow": context.program.graph.name,
                "dims": {str(size.dim): _as_dict(size) for size in sizes},
                "others": [_rule_as_dict(rule) for rule in others],
                "complete": not mistakes,
            }
        )
        return OK
    say("\n\n".join([*map(_dim, sizes), *([_others(others)] if others else [])]) or "any sizes will do")
    if mistakes:
        say("\nvalues that do not fit their ports hide some demands; 'hfdsl check' tells which")
    if deployment is None:
        say("\nwithout a deployment nothing is known of splits over ranks; an hf.Experiment has one")
    return OK


def _dim(one: DimReport) -> str:
    broken = len(one.broken)
    given = ", ".join(map(str, one.given))
    verdict = f"breaks {broken} of {len(one.demands)}" if broken else "works"
    now = f" (given: {given}, which {verdict})" if one.given else " (not given)"
    beside = f" with {', '.join(f'{dim} = {size}' for dim, size in one.beside)}" if one.beside else ""
    return "\n".join([f"{one.dim}: {one}{beside}{now}", *map(_line, one.demands)])


def _others(rules: tuple[DemandReport, ...]) -> str:
    return "\n".join(["beside these:", *map(_line, rules)])


def _line(rule: DemandReport) -> str:
    mark = {True: "ok    ", False: "broken", None: "open  "}[rule.holds]
    place = "" if rule.span == NOWHERE else f", {os.path.relpath(rule.span.file)}:{rule.span.line}"
    why = "" if rule.why.removeprefix("the requirement ") in rule.need else f", for {rule.why}"
    return f"  {mark}  {rule.node}: {rule.need}{why}{place}"


def _as_dict(one: DimReport) -> dict[str, Any]:
    return {
        "given": list(one.given),
        "beside": {str(dim): size for dim, size in one.beside},
        "possible": not one.sizes.empty,
        "multipleOf": one.sizes.step,
        "remainder": one.sizes.residue,
        "least": one.sizes.least,
        "most": one.sizes.most,
        "demands": [_rule_as_dict(rule) for rule in one.demands],
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
