"""Values and keys as TOML writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hfdsl.errors import ConfigError

REFERENCE = re.compile(r"\$([A-Za-z_]\w*(?:\.\w+)*)")
"""``"$actor.model"``: the value of another field."""


class FieldReference(str):
    """A reference to another field, ``"$actor.model"``; ``$$`` escapes a plain text that begins with a dollar."""

    __slots__ = ()


def value_text(value: Any) -> str:
    """A value as TOML writes it.

    >>> value_text(['a', 1.5, True, {'b c': 2}])
    '["a", 1.5, true, {"b c" = 2}]'
    """
    match value:
        case FieldReference():
            return _quoted(value)
        case bool():
            return "true" if value else "false"
        case str():
            text = "$" + value if value.startswith("$$") or REFERENCE.fullmatch(value) else value
            return _quoted(text)
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(value_text, value))}]"
        case Mapping():
            return "{" + ", ".join(f"{key_text(key)} = {value_text(inner)}" for key, inner in value.items()) + "}"
        case _:
            raise ConfigError("HF901", f"TOML has no form for {value!r}")


def key_text(name: str) -> str:
    """One part of a key as TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    # TOML's basic strings are JSON's, except that TOML does not allow DEL unescaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
