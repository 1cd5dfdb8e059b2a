"""``plan``, ``draw`` and ``convert`` with ``--from LIBRARY``: runs of other libraries as runs of hfdsl."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import wrap

from hfdsl.check.findings import Finding, is_error, order
from hfdsl.check.report import CheckError, Report
from hfdsl.graph.spans import NOWHERE
from hfdsl.interop.checking import named_readings, report_on
from hfdsl.interop.lowered_runs import load, own_findings, to_toml
from hfdsl.interop.lowering import Lowered
from hfdsl.interop.readers import Library
from hfdsl.tools import output
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.importing import UsageError
from hfdsl.tools.interop import library_inputs
from hfdsl.tools.plan_json import plan_as_dict
from hfdsl.tools.target import described_cluster
from hfdsl.tools.training import Finder, target_of

WIDTH = 110


@dataclass(frozen=True, slots=True)
class LoweredRun:
    """A run of a library as one of hfdsl, with the report of the library's rules, which has no errors."""

    name: str
    library: Library
    report: Report
    lowered: Lowered

    def target(self, arguments: argparse.Namespace) -> CommandTarget:
        """The target of commands; errors as for ``interop.lowered_runs.load``."""
        finder = Finder()
        loaded = load(self.lowered, arguments.set, finder)
        file = getattr(arguments, "cluster", None)  # draw has none
        return target_of(self.name, loaded, finder.sources[0], described_cluster(file) if file else None)


def lowered_runs(arguments: argparse.Namespace, number: int | None = None) -> Iterator[LoweredRun]:
    """The runs that a configuration describes, or the one of this number.

    Raises:
        UsageError: where there is no run of this number.
        ReadError: HF970 if the configuration cannot be read.
        CheckError: with the report, where the library's rules find errors.
        NotLowered: HF981, HF982 if a run has no counterpart in hfdsl, or its sizes are not known.
    """
    library, inputs = library_inputs(arguments.target, arguments.library, arguments.arguments, arguments.env)
    readings = list(named_readings(library, inputs))
    if number is not None and not 1 <= number <= len(readings):
        starts = f"{len(readings)} run{'s' * (len(readings) != 1)}"
        raise UsageError(f"--run {number}: '{arguments.target}' starts {starts}")
    for name, reading in readings if number is None else [readings[number - 1]]:
        report = report_on(library, reading, name, inputs.version)
        if not report.ok:
            raise CheckError(report)
        yield LoweredRun(name, library, report, library.lower(reading.configuration))


def only_target(arguments: argparse.Namespace) -> CommandTarget:
    """The target of a configuration of one run; errors as for ``lowered_runs``.

    Raises:
        UsageError: if there are several.
    """
    runs = list(lowered_runs(arguments))
    if len(runs) > 1:
        raise UsageError(f"'{arguments.target}' starts {len(runs)} runs, and a drawing is of one")
    return runs[0].target(arguments)


def show_plans(arguments: argparse.Namespace) -> int:
    """``hfdsl plan --from``: for each run the report, what is not lowered, and the plan or a prediction."""
    for number, run in enumerate(lowered_runs(arguments)):
        if number and not output.machine(arguments):
            output.say()
        [plan] = run.target(arguments).plans("plan")
        report = replace(plan.report, findings=tuple(filter(_has_place, plan.report)))
        if arguments.predict:
            from hfdsl.tools.predicting import show_prediction

            show_prediction(plan, arguments)
        elif output.machine(arguments):
            findings = [finding.as_dict() for finding in (*run.report, *report)]
            left_out = [setting.as_dict() for setting in run.lowered.left_out]
            output.show_json({"findings": findings, "not_lowered": left_out, "plan": plan_as_dict(plan)})
        else:
            output.show_report(run.report, arguments)
            if report.findings:
                output.show_report(report, arguments)
            output.say(f"{_not_lowered(run)}\n\n{plan}")
    return output.OK


def convert(arguments: argparse.Namespace) -> int:
    """``hfdsl convert``: the TOML file of a run, and what of it does not go."""
    runs = list(lowered_runs(arguments, arguments.run))
    if len(runs) > 1:
        choices = ", ".join(f"--run {number} ({run.name})" for number, run in enumerate(runs, 1))
        raise UsageError(f"'{arguments.target}' starts {len(runs)} runs, and a TOML file is one: choose {choices}")
    [run] = runs
    load(run.lowered)
    findings = own_findings(run.lowered)
    title = f"{run.name} of {run.library.name} {run.library.version}, as far as hfdsl has a counterpart."
    text = to_toml(run.lowered, title)
    if arguments.output:
        try:
            Path(arguments.output).write_text(text, "utf-8")
        except OSError as error:
            raise UsageError(f"cannot write '{arguments.output}': {error.strerror}") from None
    report = replace(run.report, findings=order(list(dict.fromkeys((*run.report.findings, *findings)))))
    exit_code = output.OK if report.ok else output.FINDINGS
    if output.machine(arguments):
        left_out = [setting.as_dict() for setting in run.lowered.left_out]
        output.show_json({"toml": text, "not_lowered": left_out, "findings": [finding.as_dict() for finding in report]})
        return exit_code
    output.show_report(report, arguments, sys.stderr)
    output.say(_not_lowered(run), file=sys.stderr)
    if arguments.output:
        output.say(f"{run.name} -> {arguments.output}", file=sys.stderr)
    else:
        output.say(text.rstrip())
    return exit_code


def _has_place(finding: Finding) -> bool:
    """Whether a finding is at a key; a warning about what the lowering adds concerns no key."""
    return is_error(finding) or finding.primary.span != NOWHERE


def _not_lowered(run: LoweredRun) -> str:
    """Describe the settings without a counterpart, by reason, and the fields that the user must set."""
    lines = list[str]()
    for why, settings in run.lowered.reasons().items():
        lines += wrap(f"not lowered: {why}: {', '.join(map(str, settings))}", WIDTH, subsequent_indent="  ",
                      break_long_words=False, break_on_hyphens=False)  # fmt: skip
    noted = {name: entry for name, entry in run.lowered.fields.items() if entry.note}
    lines += [f"to be set: {name} = {entry.value!r}: {entry.note}" for name, entry in noted.items()]
    return "\n".join(lines)
