"""``hfdsl check --fix``: make the fixes that are certain, each kept only if a new check confirms it.

The files are written at the end. Until then every check runs in a process of its own, in which changed texts stand in
for files; so the fixes of a module never meet what an earlier import of it left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hfdsl.check.findings import Edit, Finding, Fix, Label
from hfdsl.check.repair.edits import apply, line_before, overlap
from hfdsl.check.report import Coverage, Report
from hfdsl.graph.spans import Span
from hfdsl.tools import output
from hfdsl.tools.checking import Question, TargetOutcome, exit_code, show
from hfdsl.tools.importing import UsageError
from hfdsl.tools.patches import diff, editable

HYDRA = ("verl", "nemo-rl")
"""The libraries whose overrides are ``key=value``; the others have options."""

FixKey: TypeAlias = tuple[str, str, str, int]
"""The key of a finding, stable under edits: target, code, file and line."""


def fix(arguments: argparse.Namespace) -> int:
    """The command: print the changes, then the remaining findings."""
    original = Session(Question.of(arguments), {})
    before = original.ask()
    session, after = repaired(original, before)
    diffs = [diff(file, text) for file, text in session.texts.items()]
    fixed = sum(keys(before).values()) - sum(keys(after).values())
    stream = output.stdout() if arguments.format == "human" else sys.stderr
    if diffs:
        output.say("".join(diffs), file=stream)
    files = f"{len(diffs)} file{'' if len(diffs) == 1 else 's'}"
    findings = f"{fixed} finding{'' if fixed == 1 else 's'}"
    end = "" if arguments.diff else "\n"
    output.say(f"{'would fix' if arguments.diff else 'fixed'} {findings} in {files}{end}", file=stream)
    if not arguments.diff:
        for file, text in session.texts.items():
            write(Path(file), text)
    if arguments.library:
        for words in overrides(after, arguments.library):
            output.say(f"append to the command: {words}", file=stream)
    remaining = before if arguments.diff else after
    if not (arguments.diff and arguments.format == "human"):
        show(remaining, arguments)
    return exit_code(remaining, strict=arguments.strict)


def overrides(outcomes: Sequence[TargetOutcome], library: str) -> list[str]:
    """The arguments that fix findings about settings that no file has: for each, the first change that was tried."""
    from hfdsl.interop.reporting import override  # late: hfdsl's own targets need none of it

    pairs = [pair for outcome in outcomes for finding in outcome.findings for pair in override(finding)]
    form = "{}={}" if library.partition("==")[0] in HYDRA else "--{} {}"
    return list(dict.fromkeys(form.format(*pair) for pair in pairs))


@dataclass(frozen=True, slots=True)
class Session:
    """A checked target with overlays: the texts that differ from their files, by the real paths of these."""

    question: Question
    texts: Mapping[str, str]

    def ask(self) -> list[TargetOutcome]:
        """Check in a separate process.

        Raises:
            UsageError: where that process ends without an answer, as a module does that exits when it is imported.
        """
        question = {**asdict(self.question), "texts": self.texts}
        package = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        process = subprocess.run(
            [sys.executable, "-P", "-m", "hfdsl.tools.overlay"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        try:
            return [_outcome(fields) for fields in json.loads(process.stdout)]
        except ValueError:
            message = process.stderr.strip() or "nothing"
            raise UsageError(f"the check ended with exit code {process.returncode} and said\n\n{message}") from None

    def text(self, file: str) -> str:
        """A file as it would be."""
        return self.texts[file] if file in self.texts else Path(file).read_bytes().decode()

    def with_edits(self, edits: Sequence[Edit]) -> Session:
        """The session with edits, which do not overlap."""
        changed = dict(self.texts)
        for file in dict.fromkeys(os.path.realpath(edit.span.file) for edit in edits):
            in_file = [edit for edit in edits if os.path.realpath(edit.span.file) == file]
            changed[file] = apply(self.text(file), in_file)
        return Session(self.question, changed)


def keys(outcomes: Sequence[TargetOutcome], edits: Sequence[Edit] = ()) -> Counter[FixKey]:
    """All findings; after edits, at their lines before them."""
    return Counter(_key(outcome, finding, edits) for outcome in outcomes for finding in outcome.findings)


def _key(outcome: TargetOutcome, finding: Finding, edits: Sequence[Edit] = ()) -> FixKey:
    span = finding.primary.span
    line = line_before(span.line, [edit for edit in edits if edit.span.file == span.file])
    return outcome.target, finding.code, span.file, line


Repair: TypeAlias = tuple[FixKey, Fix]


def repaired(session: Session, current: list[TargetOutcome]) -> tuple[Session, list[TargetOutcome]]:
    """Make the first fix of each finding: all that do not overlap at once if that works, otherwise one by one."""
    refused: set[Repair] = set()
    while True:
        open_ = [repair for repair in repairs(current) if _again(repair) not in refused]
        if not open_:
            return session, current
        for batch in (joint(open_), open_[:1]):
            edited = session.with_edits(list(dict.fromkeys(edit for _, repair in batch for edit in repair.edits)))
            after = _outcomes(edited)
            if after is not None and _works(batch, current, after):
                session, current = edited, after
                break
        else:
            refused.add(_again(open_[0]))


def _outcomes(session: Session) -> list[TargetOutcome] | None:
    try:
        return session.ask()
    except UsageError:
        return None


def _again(repair: Repair) -> Repair:
    """The key of a repair, stable under edits that move its columns."""
    return repair[0], Fix(repair[1].title, ())


def repairs(outcomes: Sequence[TargetOutcome]) -> Iterator[Repair]:
    """The first fix of every finding, if all files that it touches may be edited."""
    for outcome in outcomes:
        for finding in outcome.findings:
            if finding.fixes and all(editable(edit.span.file) for edit in finding.fixes[0].edits):
                yield _key(outcome, finding), finding.fixes[0]


def joint(repairs: Sequence[Repair]) -> list[Repair]:
    """Repairs that can be made at once; several targets may need the same one."""
    chosen: list[Repair] = []
    for key, candidate in repairs:
        if all(
            candidate.edits == accepted.edits or not overlap(candidate.edits, accepted.edits) for _, accepted in chosen
        ):
            chosen.append((key, candidate))
    return chosen


def _works(batch: Sequence[Repair], before: Sequence[TargetOutcome], after: Sequence[TargetOutcome]) -> bool:
    """Whether the findings of a batch are gone, and no new one appeared."""
    failures = [[o.failure for o in outcomes if o.failure] for outcomes in (before, after)]
    expected = keys(before) - Counter(key for key, _ in batch)
    edits = list(dict.fromkeys(edit for _, repair in batch for edit in repair.edits))
    remaining = keys(after, edits)
    persisting = {key[0] for key in remaining.keys() & keys(before).keys()}
    # A configuration that cannot be read has findings of that alone. If all have gone, the others were hidden by them.
    unread = {outcome.target for outcome in before if outcome.raised and outcome.target.endswith(".toml")} - persisting
    return (
        failures[0] == failures[1] and Counter({k: n for k, n in remaining.items() if k[0] not in unread}) <= expected
    )


def write(file: Path, text: str) -> None:
    """Replace a file atomically, with the same mode.

    Raises:
        UsageError: where it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile("wb", dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
            new.write(text.encode())
        shutil.copymode(file, new.name)
        Path(new.name).replace(file)
    except OSError as error:
        raise UsageError(f"cannot write '{file}': {error.strerror}") from None


# -- the answer of the other process


def _outcome(fields: dict[str, Any]) -> TargetOutcome:
    report = fields["report"]
    if report is not None:
        findings, coverage = tuple(map(_finding, report["findings"])), Coverage(**report["coverage"])
        report = Report(**{**report, "findings": findings, "coverage": coverage})
    return TargetOutcome(**{**fields, "report": report})


def _finding(fields: dict[str, Any]) -> Finding:
    return Finding(
        code=fields["code"],
        message=fields["message"],
        primary=Label(_span(fields["primary"]), fields["primary"]["label"]),
        related=tuple(Label(_span(label), label["label"]) for label in fields["related"]),
        notes=tuple(fields["notes"]),
        help=tuple(fields["help"]),
        fixes=tuple(
            Fix(fix["title"], tuple(Edit(_span(edit), edit["text"]) for edit in fix["edits"]))
            for fix in fields["fixes"]
        ),
    )


def _span(fields: dict[str, Any]) -> Span:
    return Span(fields["file"], fields["line"], fields["column"], fields["endLine"], fields["endColumn"])
