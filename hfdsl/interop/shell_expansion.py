"""Expansion of a shell script's words, with the variables that are known at that point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hfdsl.interop.arithmetic import integer
from hfdsl.interop.shell_nodes import Arithmetic, Literal, Opaque, ShellParameter, Word, WordPart
from hfdsl.interop.shell_text import Hole, Items, ShellValue, TextPiece, WordText, literal, short, split, text_of
from hfdsl.interop.text import SourceText


@dataclass
class Expander:
    """The variables and arguments of a script at some point, and the words that they make.

    ``assumed`` are the variables that count as unset in the environment because a default is written for them. A script
    may be started with more arguments than are known; ``without_arguments`` says that it is not.
    """

    source: SourceText
    environment: Mapping[str, str]
    values: dict[str, ShellValue] = field(default_factory=dict)
    arguments: list[WordText] = field(default_factory=list)
    assumed: set[str] = field(default_factory=set)
    without_arguments: bool = False

    def expanded(self, words: Sequence[Word]) -> list[WordText]:
        """The words that a shell makes of these: arrays give one each, and unquoted text is split at blanks."""
        return [text for word in words for text in self._fields(word)]

    def _fields(self, word: Word) -> list[WordText]:
        fields: list[list[TextPiece | Hole]] = [[]]
        is_word = False
        for part in word.parts:
            quoted = isinstance(part, Literal) or part.quoted
            is_word = is_word or (isinstance(part, Literal) and part.quoted)
            if isinstance(part, ShellParameter) and part.all_items and (items := self._items(part)) is not None:
                joined = part.quoted and part.all_items == "*"
                for i, item in enumerate(items):
                    if i and joined:
                        fields[-1].append(TextPiece(" ", self.source, part.start, part.end, written=False, quoted=True))
                    elif i:
                        fields.append([])
                    fields[-1] += item
                is_word = (is_word and bool(items)) or joined
            elif quoted:
                fields[-1] += self._part(part, self.source)
            else:
                for i, run in enumerate(split(self._part(part, self.source))):
                    if i:
                        fields.append([])
                    fields[-1] += run
        if not any(fields) and not is_word:
            return []
        return [tuple(pieces) for pieces in fields]

    def _items(self, parameter: ShellParameter) -> Items | None:
        """The items of an array; None if there is no array of that name."""
        if parameter.operator == "other":
            return None
        if parameter.name in ("@", "*"):
            return tuple(self.arguments)
        value = self.values.get(parameter.name)
        if isinstance(value, list):
            return tuple(value) if value or parameter.argument is None else None
        return None

    def text(self, word: Word, source: SourceText) -> WordText:
        """A word as one text."""
        return tuple(piece for part in word.parts for piece in self._part(part, source))

    def _part(self, part: WordPart, source: SourceText) -> WordText:
        match part:
            case Literal(text=text, quoted=quoted, start=start, end=end):
                return literal(source, text, start, end, quoted=quoted)
            case ShellParameter():
                return self._parameter(part, source)
            case Arithmetic(expression=expression):
                number = integer(expression, self.number)
                if number is not None:
                    return (TextPiece(str(number), source, part.start, part.end, written=False),)
                return (Hole(f"$(({expression.strip()})) is not known", source.span(part.start, part.end)),)
            case Opaque(text=text):
                return (Hole(f"only a shell knows {short(text)}", source.span(part.start, part.end)),)

    def _parameter(self, parameter: ShellParameter, source: SourceText) -> WordText:
        name, operator = parameter.name, parameter.operator
        span = source.span(parameter.start, parameter.end)
        if name == "#" and not operator and (self.arguments or self.without_arguments):
            return (TextPiece(str(len(self.arguments)), source, parameter.start, parameter.end, written=False),)
        if operator == "other" or (name in "@*#?-$!" and name != "@"):
            return (Hole(f"{source.text[parameter.start : parameter.end][:60]} is not followed", span),)
        value = self._value(name)
        argument = self.text(parameter.argument, source) if parameter.argument is not None else ()
        empty = value is not None and text_of(value) == ""
        if operator in (":-", "-", ":=", "="):
            if value is None:
                self.assumed.add(name)
            if value is None or (empty and operator.startswith(":")):
                if operator.endswith("="):
                    self.values[name] = argument
                return argument
            return value
        if operator in (":+", "+"):
            if value is None:
                self.assumed.add(name)
            return () if value is None or (empty and operator.startswith(":")) else argument
        if value is None:
            kind = "an argument of the script" if name.isdigit() else "a variable of the environment"
            return (Hole(f"'{name}' is {kind}", span),)
        return value

    def _value(self, name: str) -> WordText | None:
        """A variable as a text; None if neither the script nor the caller sets it."""
        if name.isdigit() and name != "0":
            place = int(name) - 1
            missing = () if self.without_arguments else None
            return self.arguments[place] if place < len(self.arguments) else missing
        base, _, subscript = name.partition("[")
        value = self.values.get(name)
        if value is None and subscript:
            return self._item(name, self.values.get(base), subscript[:-1])
        if isinstance(value, list):
            return value[0] if value else ()
        if value is None and name in self.environment:
            text = self.environment[name]
            return (TextPiece(text, SourceText(f"<environment: {name}>", text), 0, len(text)),) if text else ()
        return value

    def _item(self, name: str, array: ShellValue | None, subscript: str) -> WordText | None:
        """The item of an array; None if there is no such variable."""
        if isinstance(array, list):
            if subscript.isdigit():
                return array[int(subscript)] if int(subscript) < len(array) else ()
            spans = (piece.span for item in array for piece in item)
            return (Hole(f"${{{name}}} is not followed", next(spans, self.source.span(0, 0))),)
        return array

    def number(self, name: str) -> str | None:
        """The text of a variable, for arithmetic."""
        value = self._value(name)
        return None if value is None else text_of(value)
