"""The pages of codes."""

from __future__ import annotations

import difflib

from hfdsl.check.codes import CODES, explain
from hfdsl.tools.importing import UsageError


def all_codes() -> str:
    """A line for each code."""
    entries = sorted(CODES.items())
    return "\n".join(f"{c}  {e.title}{'' if e.severity == 'error' else f' ({e.severity})'}" for c, e in entries)


def page_of(text: str) -> tuple[str, str]:
    """The code that a user means, and its page.

    Raises:
        UsageError: where there is no such code.
    """
    code = text.upper()
    code = code if code.startswith("HF") else f"HF{code}"
    if code not in CODES:
        near = difflib.get_close_matches(code, sorted(CODES), n=3, cutoff=0.75)
        hint = f"did you mean {', '.join(near)}?" if near else "'hfdsl explain' lists all"
        raise UsageError(f"there is no code '{text}'; {hint}")
    return code, explain(code) or f"# {code}: {CODES[code].title}\n"
