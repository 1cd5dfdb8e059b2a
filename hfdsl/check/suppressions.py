"""Suppressions: a comment ``# hf: ignore[HF602]`` at the end of its first or last line hides a warning."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hfdsl.check.codes import CODES
from hfdsl.check.findings import Finding, is_error

COMMENT = re.compile(r"#\s*hf:\s*ignore(?:\[([^\]]*)\])?(?=\s*(?:#.*)?$)")


def unsuppressed(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The findings that no comment hides; if a comment was meant to hide one, it says why it did not."""
    for finding in findings:
        codes = _ignored(finding)
        if is_error(finding) or finding.code not in codes:
            yield replace(finding, notes=(*finding.notes, *_notes(finding, codes)))


def _ignored(finding: Finding) -> list[str]:
    """The codes that the comments on a finding's lines name; an empty string for a comment that names none."""
    span = finding.primary.span
    lines = {linecache.getline(span.file, line) for line in (span.line, span.end_line or span.line)}
    texts = [match[1] or "" for line in lines for match in COMMENT.finditer(line)]
    return [code for text in texts for code in re.split(r"[\s,]+", text.strip())]


def _notes(finding: Finding, codes: list[str]) -> Iterator[str]:
    for code in codes:
        if not code:
            yield f"a comment names what it hides, as in '# hf: ignore[{finding.code}]'"
        elif code not in CODES:
            yield f"'# hf: ignore[{code}]' names no code of hfdsl"
        elif code == finding.code:
            yield f"'# hf: ignore[{code}]' hides nothing: {code} is an error, and comments hide warnings only"
