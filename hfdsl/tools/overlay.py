"""A check of edited texts in place of their files, in a separate process, for ``hfdsl check --fix``.

Texts stand in for the files of their names while modules are imported; nothing is written.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from hfdsl.check.findings import Finding, Fix
from hfdsl.check.repair import edits
from hfdsl.check.repair.trials import thorough
from hfdsl.tools.checking import Question, TargetOutcome, outcomes

_STANDING_IN = ExitStack()
"""Overlays that last as long as this process, which checks once and ends."""


def main() -> None:
    """Read a question from stdin, answer on stdout; what the programs themselves print goes to stderr."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    thorough.set(True)  # otherwise a finding without a fix would keep those after it from being tried
    texts = question.pop("texts")
    lay_over(texts)
    stand_in(texts)
    results = outcomes(Question(**question))
    json.dump([as_dict(outcome) for outcome in results], answer)
    answer.close()


def lay_over(texts: Mapping[str, str]) -> None:
    """Import ``texts``, by the real paths of their files, in place of the files."""
    original = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        text = texts.get(os.path.realpath(loader.path))
        if text is None:
            return original(loader, name)
        linecache.cache[loader.path] = (len(text), None, text.splitlines(keepends=True), loader.path)
        return compile(text, loader.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment]  # for this process, which checks and ends


def stand_in(texts: Mapping[str, str]) -> None:
    """Read ``texts`` instead of the files of their names that configure runs."""
    if any(not file.endswith(".py") for file in texts):
        from hfdsl.rl.training.toml.files import standing_in  # late: most targets need nothing of rl

        _STANDING_IN.enter_context(standing_in(texts))


def as_dict(outcome: TargetOutcome) -> dict[str, Any]:
    """An outcome for the process that asked."""
    report, fields = outcome.report, None
    if report is not None:
        findings = [(spelt(finding) if outcome.raised else finding).as_dict() for finding in report]
        fields = {**asdict(replace(report, findings=())), "findings": findings}
    return {"target": outcome.target, "report": fields, "failure": outcome.failure, "raised": outcome.raised}


def spelt(finding: Finding) -> Finding:
    """A declaration that raised, with a fix: the name that its message proposes. The asking process tries it."""
    names = re.search(r"'(\w+)'.*; did you mean '(\w+)'\?", finding.message)
    edit = edits.spelt(finding.primary.span, *names.groups()) if names else None
    fix = Fix(f"replace {names[1]!r} by {names[2]!r}", (edit,)) if names and edit else None
    return replace(finding, fixes=(fix,)) if fix else finding


if __name__ == "__main__":
    main()
