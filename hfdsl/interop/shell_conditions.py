"""The conditions of a shell script: whether they hold, where that is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hfdsl.interop.arithmetic import integer
from hfdsl.interop.shell_expansion import Expander
from hfdsl.interop.shell_nodes import Body, Chain, Command, GroupCommand, Opaque, Word
from hfdsl.interop.shell_syntax import words_of
from hfdsl.interop.shell_tests import combined, test
from hfdsl.interop.shell_text import TextPiece, WordText, text_of
from hfdsl.interop.text import SourceText

SUCCEEDING = frozenset([".", ":", "cd", "echo", "export", "mkdir", "pip", "printf", "pushd", "set", "sleep", "source",
                        "true", "ulimit"])  # fmt: skip
"""Commands that are read as if they succeed: a script that prepares a training expects it of them."""

GLOB = frozenset("*?[")
"""Signs of a pattern."""

EXPANDED = GLOB | {"{", "~"}
"""Signs in a word that bash may expand to other words."""


class Conditions(Expander):
    """An expander that decides conditions with the variables that it knows."""

    def truth(self, condition: Body) -> bool | None:
        """Whether a condition holds; None if unknown."""
        if len(condition) != 1:
            return None
        match condition[0]:
            case Chain(first=first, rest=(), negated=True):
                truth = self.truth((first,))
                return None if truth is None else not truth
            case Chain(first=first, rest=rest):
                truth = self.truth((first,))
                for operator, statement in rest:
                    truth = combined(operator, truth, self.truth((statement,)))
                return truth
            case GroupCommand(body=body):
                return self.truth(body)
            case Command(test=str(inside)):
                return self._double_bracket(inside)
            case Command(arithmetic=str(expression)):
                number = integer(expression, self.number)
                return None if number is None else number != 0
            case Command(words=(), assignments=assignments):
                parts = [part for assignment in assignments for part in getattr(assignment.value, "parts", ())]
                return None if any(isinstance(part, Opaque) for part in parts) else True
            case Command(words=words):
                return self._tested([text_of(text) for text in self.expanded(words)])
        return None

    def _tested(self, words: Sequence[str | None]) -> bool | None:
        if words[0] == "getopts":
            return None if self.arguments else False
        if words[0] in SUCCEEDING:
            return True
        if words[0] == "false":
            return False
        if words[0] == "[" and words[-1] == "]":
            return test(words[1:-1])
        return test(words[1:]) if words[0] == "test" else None

    def _double_bracket(self, inside: str) -> bool | None:
        if any(sign in inside for sign in ("(", "=~")):
            return None
        tokens = re.split(r"(\s(?:&&|\|\|)\s)", inside)
        truth: bool | None = None
        for i in range(0, len(tokens), 2):
            source = SourceText(self.source.file, tokens[i])
            try:
                words = [self.text(word, source) for word in words_of(source)]
            except (ValueError, IndexError):
                return None
            texts = [text_of(text) for text in words]
            if len(texts) == 3 and texts[1] in ("==", "=", "!=") and set(texts[2] or "") & GLOB:
                result = None if texts[0] is None else _glob(texts[0], words[2])
                result = not result if result is not None and texts[1] == "!=" else result
            else:
                result = test(texts)
            truth = result if i == 0 else combined(tokens[i - 1].strip(), truth, result)
        return truth

    def matches(self, subject: str | None, pattern: Word) -> bool | None:
        """Whether a subject matches a pattern of ``case``."""
        text = self.text(pattern, self.source)
        written = text_of(text)
        if written is None:
            return None
        if written == "*":
            return True
        if subject is None:
            return None
        return _glob(subject, text) if set(written) & GLOB else subject == written


def _glob(subject: str, pattern: WordText) -> bool | None:
    """Whether a text matches a pattern; None if a quoted sign of a pattern stands for itself."""
    text = text_of(pattern)
    if text is None or "[^" in text:
        return None
    if any(isinstance(piece, TextPiece) and piece.quoted and set(piece.text) & GLOB for piece in pattern):
        return None
    return fnmatchcase(subject, text)
