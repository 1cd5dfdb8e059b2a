"""Lowering: from the configuration of another library to the fields of a run of hfdsl, each with its keys.

A reader plugs in with a module ``lowering`` that has a function from a configuration to ``Lowered``. It writes a
``Draft``: ``take`` copies the value of a key, ``put`` sets a value that follows from several, and ``leave_out`` names
keys without a field in hfdsl. Users' keys that none of these names are listed as left out, too. So a lowering
loses nothing silently, and a finding about a field can name the key that decides it::

    draft = Draft(configuration)
    draft.take("dims.B", "data.train_batch_size", size)
    draft.put("options.updates", 4, "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size")
    draft.leave_out("actor_rollout_ref.actor.shuffle", "mini-batches are consecutive rows")
    return draft.lowered()
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hfdsl.check.findings import Finding, Label
from hfdsl.errors import ConfigError
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.interop.reporting import value_text
from hfdsl.interop.settings import MISSING, Configuration, NotKnown, is_integer
from hfdsl.rl.training.toml.values import FieldReference

T = TypeVar("T")

UNKNOWN = "hfdsl has no such setting"

FIRST = ("algorithm", "output", "steps", "seed", "backend")
"""The fields with which a file begins."""


@dataclass(frozen=True, slots=True)
class LoweredField:
    """The value of a field of a run, and the keys that decide it; none where hfdsl needs one and the library has none.

    ``note`` is a comment for readers of the TOML file.
    """

    value: Any
    keys: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A setting that a run of hfdsl does not have, and why."""

    key: str
    value: str
    why: str
    span: Span

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {"key": self.key, "value": self.value, "why": self.why, "file": self.span.file, "line": self.span.line}

    def __str__(self) -> str:
        place = "" if self.span.file.startswith("<") or self.span == NOWHERE else f" (line {self.span.line})"
        return f"{self.key} = {self.value}{place}"


@dataclass(frozen=True, slots=True)
class Lowered:
    """A run of hfdsl as far as a configuration describes one: fields by their dotted names, and what is left out."""

    configuration: Configuration
    fields: Mapping[str, LoweredField]
    left_out: tuple[LeftOut, ...]

    def reasons(self) -> dict[str, list[LeftOut]]:
        """The settings that are left out, by the reason; those that hfdsl has no setting for come last."""
        groups: dict[str, list[LeftOut]] = {}
        for setting in sorted(self.left_out, key=lambda setting: setting.why == UNKNOWN):
            groups.setdefault(setting.why, []).append(setting)
        return groups

    def table(self) -> dict[str, Any]:
        """The fields as the table of a TOML file."""
        table: dict[str, Any] = {}
        for name, entry in self.fields.items():
            *above, last = name.split(".")
            inner = table
            for part in above:
                inner = inner.setdefault(part, {})
            inner[last] = entry.value
        return table

    def keys_of(self, name: str) -> tuple[str, ...]:
        """The keys that decide about a field, or about those below it; if there are none, those of the one above."""
        while name:
            below = [entry for field_name, entry in self.fields.items() if f"{field_name}.".startswith(f"{name}.")]
            if keys := tuple(dict.fromkeys(key for entry in below for key in entry.keys)):
                return keys
            name = name.rpartition(".")[0]
        return ()


class NotLowered(ConfigError):  # noqa: N818  # says what it is
    """HF981: a run that no dataflow of hfdsl is; HF982: one whose sizes are not known without running something."""

    def __init__(self, code: str, message: str, finding: Finding) -> None:
        super().__init__(code, message)
        self.finding = finding
        self.span = finding.primary.span


def not_lowered(configuration: Configuration, key: str, why: str) -> NotLowered:
    """HF981 at a key whose value hfdsl has no counterpart of."""
    owner = configuration.owner(key)
    message = f"{owner} = {value_text(configuration.known(key))} has no counterpart in hfdsl: {why}"
    return NotLowered("HF981", message, Finding("HF981", message, label_of(configuration, owner)))


def unknown_size(configuration: Configuration, error: NotKnown) -> NotLowered:
    """HF982 at a key without which a run cannot be lowered."""
    message = f"this run has no plan as long as {error.key} is not known: {error.reason}"
    label = Label(error.span) if error.span != NOWHERE else label_of(configuration, error.key)
    return NotLowered("HF982", message, Finding("HF982", message, label))


def label_of(configuration: Configuration, key: str) -> Label:
    """The place of a key with its value; the command where the value is the library's default."""
    setting = configuration.setting(key)
    text = f"{configuration.owner(key)} = {value_text(configuration.known(key))}"
    if setting is None:
        place = configuration.place
        return Label(Span(place.file, place.line, place.column), f"{text} by default")
    return Label(setting.span, text)


