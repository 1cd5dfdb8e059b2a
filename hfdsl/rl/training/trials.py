"""Trials of changes of a configuration: the text is edited, and everything is checked again, before help is offered.

A check has three stages: the fields are read, then roles are placed and sizes known, and then all rules run. A mistake
of one stage hides those of the next. So a change works if its finding goes and no new one comes, or if the check gets
to a later stage than before: what it finds there, the mistake had hidden.
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
from hfdsl.rl.training.changes import FieldChange, RenameField, SetField
from hfdsl.rl.training.places import Places
from hfdsl.rl.training.toml_files import real_path, standing_in, text_of

MAX_TRIALS = 24
"""How many changes one check tries: a longer report is read from its top anyway. ``hfdsl check --fix`` tries all."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How far a check gets, as the number of its last stage, and what it finds."""

    stage: int
    findings: tuple[Finding, ...]


@dataclass
class ConfigTrials:
    """Trials of one configuration; ``attempt`` checks it without trying anything, as its files read at that time."""

    places: Places
    attempt: Callable[[], Attempt]
    results: dict[tuple[FindingKey, tuple[Edit, ...]], bool] = field(default_factory=dict)

    @cached_property
    def before(self) -> Attempt:
        """The check of the configuration as it is."""
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
        """The finding without those fixes of its dataflow that the configuration as a whole does not bear."""
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
    """Findings as they were before the edits, which may add lines."""
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.span.file, []).append(edit)
    keys = map(finding_key, findings)
    return Counter((code, file, line_before(line, by_file.get(file, ()))) for code, file, line in keys)


def _untraced(context: Context) -> None:
    """A configuration is changed in its text, not in a traced program."""


def help_error(error: HfError, trials: ConfigTrials) -> None:
    """Give an error, and those found beside it, the changes that remove them."""
    for each in errors_in(error):
        finding = finding_of(each)
        changes = [change for change in each.changes if isinstance(change, (SetField, RenameField))]
        if finding is not None and changes:
            helped = trials.helped(finding, changes)
            each.help, each.fixes = helped.help, helped.fixes
