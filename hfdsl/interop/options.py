"""Options of programs that argparse configures: ``--key value``, ``--key=value`` and ``--switch``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hfdsl.graph.spans import Span
from hfdsl.interop.hydra import span_of
from hfdsl.interop.settings import Setting
from hfdsl.interop.shell_text import Hole, TextPiece, WordText, holes, text_of
from hfdsl.interop.text import Unread
from hfdsl.interop.values import scalar


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options of a program, in order. ``positional`` are words before any."""

    settings: tuple[Setting, ...]
    positional: tuple[WordText, ...]
    unread: tuple[Unread, ...]


def read_options(words: Sequence[WordText], place: Span, *, dashes: bool = True) -> CommandOptions:
    """Read words as argparse does; an option with several values is a list, one without a value is True.

    With ``dashes``, a dash in a name is an underscore, as the launchers of PyTorch have it.
    """
    settings, positional, unread = list[Setting](), list[WordText](), list[Unread]()
    values = list[WordText]()
    head: _Option | None = None

    def finish() -> None:
        if head is not None:
            settings.append(_setting(head, values, place, dashes=dashes))

    for word in words:
        if (option := _option(word)) is not None:
            finish()
            head, values = option, []
        elif text_of(word) is None and not isinstance(word[0], TextPiece) and (head is None or values):
            unread.append(Unread(f"arguments that are not known: {holes(word)}", span_of(word, place)))
        elif head is None:
            positional.append(word)
        else:
            values.append(word)
    finish()
    return CommandOptions(tuple(settings), tuple(positional), tuple(unread))


@dataclass(frozen=True, slots=True)
class _Option:
    """A word that names an option: the text with which it begins, and the rest of it."""

    first: TextPiece
    rest: WordText


def _option(word: WordText) -> _Option | None:
    first = word[0] if word else None
    if isinstance(first, TextPiece) and first.text.startswith("--") and len(first.text) > 2:
        return _Option(first, word[1:])
    return None


def _setting(option: _Option, values: Sequence[WordText], place: Span, *, dashes: bool) -> Setting:
    """The setting of an option with its values."""
    first, head = option.first, (option.first, *option.rest)
    name, equals, rest = first.text[2:].partition("=")
    key = name.replace("-", "_") if dashes else name
    span = span_of(head, place)
    if equals:
        cut = len(first.text) - len(rest)
        inner = replace(first, text=rest, start=first.start + cut if first.written else first.start)
        values = [(inner, *option.rest)]
    elif option.rest:
        return Setting(key=key, value=None, span=span, value_span=span, unknown=holes(head) or "a name with parts")
    unknown = [word for word in values if text_of(word) is None]
    if unknown:
        hole = next(piece for piece in unknown[0] if isinstance(piece, Hole))
        return Setting(key=key, value=None, span=span, value_span=hole.span, unknown=holes(unknown[0]))
    texts = [text_of(word) or "" for word in values]
    if not texts:
        return Setting(key=key, value=True, span=span, value_span=span)
    whole = _joined(span, span_of(values[-1], place))
    value: Any = scalar(texts[0]) if len(texts) == 1 else [scalar(text) for text in texts]
    pieces = values[0]
    only = pieces[0] if len(values) == 1 and len(pieces) == 1 else None
    if isinstance(only, TextPiece):
        text = only.text if only.written else None
        return Setting(key=key, value=value, span=whole, value_span=only.span, text=text)
    return Setting(key=key, value=value, span=whole, value_span=span_of(values[0], place))


def _joined(first: Span, last: Span) -> Span:
    if first.file != last.file or first.line != last.end_line:
        return first
    return Span(first.file, first.line, first.column, last.end_line, last.end_column)
