"""``hfdsl check``: several targets, in one of several forms."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hfdsl.check.context import Timing
from hfdsl.check.findings import Finding
from hfdsl.check.raised import findings_of
from hfdsl.check.report import Report
from hfdsl.errors import HfError
from hfdsl.graph.stages import split
from hfdsl.tools import output
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.importing import UsageError, parts_of
from hfdsl.tools.target import discovered_files, load, programs_of


@dataclass(frozen=True, slots=True)
class TargetOutcome:
    """The outcome of one target: its report, or why it has none.

    ``raised`` is true of a report on a declaration that has no meaning, so that there is no program to check.
    """

    target: str
    report: Report | None = None
    failure: str = ""
    raised: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the report; none without a report."""
        return () if self.report is None else self.report.findings


@dataclass(frozen=True, slots=True)
class Question:
    """The request of a check: with ``discover`` every program of every file, and of every file of a folder."""

    targets: Sequence[str]
    sizes: Sequence[str]
    discover: bool
    cluster: str | None
    elsewhere: bool = False
    library: str = ""
    """The library whose configurations the targets are, with its version where one is given; hfdsl's own if empty."""
    arguments: str = ""
    environment: Sequence[str] = ()
    seconds: str | None = None
    """The file with the seconds of calls."""

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Question:
        """Read the question from the command line."""
        return cls(
            targets=arguments.target,
            sizes=arguments.set,
            discover=arguments.discover,
            cluster=arguments.cluster,
            elsewhere=arguments.elsewhere,
            library=arguments.library or "",
            arguments=arguments.arguments,
            environment=arguments.env,
            seconds=arguments.seconds,
        )


def outcomes(question: Question) -> Iterator[TargetOutcome]:
    """Check every target, also after one of them failed."""
    for text in question.targets:
        if question.library:
            yield from _outcomes_of_library(text, question)
            continue
        try:
            places = list(discovered_files(text)) if question.discover else [text]
        except UsageError as error:
            yield TargetOutcome(text, failure=str(error))
            continue
        for place in places:
            yield from _outcomes_of(place, question)


def _outcomes_of_library(text: str, question: Question) -> Iterator[TargetOutcome]:
    """The outcomes of a configuration of another library."""
    from hfdsl.tools.interop import reports  # late: hfdsl's own targets need none of it

    try:
        for report in reports(text, question.library, question.arguments, question.environment):
            yield TargetOutcome(text, report)
    except UsageError as error:
        yield TargetOutcome(text, failure=str(error))
    except HfError as error:
        yield TargetOutcome(text, Report(text, findings_of(error)), raised=True)


def _outcomes_of(text: str, question: Question) -> Iterator[TargetOutcome]:
    """The outcomes of one target, or of all programs of one file."""
    sizes, cluster = question.sizes, question.cluster
    try:
        for target in programs_of(text, sizes, cluster) if question.discover else [load(text, sizes, cluster)]:
            reports = target.reports(elsewhere=question.elsewhere, timing=_timing(question, target))
            for report in reports:
                yield TargetOutcome(target.text, _with_file_name(report, target) if question.discover else report)
            if target.rounds is not None and all(reports):
                target.rounds.plans()  # whether the two go together
    except UsageError as error:
        yield TargetOutcome(text, failure=str(error))
    except HfError as error:
        findings = findings_of(error)
        if not findings:
            raise
        yield TargetOutcome(text, Report(text, findings), raised=True)


def _timing(question: Question, target: CommandTarget) -> Timing | None:
    """The timing of programs by the file of the command line.

    Raises:
        UsageError: for a target that is not placed or has no queues, unless it was discovered.
    """
    if question.seconds is None or (target.experiment is None and question.discover):
        return None
    from hfdsl.tools.call_seconds import step_timing  # late: most checks time nothing

    if target.experiment is None:
        raise UsageError(f"--seconds times an hf.Experiment, and '{target.text}' is a dataflow without a deployment")
    if not (question.discover or split(target.dataflow.trace()).queues):
        raise UsageError(f"--seconds times programs with queues, and '{target.text}' has none with a lag")
    return step_timing(Path(question.seconds))


def _with_file_name(report: Report, target: CommandTarget) -> Report:
    """A report that names its file."""
    file = target.text if target.loaded is not None else parts_of(target.text)[0]
    return replace(report, facts=f" in {file}{report.facts}")


def check_targets(arguments: argparse.Namespace) -> int:
    """The command, without ``--fix``."""
    results = list(outcomes(Question.of(arguments)))
    show(results, arguments)
    return exit_code(results, strict=arguments.strict)


def exit_code(results: Sequence[TargetOutcome], *, strict: bool) -> int:
    """The worst of all: a target that cannot be checked, errors (with ``strict`` warnings too), nothing."""
    if any(outcome.report is None for outcome in results):
        return output.USAGE
    refuted = any(not o.report.ok or (strict and o.report.findings) for o in results if o.report is not None)
    return output.FINDINGS if refuted else output.OK


def show(results: Sequence[TargetOutcome], arguments: argparse.Namespace) -> None:
    """Print all reports on stdout, and failures to check on stderr."""
    failures = [outcome.failure for outcome in results if outcome.report is None]
    if arguments.format == "human":
        _show_people(results, arguments)
    else:
        from hfdsl.tools.formats import FORMATS

        reports = [outcome.report for outcome in results if outcome.report is not None]
        text = FORMATS[arguments.format](reports, failures)
        if text:
            output.say(text)
    for failure in failures:
        output.say(f"hfdsl check: {failure}", file=sys.stderr)


def _show_people(results: Sequence[TargetOutcome], arguments: argparse.Namespace) -> None:
    if not results:
        output.say("nothing to check: no experiment and no function under @hf.dataflow is defined there")
    for i, outcome in enumerate(o for o in results if o.report is not None):
        if i:
            output.say()
        if outcome.report is not None:
            output.show_report(outcome.report, arguments, sys.stderr if outcome.raised else output.stdout())
