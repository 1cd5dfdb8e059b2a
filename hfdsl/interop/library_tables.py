"""The tables of other libraries' keys and defaults, which scripts in ``benchmarks/interop`` write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class LibraryTable:
    """A version of a library: the keys of its configuration with their defaults.

    ``engines`` are variants of the keys, by name; ``fields`` those of each class that a ``_target_`` names;
    ``options`` have what argparse or a schema demands of a key: its type, its choices, how many values it takes.
    """

    library: str
    version: str
    engines: Mapping[str, Mapping[str, Any]]
    default: str
    fields: Mapping[str, frozenset[str]]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@cache
def table(library: str) -> LibraryTable:
    """The table of a library."""
    content = json.loads((files("hfdsl.interop") / "tables" / f"{library}.json").read_text("utf-8"))
    keys = content["keys"]
    engines = {content["default"]: keys}
    for name, change in content["engines"].items():
        removed = set(change["removed"])
        engines[name] = {key: value for key, value in keys.items() if key not in removed} | change["changed"]
    fields = {target: frozenset(names) for target, names in content["fields"].items() if names is not None}
    return LibraryTable(
        library=content["library"],
        version=content["version"],
        engines=engines,
        default=content["default"],
        fields=fields,
        options=content.get("options", {}),
    )
