"""The typing canary: seeded faults that a type checker must see, so that a silent loss of types is noticed."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("canary.py_")  # not .py: it is not a module of the package
FILE = "hfdsl_canary.py"
TIMEOUT = 300.0  # seconds; the first run of mypy reads all of torch's types


@dataclass(frozen=True, slots=True)
class Sighting:
    """The result of one checker: the number of seeded faults, the missed ones, and the good lines that it refused."""

    seeded: int
    missed: tuple[str, ...]
    stray: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether it saw all faults and nothing else."""
        return not self.missed and not self.stray

    def __str__(self) -> str:
        parts = [f"sees {self.seeded - len(self.missed)} of {self.seeded} seeded faults"]
        parts += [f"misses {fault}" for fault in self.missed]
        parts += [f"refuses a good line: {line}" for line in self.stray]
        return "; ".join(parts)


def faults(source: str, *, torch: bool) -> dict[int, str]:
    r"""The seeded faults by line; those that need torch's types only with ``torch``.

    >>> faults("x = 1\ny  # fault: no y\nz  # fault with torch: no z", torch=False)
    {2: 'no y'}
    """
    by_line = {}
    for number, line in enumerate(source.splitlines(), 1):
        mark = re.search(r"# fault( with torch)?: (.+)$", line)
        if mark and (torch or not mark[1]):
            by_line[number] = mark[2]
    return by_line


def sighting(source: str, seen: Mapping[int, str], *, torch: bool) -> Sighting:
    """Compare the errors of a checker, by line, with the seeded faults."""
    seeded, marked = faults(source, torch=torch), faults(source, torch=True)
    missed = tuple(f"line {line} ({fault})" for line, fault in seeded.items() if line not in seen)
    stray = tuple(f"line {line} ({fault})" for line, fault in seen.items() if line not in marked)
    return Sighting(len(seeded), missed, stray)


@dataclass(frozen=True, slots=True)
class Checker:
    """A type checker: the command that runs it, and the parser of its output."""

    name: str
    options: tuple[str, ...]
    read: Callable[[str], dict[int, str]]

    def command(self) -> list[str] | None:
        """The command line; None if the checker is not installed."""
        if importlib.util.find_spec(self.name) is not None:
            return [sys.executable, "-m", self.name, *self.options, FILE]
        program = shutil.which(self.name)
        return [program, *self.options, FILE] if program else None

    def look(self) -> Sighting:
        """Run it on the seeded faults.

        Raises:
            RuntimeError: where it does not answer.
        """
        source = SOURCE.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="hfdsl-canary-") as folder:
            (Path(folder) / FILE).write_text(source, encoding="utf-8")
            try:
                process = subprocess.run(
                    self.command() or [], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
                )
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"no answer within {TIMEOUT:g} s") from None
        try:
            seen = self.read(process.stdout)
        except ValueError:
            seen = {}
        if not seen and process.returncode not in (0, 1):
            lines = (process.stderr or process.stdout).strip().splitlines() or ["nothing"]
            raise RuntimeError(f"exit code {process.returncode}: {lines[-1]}")
        return sighting(source, seen, torch=importlib.util.find_spec("torch") is not None)


def _read_mypy(output: str) -> dict[int, str]:
    """``file:line: error: text``."""
    return {int(m[1]): m[2] for m in re.finditer(rf"^{re.escape(FILE)}:(\d+): error: (.+)$", output, re.MULTILINE)}


def _read_pyright(output: str) -> dict[int, str]:
    return {
        entry["range"]["start"]["line"] + 1: entry["message"].splitlines()[0]
        for entry in json.loads(output)["generalDiagnostics"]
        if entry["severity"] == "error"
    }


_STRICT = ("--strict", "--no-error-summary", "--config-file=", f"--python-executable={sys.executable}")

CHECKERS = (
    Checker("mypy", _STRICT, _read_mypy),
    Checker("pyright", ("--outputjson", f"--pythonpath={sys.executable}"), _read_pyright),
)