@dataclass
class Draft:
    """The fields of a run while they are gathered.

    ``usual`` are the library's own values, for a configuration whose files repeat them: what has them is not listed.
    """

    configuration: Configuration
    usual: Mapping[str, Any] = field(default_factory=dict)
    fields: dict[str, LoweredField] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _why: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: Any, *keys: str, note: str = "") -> None:
        """A field whose value follows from keys."""
        owners = tuple(dict.fromkeys(self.configuration.owner(key) for key in keys))
        self.fields[name] = LoweredField(value, owners, note)
        self.uses(*keys)

    def take(self, name: str, key: str, convert: Callable[[Any], Any]) -> bool:
        """A field with the value of a key; ``convert`` makes hfdsl's of it, or raises ``ValueError`` with the reason.

        Without a known value, the key is omitted and the result is False.
        """
        try:
            value = self.configuration.value(key)
            if value == MISSING:
                raise NotKnown(key, "it has to be given")
            self.put(name, convert(value), key)
        except NotKnown as error:
            self.leave_out(key, f"its value is not known: {error.reason}")
        except ValueError as error:
            self.leave_out(key, str(error))
        return name in self.fields

    def refer(self, name: str, target: str, *keys: str) -> None:
        """A field with the value of another one."""
        self.put(name, FieldReference(f"${target}"), *keys)

    def uses(self, *keys: str) -> None:
        """Keys that the draft follows otherwise, such as one that chooses the dataflow."""
        self._used |= {*keys, *(self.configuration.owner(key) for key in keys)}

    def leave_out(self, key: str, why: str) -> None:
        """A setting that hfdsl has no field for."""
        self._why[self.configuration.owner(key)] = why

    def lowered(self, reasons: Mapping[str, str]) -> Lowered:
        """All fields, and what is left out: ``reasons`` by the key, or by the table that it is in."""
        others = [key for key in self.configuration.explicit if key not in self._used and self._differs(key)]
        why = {**{key: _reason(key, reasons) for key in others}, **self._why}
        left_out = [LeftOut(key, self._value_text(key), reason, self._span(key)) for key, reason in why.items()]
        left_out.sort(key=lambda setting: (setting.span.file, setting.span.line, setting.span.column))
        first = [name for name in FIRST if name in self.fields]
        fields = {name: self.fields[name] for name in (*first, *self.fields)}
        return Lowered(self.configuration, fields, tuple(left_out))

    def _differs(self, key: str) -> bool:
        """Whether a setting has another value than the library's default, which needs no counterpart."""
        configuration = self.configuration
        defaults = configuration.defaults if key in configuration.defaults else self.usual
        if key not in defaults:
            return True
        others = {k: v for k, v in configuration.explicit.items() if k != key}
        default = replace(configuration, explicit=others, defaults={**configuration.defaults, key: defaults[key]})
        unknown = object()
        return bool(configuration.known(key, unknown) != default.known(key, None))

    def _value_text(self, key: str) -> str:
        try:
            return value_text(self.configuration.value(key))
        except NotKnown:
            return "?"

    def _span(self, key: str) -> Span:
        setting = self.configuration.explicit.get(key)
        return NOWHERE if setting is None else setting.span


def _reason(key: str, reasons: Mapping[str, str]) -> str:
    above = key
    while above:
        if above in reasons:
            return reasons[above]
        above = above.rpartition(".")[0]
    return UNKNOWN


# -- values


def same(value: T) -> T:
    """A value as it is."""
    return value


def number(value: Any) -> int | float:
    """A number.

    Raises:
        ValueError: for another value.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value_text(value)} is not a number")  # noqa: TRY004  # take reports ValueError
    return value


def integer(value: Any) -> int:
    """An integer.

    Raises:
        ValueError: for another value.
    """
    if not is_integer(value):
        raise ValueError(f"{value_text(value)} is not an integer")
    return int(value)


def size(value: Any) -> int:
    """A positive integer.

    Raises:
        ValueError: for another value.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(f"{value_text(value)} is not a size")
    return int(value)


def text(value: Any) -> str:
    """A text.

    Raises:
        ValueError: for another value, and for an empty one.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value_text(value)} is not a text")
    return value


def is_among(value: Any, names: Container[Any]) -> bool:
    """Whether a value of a run is one of these names; lists and tables, which have no hash, are none."""
    return isinstance(value, (str, int, bool, type(None))) and value in names


def one_of(names: Mapping[Any, T]) -> Callable[[Any], T]:
    """A reader of values that have another name in hfdsl."""

    def read(value: Any) -> T:
        if not is_among(value, names):
            listed = ", ".join(value_text(name) for name in names)
            raise ValueError(f"hfdsl has counterparts of {listed}")
        return names[value]

    return read
