"""Reports: all findings of one check, and the error that a failed check raises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from hfdsl.check.findings import VERSION, Finding, Severity, is_error
from hfdsl.check.render import render
from hfdsl.errors import HfError

if TYPE_CHECKING:
    from hfdsl.check.queue_bounds import QueueBounds


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a check: ``checked`` of ``combinations`` of sizes; a search for suggestions may be cut off.

    ``not_judged`` says what else was left out, in words.

    >>> Coverage(checked=448, combinations=32_800).omissions
    ('448 of 32,800 combinations of sizes',)
    """

    checked: int = 0
    combinations: int = 0
    search_cut_off: bool = False
    not_judged: tuple[str, ...] = ()

    @property
    def all_sizes(self) -> bool:
        """Whether no combination of sizes was left out."""
        return self.checked >= self.combinations

    @property
    def omissions(self) -> tuple[str, ...]:
        """The omissions, in words; none if the check covered everything."""
        sizes = () if self.all_sizes else (f"{self.checked:,} of {self.combinations:,} combinations of sizes",)
        cut_off = ("the search for suggestions was cut off",) if self.search_cut_off else ()
        return (*sizes, *cut_off, *(f"not judged: {text}" for text in self.not_judged))


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """All findings of one check, errors first, each kind in the order of the program.

    ``str(report)`` is for people, ``report.json()`` for machines; a report is true if it has no error.
    ``coverage`` says whether the check left something out, ``queues`` the proofs for each queue if there is no error.
    """

    dataflow: str
    findings: tuple[Finding, ...] = ()
    facts: str = field(default="", compare=False)
    coverage: Coverage = field(default=Coverage(), compare=False)
    queues: tuple[QueueBounds, ...] = field(default=(), compare=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that refute the program."""
        return tuple(filter(is_error, self.findings))

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that do not refute the program."""
        return tuple(f for f in self.findings if f.severity is Severity.WARNING)

    @property
    def ok(self) -> bool:
        """Whether the program may be launched."""
        return not self.errors

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes found, in order."""
        return tuple(finding.code for finding in self.findings)

    def without(self, code: str) -> Report:
        """This report without the findings of a code."""
        return replace(self, findings=tuple(finding for finding in self.findings if finding.code != code))

    def __bool__(self) -> bool:
        return self.ok

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def text(self, *, color: bool = False) -> str:
        """The report for people; ``color`` is for a terminal."""
        return render(self.dataflow, self.findings, self.facts, color=color)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        codes = f": {', '.join(dict.fromkeys(self.codes))}" if self.findings else ""
        count = len(self.errors)
        return f"<report on '{self.dataflow}': {count} error{'' if count == 1 else 's'}{codes}>"

    def _repr_html_(self) -> str:
        """The HTML for notebooks."""
        from hfdsl.types.html import preformatted  # not at the top: `import hfdsl` is kept fast

        return preformatted(self.text())

    def json(self) -> str:
        """One object per finding, each on a line; then a ``summary`` of queues and omissions, if there are any."""
        import json  # not at the top: `import hfdsl` is kept fast

        records = [finding.as_dict() for finding in self.findings]
        if self.coverage.omissions or self.queues:
            queues = {"queues": [asdict(queue) for queue in self.queues]} if self.queues else {}
            coverage = asdict(self.coverage)
            if not self.coverage.not_judged:  # of other libraries alone
                del coverage["not_judged"]
            summary = {"dataflow": self.dataflow, **coverage, **queues}
            records.append({"version": VERSION, "summary": summary})
        return "\n".join(map(json.dumps, records))


class CheckError(HfError):
    """A program that its check refutes: ``report`` has all findings (the message shows them)."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.errors[0].code, f"'{report.dataflow}' has {len(report.errors)} error(s)\n\n{report}")
        self.report = report
