"""Overrides on Hydra's command line: ``key=value``, ``+key=value``, ``++key=value``, ``~key`` and ``group=choice``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hfdsl.graph.spans import Span
from hfdsl.interop.settings import Setting
from hfdsl.interop.shell_text import Hole, TextPiece, WordText, text_of
from hfdsl.interop.text import Unread
from hfdsl.interop.values import NoValueError, SweepError, override_value

_KEY = re.compile(r"(\+\+|\+|~)?([A-Za-z_@][\w.@/$:-]*|[\w.]+)")


CONFIG_NAME = ("--config-name", "-cn")
CONFIG_PATH = ("--config-path", "--config-dir", "-cp", "-cd")


@dataclass(frozen=True, slots=True)
class Override:
    """An override: its sign (``+``, ``++``, ``~`` or none) and its setting."""

    sign: str
    setting: Setting


@dataclass(frozen=True, slots=True)
class HydraArguments:
    """The arguments of a program that Hydra configures; ``flags`` are those such as ``--config-name``."""

    overrides: tuple[Override, ...]
    flags: tuple[tuple[str, str], ...]
    unread: tuple[Unread, ...]
    refused: tuple[tuple[str, Span], ...]
    """The messages about arguments that Hydra refuses, with their places."""


def read_arguments(words: Iterable[WordText], place: Span) -> HydraArguments:
    """Read words as Hydra does."""
    overrides, flags = list[Override](), list[tuple[str, str]]()
    unread, refused = list[Unread](), list[tuple[str, Span]]()
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        span, text = span_of(word, place), text_of(word)
        before = _before_hole(word)
        if before.startswith("-"):
            name, equals, _ = before.partition("=")
            argument = (
                word if equals else remaining.pop(0) if name in (*CONFIG_NAME, *CONFIG_PATH) and remaining else ()
            )
            unknown = [piece.reason for piece in (*word, *argument) if isinstance(piece, Hole)]
            if unknown and name not in CONFIG_PATH:
                unread.append(Unread(f"the value of '{name}' is not known: {unknown[0]}", span))
            flags.append((name, _after_holes(argument).removeprefix(f"{name}=").strip("'\"")))
            continue
        match = _KEY.match(before)
        if match is None or (text is None and "=" not in before):
            if text is None:
                reasons = "; ".join(piece.reason for piece in word if isinstance(piece, Hole))
                unread.append(Unread(f"an argument whose key is not known: {reasons}", span))
            else:
                refused.append((f"'{text[:60]}' is not an override: key=value", span))
            continue
        sign, key, equals = match[1] or "", match[2], before[match.end() : match.end() + 1]
        if equals != "=" and not (sign == "~" and text is not None):
            refused.append((f"'{before[:60]}' is not an override: key=value", span))
            continue
        try:
            overrides.append(Override(sign, _setting(key, word, match.end() + 1, span)))
        except SweepError as error:
            refused.append((f"{key}: {error}", span))
        except NoValueError as error:
            overrides.append(Override(sign, Setting(key, None, span, span, unknown=f"its value is not read: {error}")))
    return HydraArguments(tuple(overrides), tuple(flags), tuple(unread), tuple(refused))


def span_of(word: WordText, place: Span) -> Span:
    """Where a word is written: its pieces of the script's own line, from the first to the last."""
    spans = [piece.span for piece in word]
    if not spans:
        return place
    first = spans[0]
    last = next(span for span in reversed(spans) if span.file == first.file)
    if (last.end_line, last.end_column) < (first.line, first.column) or last.end_line != first.line:
        return first
    return Span(first.file, first.line, first.column, last.end_line, last.end_column)


def _before_hole(word: WordText) -> str:
    text = ""
    for piece in word:
        if isinstance(piece, Hole):
            break
        text += piece.text
    return text


def _after_holes(word: WordText) -> str:
    """The text of a word behind what is not known, such as ``/config`` in ``$PWD/config``, without a slash there."""
    pieces = list(word)
    last = max((i for i, piece in enumerate(pieces) if isinstance(piece, Hole)), default=-1)
    text = "".join(piece.text for piece in pieces[last + 1 :] if isinstance(piece, TextPiece))
    return text.lstrip("/") if last >= 0 else text


def _setting(key: str, word: WordText, start: int, span: Span) -> Setting:
    """The setting of a word whose value begins at a character of its text."""
    pieces = list[TextPiece | Hole]()
    position = 0
    for piece in word:
        length = len(piece.text) if isinstance(piece, TextPiece) else 0
        if isinstance(piece, Hole):
            pieces.append(piece)
        elif position + length > start:
            cut = max(0, start - position)
            shifted = piece.start + cut if piece.written else piece.start
            pieces.append(replace(piece, text=piece.text[cut:], start=shifted))
        position += length
    holes = [piece for piece in pieces if isinstance(piece, Hole)]
    if holes:
        reason = "; ".join(dict.fromkeys(hole.reason for hole in holes))
        return Setting(key, None, span, holes[0].span, unknown=reason)
    value = override_value("".join(piece.text for piece in pieces if isinstance(piece, TextPiece)))
    only = pieces[0] if len(pieces) == 1 else None
    if isinstance(only, TextPiece):
        return Setting(key, value, span, only.span, only.text if only.written else None)
    return Setting(key, value, span, span)
