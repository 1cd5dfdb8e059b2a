"""Settings of a configuration, each with its place, and the values that follow from them and the library's defaults.

A value may be an interpolation: ``critic.ppo_mini_batch_size`` is by default ``${oc.select:actor...}``. ``value``
follows it, ``owner`` says which key a user would change. What depends on something that is not known raises
``NotKnown``, so that a rule is silent about it and the report lists it as not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.interop.text import Unread
from hfdsl.interop.values import scalar

MISSING = "???"
"""The value of a required key in OmegaConf."""

MAX_STEPS = 40


@dataclass(frozen=True, slots=True)
class Setting:
    """A key with its value, and the places of both; ``text`` is the span that an edit may replace.

    ``unknown`` says why the value is not known.
    """

    key: str
    value: Any
    span: Span
    value_span: Span = NOWHERE
    text: str | None = None
    unknown: str = ""


class NotKnown(Exception):  # noqa: N818  # not an error: a rule stops here, and the report says why
    """A value that cannot be known without running something."""

    def __init__(self, key: str, reason: str, span: Span = NOWHERE) -> None:
        super().__init__(f"{key}: {reason}")
        self.key, self.reason, self.span = key, reason, span


@dataclass(frozen=True)
class Configuration:
    """The input of a library's run: its explicit settings, and its defaults for the rest.

    ``place`` is the command or the file as a whole. ``unknown_below`` are tables of which only explicit keys are known.
    ``resolvers`` are functions that an interpolation may call, such as ``${mul:2,3}``.
    """

    library: str
    defaults: Mapping[str, Any]
    explicit: Mapping[str, Setting]
    place: Span
    unread: tuple[Unread, ...] = ()
    unknown_below: Mapping[str, Unread] = field(default_factory=dict)
    resolvers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """The value of a key; ``MISSING`` for a required key without one.

        Raises:
            NotKnown: where it depends on something that only a run knows.
        """
        return self._resolved(key, 0)[0]

    def owner(self, key: str) -> str:
        """The key that decides the value: another one where the value is an interpolation of it."""
        try:
            return self._resolved(key, 0)[1]
        except NotKnown:
            return key

    def setting(self, key: str) -> Setting | None:
        """The explicit setting of a key; None if it has its default."""
        return self.explicit.get(self.owner(key))

    def has(self, key: str) -> bool:
        """Whether there is such a key."""
        return key in self.explicit or key in self.defaults

    def known(self, key: str, otherwise: Any = None) -> Any:
        """The value, or a default if it is unknown or there is no such key."""
        try:
            return self.value(key) if self.has(key) else otherwise
        except NotKnown:
            return otherwise

    def size(self, key: str) -> int:
        """A positive integer; Python computes with True as with 1.

        Raises:
            NotKnown: where it is none; another rule reports that.
        """
        value = self.value(key)
        if not isinstance(value, int) or value < 1:
            raise NotKnown(key, f"{value!r} is not a size", self.span(key))
        return int(value)

    def span(self, key: str) -> Span:
        """Where a key is written; the command where it is not."""
        setting = self.setting(key)
        return self.place if setting is None else setting.span

    def with_value(self, key: str, value: Any) -> Configuration:
        """A copy with another value of a key."""
        old = self.explicit.get(key)
        new = Setting(key, value, self.place) if old is None else replace(old, value=value, unknown="")
        return replace(self, explicit={**self.explicit, key: new})

    def _resolved(self, key: str, steps: int) -> tuple[Any, str]:
        if steps > MAX_STEPS:
            raise NotKnown(key, "its interpolations never end")
        setting = self.explicit.get(key)
        if setting is not None:
            if setting.unknown:
                raise NotKnown(key, setting.unknown, setting.value_span)
            return self._interpolated(key, setting.value, steps)
        for above in _upwards(key):
            if above in self.unknown_below:
                raise NotKnown(key, self.unknown_below[above].reason, self.unknown_below[above].span)
            if above and above in self.explicit and above != key:
                inner = self.explicit[above].value
                for part in key[len(above) + 1 :].split("."):
                    inner = inner.get(part) if isinstance(inner, dict) else None
                if isinstance(self.explicit[above].value, dict):
                    return inner, above
        if key not in self.defaults:
            raise NotKnown(key, "there is no such key")
        return self._interpolated(key, self.defaults[key], steps)

    def _interpolated(self, key: str, value: Any, steps: int) -> tuple[Any, str]:
        if not isinstance(value, str) or "${" not in value:
            return value, key
        if _closing(value) != len(value):
            return self._text(key, value, steps), key
        name, colon, arguments = value[2:-1].partition(":")
        first, comma, rest = arguments.partition(",")
        if not colon or name == "oc.select":
            target = _absolute(key, (first if colon else name).strip())
            if self._exists(target):
                return self._resolved(target, steps + 1)
            if not colon:
                raise NotKnown(key, f"'{value}' names a key that is not there", self.span_of(key))
            return self._interpolated(key, scalar(rest.strip()) if comma else None, steps + 1)
        if name == "oc.env" and comma:
            return scalar(rest.strip()), key
        if name in self.resolvers:
            return self._computed(key, name, arguments, steps), key
        reason = f"'{first}' is a variable of the environment" if name == "oc.env" else f"a resolver computes '{value}'"
        raise NotKnown(key, reason, self.span_of(key))

    def _computed(self, key: str, name: str, arguments: str, steps: int) -> Any:
        """Apply a resolver to its arguments, which may be interpolations themselves."""
        values = [
            self._interpolated(key, text, steps + 1)[0] if "${" in text else scalar(text)
            for text in _arguments(arguments)
        ]
        try:
            return self.resolvers[name](*values)
        except (TypeError, ValueError, ArithmeticError):
            shown = ", ".join(map(str, values))
            raise NotKnown(key, f"'{name}' takes no {shown}", self.span_of(key)) from None

    def span_of(self, key: str) -> Span:
        """Where a key itself is written."""
        return self.explicit[key].span if key in self.explicit else self.place

    def _text(self, key: str, value: str, steps: int) -> str:
        """A text with interpolations inside it."""

        def part(match: re.Match[str]) -> str:
            return str(self._interpolated(key, match[0], steps + 1)[0])

        text = re.sub(r"\$\{[^${}]*\}", part, value)
        if "${" in text:
            raise NotKnown(key, f"'{value}' has an interpolation that is not followed", self.span_of(key))
        return text

    def _exists(self, key: str) -> bool:
        return self.has(key) or any(above in self.explicit or above in self.unknown_below for above in _upwards(key))


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; a boolean is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _upwards(key: str) -> Iterator[str]:
    """A key, the tables that hold it, and the whole, which is called by an empty text."""
    while key:
        yield key
        key = key.rpartition(".")[0]
    yield ""


def _arguments(text: str) -> list[str]:
    """The arguments of a resolver: those of an inner interpolation stay together.

    >>> _arguments("${max:${a},1}, 2")
    ['${max:${a},1}', '2']
    """
    parts, depth = [""], 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _closing(text: str) -> int:
    """Where the interpolation with which a text begins ends; 0 if it begins with none."""
    depth = 0
    for i, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0 and i:
            return i + 1 if text.startswith("${") else 0
    return 0


def _absolute(key: str, name: str) -> str:
    """The key that an interpolation names: ``.x`` is a sibling, ``..x`` a key beside the table."""
    if not name.startswith("."):
        return name
    base = key
    while name.startswith("."):
        base, name = base.rpartition(".")[0], name[1:]
    return f"{base}.{name}" if base else name
