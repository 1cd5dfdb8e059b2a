"""The output of commands, for people and for machines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TextIO

from hfdsl.check.raised import findings_of
from hfdsl.check.report import Report
from hfdsl.deploy.deployment import Deployment, process_groups
from hfdsl.errors import HfError

OK, FINDINGS, USAGE, BUG, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes; 130 is the shell's code for a command that Ctrl-C ended."""


def colored(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not turned color off."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_STDOUT: ContextVar[TextIO | None] = ContextVar("hfdsl_stdout", default=None)


def stdout() -> TextIO:
    """The stream of a command's output, whatever the program does to ``sys.stdout``."""
    return _STDOUT.get() or sys.stdout


@contextmanager
def own_stdout(*, for_good: bool = False) -> Iterator[None]:
    """Within this context only ``say`` writes to stdout; what programs and their processes print goes to stderr.

    Libraries may write to the file descriptor, or when they end. So the descriptor is replaced as well, and with
    ``for_good`` it stays so until this process ends.
    """
    original = sys.stdout
    original.flush()
    try:
        saved_stdout = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        saved_stdout = None
    try:
        on_descriptor = saved_stdout is not None and original.fileno() == 1
    except (OSError, ValueError):  # a stream of another kind, such as that of a test
        on_descriptor = False
    stream = original
    if saved_stdout is not None and on_descriptor:
        stream = os.fdopen(os.dup(saved_stdout), "w", encoding=original.encoding, errors=original.errors)
    token, sys.stdout = _STDOUT.set(stream), sys.stderr
    try:
        yield
    finally:
        with suppress(BrokenPipeError, ValueError):
            stream.flush()
        if not for_good:
            _STDOUT.reset(token)
            sys.stdout = original
            if saved_stdout is not None:
                os.dup2(saved_stdout, 1)
                os.close(saved_stdout)


def say(*parts: object, sep: str = " ", file: TextIO | None = None) -> None:
    """Print and flush, so that a reader at the other end of a pipe sees a step when it is done."""
    print(*parts, sep=sep, file=file or stdout(), flush=True)


def machine(arguments: argparse.Namespace) -> bool:
    """Whether JSON was asked for."""
    return bool(arguments.format == "json")


def show_json(value: Any) -> None:
    """One object on one line; values without a JSON form are written as their ``repr``."""
    import json  # not at the top: a clean check for people needs none

    say(json.dumps(value, default=repr))


def show_report(report: Report, arguments: argparse.Namespace, file: TextIO | None = None) -> None:
    """Print a report: one finding a line for machines, the full text for people."""
    stream = file or stdout()
    text = report.json() if machine(arguments) else report.text(color=colored(stream))
    if text:
        say(text, file=stream)


def show_error(error: HfError, arguments: argparse.Namespace) -> None:
    """An error that a program raised outside of a check."""
    findings = findings_of(error)
    if findings:
        of_commands = ("target", "config", "run", "subject")
        target = next((value for name in of_commands if (value := getattr(arguments, name, None))), arguments.name)
        report = Report(str(target), findings)
        show_report(report, arguments, None if machine(arguments) else sys.stderr)
    else:
        say(f"error[{error.code}]: {error.message}", file=sys.stderr)


def show_start(deployment: Deployment, backend: str, arguments: argparse.Namespace) -> None:
    """Say on a terminal that the processes of a run start on Ray, which may take a minute."""
    if backend == "ray" and sys.stderr.isatty() and not machine(arguments):
        count = sum(group.pool.world_size for group in process_groups(deployment))
        say(f"starting {count} process{'es' if count > 1 else ''} on Ray", file=sys.stderr)
