"""Four type checkers, each asked once about all programs: the cases, and the fixtures without their ignores.

mypy is asked about the mended programs too, with their ignores: ``hf310`` mended is ``hf310_mended.py``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.check.fixture_programs import FIXTURES, FIXTURES_RUN, mended, names

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests/typing/cases"

PROGRAMS = [(folder, name) for folder in (FIXTURES, FIXTURES_RUN) for name in names(folder)]

Found = dict[str, dict[int, str]]
"""File name -> line -> what a checker says there."""

COMMANDS = {
    "mypy": ("--strict", "--no-error-summary"),
    "pyright": ("--outputjson", f"--pythonpath={sys.executable}"),
    # Without a preset Pyrefly looks at little in a project that has no configuration of its own.
    "pyrefly": ("check", "--preset=strict", f"--search-path={ROOT}", f"--python-interpreter-path={sys.executable}",
                "--output-format=json"),
    "ty": ("check", f"--extra-search-path={ROOT}", f"--python={sys.prefix}", "--output-format=concise"),
}  # fmt: skip  # one command a line


OPTIONS = "\n# mypy: disable-error-code=empty-body\n"
"""In the files and not for the command, so that mypy finds torch in the cache of the project."""


def bare(source: str) -> str:
    """A fixture as it is to a user who has switched nothing off."""
    return re.sub(r"  # type: ignore\[[^\]]*\]|^# mypy: .*$", "", source, flags=re.MULTILINE)


def _mended(file: Path) -> str:
    return re.sub(r"^# mypy: .*$", "", mended(file.read_text("utf-8")), flags=re.MULTILINE)


@cache
def said_by(checker: str) -> Found:
    """What a checker says about every program; the test is skipped where it is not installed."""
    messages: Found = {}
    with tempfile.TemporaryDirectory(prefix="hfdsl-typing-") as temporary:
        target = Path(temporary)
        sources = {file.name: file.read_text("utf-8") for file in CASES.glob("*.py")}
        sources |= {file.name: bare(file.read_text("utf-8")) for file in FIXTURES.glob("*.py")}
        if checker == "mypy":
            sources |= {f"{name}_mended.py": _mended(folder / f"{name}.py") for folder, name in PROGRAMS}
        for name, source in sources.items():
            (target / name).write_text(source + OPTIONS, "utf-8")
        (target / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}), "utf-8")
        for file_name, line, text in _ask(checker, target):
            messages.setdefault(file_name, {}).setdefault(line, text)
    return messages


def _ask(checker: str, folder: Path) -> Iterator[tuple[str, int, str]]:
    start = [sys.executable, "-m", checker] if importlib.util.find_spec(checker) else [shutil.which(checker) or ""]
    if start == [""]:
        pytest.skip(f"{checker} is not installed")
    files = [str(folder)] if checker == "pyright" else sorted(map(str, folder.glob("*.py")))
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "MYPYPATH": str(folder), "NO_COLOR": "1"}
    process = subprocess.run(
        [*start, *COMMANDS[checker], *files],
        capture_output=True, text=True, cwd=ROOT if checker == "mypy" else folder, env=environment, check=False,
    )  # fmt: skip
    assert process.returncode in (0, 1), process.stderr or process.stdout
    if checker == "pyright":
        for entry in json.loads(process.stdout)["generalDiagnostics"]:
            if entry["severity"] == "error":
                yield Path(entry["file"]).name, entry["range"]["start"]["line"] + 1, entry["message"]
    elif checker == "pyrefly":
        for entry in json.loads(process.stdout)["errors"]:
            yield Path(entry["path"]).name, entry["line"], entry["concise_description"]
    else:
        for match in re.finditer(r"^(.+?):(\d+):(?:\d+:)? error(?:: |\[)(.*)$", process.stdout, re.MULTILINE):
            yield Path(match[1]).name, int(match[2]), match[3]
