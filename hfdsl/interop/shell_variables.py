"""The variables of a shell, and how its commands change them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hfdsl.graph.spans import Span
from hfdsl.interop.shell_conditions import Conditions
from hfdsl.interop.shell_nodes import Assignment, Command, Word
from hfdsl.interop.shell_text import Hole, ShellValue, TextPiece, WordText, length, same, text_of, texts, without_prefix

KEY = re.compile(r"""\[["']?([\w.-]+)["']?\]=""")
"""The prefix of an item in an array with keys."""

MAX_TEXT = 1 << 16
"""The longest text of a variable, and the most items of an array; a longer one is unknown."""


def _with_one_hole(value: ShellValue) -> ShellValue:
    """The same, where a text with several unknown parts has one: otherwise ``A=$A$A`` doubles them."""

    def shortened(text: WordText) -> WordText:
        unknown = [piece for piece in text if isinstance(piece, Hole)]
        return (unknown[0],) if len(unknown) > 4 else text

    return [shortened(text) for text in value] if isinstance(value, list) else shortened(value)


@dataclass
class Variables(Conditions):
    """The variables of a shell. ``hidden`` are those behind a function's own variables; None outside of one."""

    exported: set[str] = field(default_factory=set)
    hidden: dict[str, ShellValue | None] | None = None

    def document(self, command: Command) -> WordText | None:
        """The here-document of a command."""
        word = command.document.word if command.document is not None else None
        return None if word is None else self.text(word, self.source)

    def texts_of_variables(self) -> dict[str, str]:
        """The variables that have a known text."""
        return {
            name: text
            for name, value in self.values.items()
            if not isinstance(value, list) and (text := text_of(value)) is not None
        }

    def declare(self, command: Command) -> None:
        """Follow assignments, with the variables that ``export`` and ``local`` name."""
        kind = command.words[0].plain if command.words else None
        names = {assignment.name for assignment in command.assignments}
        names.update(word.plain or "" for word in command.words[1:])
        if kind == "export" or (kind is not None and "-x" in names):
            self.exported |= names
        elif kind is not None and kind != "readonly" and self.hidden is not None:
            for name in names:
                self.hidden.setdefault(name, self.values.get(name))
        for assignment in command.assignments:
            self.assign(assignment)

    def assign(self, assignment: Assignment) -> None:
        """Give a variable the value of an assignment."""
        name, old = assignment.name, self.values.get(assignment.name)
        span = self.source.span(assignment.start, assignment.end)
        value: ShellValue
        if assignment.items is not None and (keys := self._keys(assignment.items)):
            self.values.update((f"{name}[{key}]", text) for key, text in keys.items())
            value = (Hole(f"'{name}' is an array with keys", span),)
        elif assignment.indexed:
            value = (Hole(f"'{name}' is assigned item by item", span),)
        elif assignment.items is not None:
            value = self.expanded(assignment.items)
            if assignment.append:
                value = [*(old if isinstance(old, list) else [old] if old else []), *value]
        else:
            value = self.text(assignment.value, self.source) if assignment.value else ()
            if assignment.append and not isinstance(old, list):
                value = (*(old or ()), *value)
        if length(value) > MAX_TEXT:
            value = (Hole(f"'{name}' is longer than {MAX_TEXT:,}", span),)
        elif any(isinstance(piece, Hole) for text in texts(value) for piece in text[1:]):
            value = _with_one_hole(value)
        self.values[name] = value

    def _keys(self, items: Sequence[Word]) -> dict[str, WordText]:
        """The items of an array with keys, ``[name]=value``; none if one item is another one."""
        texts = [self.text(item, self.source) for item in items]
        heads = [KEY.match(text[0].text) if text and isinstance(text[0], TextPiece) else None for text in texts]
        if not all(heads):
            return {}
        return {head[1]: without_prefix(text, head[0]) for head, text in zip(heads, texts, strict=True) if head}

    def restore(self, hidden: Mapping[str, ShellValue | None]) -> None:
        """Give variables the values back that others have hidden; None for one that was not there."""
        for name, value in hidden.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value

    def forget(self, names: Iterable[str], reason: str, span: Span) -> None:
        """Make variables unknown."""
        self.values.update((name, (Hole(reason, span),)) for name in names if name)

    def shift(self, words: Sequence[WordText]) -> None:
        """Drop arguments from the front, as ``shift 2`` does."""
        count = text_of(words[1]) if len(words) > 1 else "1"
        del self.arguments[: int(count) if count and count.isdigit() else 0]

    def join(self, outcomes: Sequence[dict[str, ShellValue]], cause: str) -> dict[str, ShellValue]:
        """The variables after branches that end with these; what the branches disagree on is unknown."""
        joined: dict[str, ShellValue] = {}
        for name in dict.fromkeys(name for values in outcomes for name in values):
            values = [values.get(name) for values in outcomes]
            first = values[0]
            if first is not None and all(same(value, first) for value in values):
                joined[name] = first
            else:
                first_known = next(value for value in values if value is not None)
                place = next((p.span for text in texts(first_known) for p in text), self.source.span(0, 0))
                joined[name] = (Hole(f"'{name}' depends on {cause}", place),)
        return joined
