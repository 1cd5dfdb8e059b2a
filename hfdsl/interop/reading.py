"""Runs that a reader finds in a library's configuration, with the findings of reading and what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hfdsl.check.findings import Finding
from hfdsl.interop.settings import Configuration
from hfdsl.interop.text import SourceText, Unread


@dataclass(frozen=True, slots=True)
class Inputs:
    """The input of a reader: a file or folder, the arguments that follow ``--``, and variables of the environment."""

    path: str
    arguments: SourceText | None = None
    environment: Mapping[str, str] | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class RunReading:
    """A run that a configuration describes. ``findings`` are those of the reading itself, such as unknown keys."""

    configuration: Configuration
    findings: tuple[Finding, ...] = ()
    unread: tuple[Unread, ...] = ()
    assumed_unset: tuple[str, ...] = ()
