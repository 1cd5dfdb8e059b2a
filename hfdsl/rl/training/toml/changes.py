"""Changes of one field of a configuration, and the edits of its TOML text that make them.

Comments and layout stay: the edits replace the characters of a value or of a name, or add a key beside its neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.check.findings import Edit
from hfdsl.rl.training.toml.spans import Gap, TomlSpans, upwards
from hfdsl.rl.training.toml.values import key_text, value_text


@dataclass(frozen=True, slots=True)
class SetField:
    """Another value for a field, which may not be written yet.

    >>> print(SetField("actor.generation.max_tokens", 6))
    set actor.generation.max_tokens to 6
    """

    field: str
    value: Any

    def __str__(self) -> str:
        return f"set {self.field} to {value_text(self.value)}"


@dataclass(frozen=True, slots=True)
class RenameField:
    """Another name for a key, which may be a dotted one.

    >>> print(RenameField("actor.learning_rate", "training.optimizer.learning_rate"))
    rename 'learning_rate' to 'training.optimizer.learning_rate'
    """

    field: str
    name: str

    def __str__(self) -> str:
        return f"rename '{self.field.rpartition('.')[2]}' to '{self.name}'"


FieldChange: TypeAlias = SetField | RenameField


def edits_of(change: FieldChange, spans: TomlSpans) -> tuple[Edit, ...]:
    r"""The edits that make a change; none if the text has no place for it.

    >>> from hfdsl.check.repair.edits import apply
    >>> from hfdsl.rl.training.toml.spans import spans_of
    >>> text = "steps = 2\n[actor]  # learns\nmodel = { seed = 1 }\n"
    >>> changes = SetField("actor.model.seed", 7), SetField("actor.batch.rows", 4), RenameField("actor", "policy")
    >>> for change in changes:
    ...     print(apply(text, edits_of(change, spans_of("run.toml", text))).partition("\n")[2])
    [actor]  # learns
    model = { seed = 7 }
    <BLANKLINE>
    [actor]  # learns
    model = { seed = 1 }
    batch.rows = 4
    <BLANKLINE>
    [policy]  # learns
    model = { seed = 1 }
    <BLANKLINE>
    """
    if isinstance(change, RenameField):
        name = ".".join(map(key_text, change.name.split(".")))
        return tuple(Edit(span, name) for span in spans.names.get(change.field, ()))
    if change.field in spans.values:
        return (Edit(spans.values[change.field], value_text(change.value)),)
    return _added(change, spans)


def _added(change: SetField, spans: TomlSpans) -> tuple[Edit, ...]:
    """A new key in the nearest table above it in the text, or in a new table after related ones."""
    table, _, name = change.field.rpartition(".")
    above = next(path for path in (*upwards(table), "") if path in spans.gaps or path in spans.values)
    if above not in spans.gaps:
        return ()  # a plain value, or a reference to another table
    gap = spans.gaps[above]
    assigned = f"{key_text(name)} = {value_text(change.value)}"
    if table and not above:
        last_line = _last_line(change.field.partition(".")[0], spans)
        newline = last_line.before.rstrip(" \t") or last_line.after
        header = ".".join(map(key_text, table.split(".")))
        return (Edit(last_line.place, f"{newline}{newline}[{header}]{newline}{assigned}"),)
    path = change.field.removeprefix(f"{gap.base}.") if gap.base else change.field
    prefix = "".join(f"{key_text(name_part)}." for name_part in path.split(".")[:-1])
    return (Edit(gap.place, f"{gap.before}{prefix}{assigned}{gap.after}"),)


def _last_line(head: str, spans: TomlSpans) -> Gap:
    """The end of the last table below ``head``, or of the text."""
    lines = {path: gap for path, gap in spans.gaps.items() if gap.is_line}
    related = [gap for path, gap in lines.items() if path == head or path.startswith((f"{head}.", f"{head}["))]
    return max(related or list(lines.values()), key=lambda gap: (gap.place.line, gap.place.column))
