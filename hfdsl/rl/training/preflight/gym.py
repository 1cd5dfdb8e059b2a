"""The data sets of reasoning-gym, read from its text, since importing the package takes seconds."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_REGISTERED = re.compile(r"^register_dataset\(\s*(?:\"(\w+)\"|'(\w+)'|(\w+))", re.MULTILINE)

_CALLED = re.compile(r"(?<!def )(?<![.\w])register_dataset\(")


@cache
def dataset_names() -> frozenset[str]:
    """The names of all data sets; none if the package is not installed, or registers one in another way."""
    spec = find_spec("reasoning_gym")
    names: set[str] = set()
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in Path(folder).rglob("*.py"):
            data = file.read_bytes()
            if b"register_dataset(" not in data:
                continue
            text = data.decode(errors="replace")
            for match in _REGISTERED.finditer(text):
                name = match[1] or match[2] or _constant(text, match[3])
                if name is None:
                    return frozenset()
                names.add(name)
            if len(_CALLED.findall(text)) > len(_REGISTERED.findall(text)):
                return frozenset()
    return frozenset(names)


def _constant(text: str, variable: str) -> str | None:
    """The string that a module assigns to a variable."""
    match = re.search(rf"^{variable}\s*(?::\s*\w+\s*)?=\s*[\"'](\w+)[\"']", text, re.MULTILINE)
    return match[1] if match else None
