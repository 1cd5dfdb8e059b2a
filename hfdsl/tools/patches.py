"""Fixes as patches, which ``git apply`` and ``patch -p1`` apply in the current folder."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from hfdsl.check.findings import Fix
from hfdsl.check.repair.edits import apply


def patch(fix: Fix) -> str:
    """A fix as a patch of all files that it edits; empty if one of them may not be edited from here."""
    files = dict.fromkeys(os.path.realpath(edit.span.file) for edit in fix.edits)
    if not all(map(editable, files)):
        return ""
    diffs = []
    for file in files:
        edits = [edit for edit in fix.edits if os.path.realpath(edit.span.file) == file]
        diffs.append(diff(file, apply(Path(file).read_bytes().decode(), edits)))
    return "".join(diffs)


def editable(file: str) -> bool:
    """Whether a file is the user's own: below the current folder, not installed, in UTF-8, and theirs to write."""
    path = Path(os.path.realpath(file))
    if not path.is_file() or not path.is_relative_to(os.path.realpath(Path.cwd())):
        return False
    if {"site-packages", "dist-packages"} & set(path.parts) or not os.access(path, os.W_OK):
        return False
    if hasattr(os, "geteuid") and path.stat().st_uid != os.geteuid():
        return False
    try:
        return not path.read_bytes().decode().startswith("\ufeff")
    except UnicodeDecodeError:
        return False


def diff(file: str, text: str) -> str:
    """The unified diff between a file and its new text."""
    name = Path(os.path.relpath(os.path.realpath(file), os.path.realpath(Path.cwd()))).as_posix()
    old = Path(file).read_bytes().decode()
    lines = difflib.unified_diff(_lines(old), _lines(text), f"a/{name}", f"b/{name}", n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """The lines as ``patch`` counts them: ``splitlines`` also ends one at a form feed."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
