"""Trials of changes of a configuration: before a change is offered as help, its text is edited and checked again.

A check has three stages: it reads the fields, places the roles with their sizes, and runs all rules. A mistake in one
stage hides those in the next. So a change works if its finding disappears and no new one appears, or if the check
reaches a later stage: the mistake had hidden the findings there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from hfdsl.check.context import Change, Context
from hfdsl.check.findings import Edit, Finding, Fix
from hfdsl.check.raised import errors_in, finding_of
from hfdsl.check.repair.edits import apply, line_before
from hfdsl.check.repair.suggestions import Suggestion, with_help, with_note
from hfdsl.check.repair.trials import FindingKey, finding_key, improves, thorough
from hfdsl.errors import HfError
from hfdsl.rl.training.places import Places
from hfdsl.rl.training.toml.changes import FieldChange, RenameField, SetField
from hfdsl.rl.training.toml.files import real_path, standing_in, text_of

MAX_TRIALS = 24
"""The most changes that a check tries, since a long report is read from its top. ``hfdsl check --fix`` tries all."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of a check: the number of its last stage, and its findings."""

    stage: int
    findings: tuple[Finding, ...]


@dataclass
class ConfigTrials:
    """Trials of one configuration; ``attempt`` checks the current text of its files, without trials."""

    places: Places
    attempt: Callable[[], Attempt]
    results: dict[tuple[FindingKey, tuple[Edit, ...]], bool] = field(default_factory=dict)

    @cached_property
    def before(self) -> Attempt:
        """The check of the unchanged configuration."""
        return self.attempt()

    def helped(self, finding: Finding, changes: Iterable[FieldChange], note: str = "") -> Finding:
        """The finding with the changes that remove it, or with a note if none does."""
        fixes = [fix for change in changes if (fix := self._fix(change))]
        suggestions = [Suggestion((Change(fix.title, _untraced, fix),)) for fix in fixes]
        helped = with_help(partial(self._works, finding), finding, suggestions)
        return with_note(finding, note) if helped.help == finding.help else helped

    def _works(self, finding: Finding, change: Change) -> bool:
        return change.fix is not None and self.removes(finding, change.fix)

    def with_working_fixes(self, finding: Finding) -> Finding:
        """The finding without the fixes of its dataflow that break the configuration as a whole."""
        return replace(finding, fixes=tuple(fix for fix in finding.fixes if self.removes(finding, fix)))

    def _fix(self, change: FieldChange) -> Fix | None:
        edits = self.places.edits(change)
        return Fix(str(change), edits) if edits else None

    def removes(self, finding: Finding, fix: Fix) -> bool:
        """Whether the edits of a fix remove a finding and add none."""
        key = finding_key(finding), fix.edits
        if key not in self.results:
            affordable = len(self.results) < MAX_TRIALS or thorough.get()
            self.results[key] = affordable and self._removes(finding, fix)
        return self.results[key]

    def _removes(self, finding: Finding, fix: Fix) -> bool:
        texts: dict[str, str] = {}
        for file in {real_path(edit.span.file) for edit in fix.edits}:
            texts[file] = apply(text_of(file), [edit for edit in fix.edits if real_path(edit.span.file) == file])
        with standing_in(texts):
            after = self.attempt()
        if after.stage != self.before.stage:
            return after.stage > self.before.stage
        return improves(finding_key(finding), _keys(self.before.findings), _keys(after.findings, fix.edits))


def _keys(findings: Iterable[Finding], edits: Iterable[Edit] = ()) -> Counter[FindingKey]:
    """The keys of findings, with lines as before the edits, which may add lines."""
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.span.file, []).append(edit)
    keys = map(finding_key, findings)
    return Counter((code, file, line_before(line, by_file.get(file, ()))) for code, file, line in keys)


def _untraced(context: Context) -> None:
    """Do nothing: a configuration changes in its text, not in a traced program."""


def help_error(error: HfError, trials: ConfigTrials) -> None:
    """Add the changes that remove an error, and those of the same table, to them as help."""
    for problem in errors_in(error):
        finding = finding_of(problem)
        changes = [change for change in problem.changes if isinstance(change, (SetField, RenameField))]
        if finding is not None and changes:
            helped = trials.helped(finding, changes)
            problem.help, problem.fixes = helped.help, helped.fixes
