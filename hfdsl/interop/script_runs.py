"""The runs that a shell script starts, for every library, which recognizes its own commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from hfdsl.graph.spans import Span
from hfdsl.interop.launches import Launch
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.shell_values import read_script
from hfdsl.interop.text import ReadError, SourceText, Unread


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """A program of the library that the reader does not know."""

    name: str


ReadLaunch: TypeAlias = Callable[[Launch], RunReading | OtherProgram | None]
"""Reads a command; None for one that starts nothing of the library."""


def runs_of_script(
    source: SourceText, inputs: Inputs, read_launch: ReadLaunch, trainer: str, names: tuple[str, ...], refusal: str
) -> list[RunReading]:
    """The runs that a script starts.

    Raises:
        ReadError: HF970 if it starts none. It says ``refusal``, with the name for ``{}``, where the script starts
            another program; else that there is none of ``trainer``, with a place where one of ``names`` stands.
    """
    script = read_script(source, inputs.arguments, inputs.environment)
    readings, others = list[RunReading](), list[tuple[str, Span]]()
    for launch in script.launches:
        match read_launch(launch):
            case OtherProgram(name):
                others.append((name, launch.span))
            case RunReading() as reading:
                unread = (*script.unread, *reading.unread)
                if not launch.certain:
                    branch = Unread("the script starts this command in a branch that may not run", launch.span)
                    unread = (branch, *unread)
                readings.append(replace(reading, unread=unread, assumed_unset=script.assumed_unset))
            case None:
                pass
    if readings:
        return readings
    for name, span in others:
        raise ReadError(refusal.format(name), span)
    raise script.without_run(trainer, names)
