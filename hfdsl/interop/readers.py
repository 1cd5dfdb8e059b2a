"""The libraries whose configurations are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from hfdsl.check.findings import Finding, Label
from hfdsl.graph.spans import Span
from hfdsl.interop.library_tables import table
from hfdsl.interop.lowering import Lowered
from hfdsl.interop.pages import Outline
from hfdsl.interop.reading import Inputs, RunReading
from hfdsl.interop.reporting import Rule
from hfdsl.interop.settings import Configuration


@dataclass(frozen=True, slots=True)
class Library:
    """A library with the modules that read its configurations and judge them."""

    name: str
    room: str

    @property
    def read(self) -> Callable[[Inputs], list[RunReading]]:
        """The reader."""
        reader: Callable[[Inputs], list[RunReading]] = import_module(f"{self.room}.reading").read
        return reader

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules."""
        rules: Sequence[Rule] = import_module(f"{self.room}.rules").RULES
        return rules

    @property
    def outline(self) -> Outline:
        """The outline of a page about a run."""
        outline: Outline = import_module(f"{self.room}.outline").OUTLINE
        return outline

    @property
    def lower(self) -> Callable[[Configuration], Lowered]:
        """The lowering to a run of hfdsl."""
        lower: Callable[[Configuration], Lowered] = import_module(f"{self.room}.lowering").lower
        return lower

    @property
    def version(self) -> str:
        """The version that the reader knows."""
        return table(self.name).version


LIBRARIES: Mapping[str, Library] = {
    "verl": Library("verl", "hfdsl.interop.verl"),
    "trl": Library("trl", "hfdsl.interop.trl"),
    "openrlhf": Library("openrlhf", "hfdsl.interop.openrlhf"),
    "nemo-rl": Library("nemo-rl", "hfdsl.interop.nemo_rl"),
}


def unknown_version(library: Library, requested: str, place: Span) -> Finding | None:
    """A warning where the library is of another version than the reader knows: the requested, or the installed one."""
    version = requested or _installed(library.name)
    if not version or _minor(version) == _minor(library.version):
        return None
    origin = "" if requested else "installed "
    return Finding(
        "HF980",
        f"this reader knows {library.name} {library.version}, and the {origin}version is {version}",
        Label(Span(place.file, place.line, place.column)),
        notes=("keys, defaults and rules may have changed between the two",),
    )


def _installed(name: str) -> str:
    if find_spec(name.replace("-", "_")) is None:
        return ""
    from importlib import metadata  # late: it takes longer than most checks

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
