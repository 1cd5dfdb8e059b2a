"""The words of shell scripts: quotes, expansions, and what separates words from each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from hfdsl.interop.shell_nodes import Arithmetic, HereDocument, Literal, Opaque, ShellParameter, Word, WordPart
from hfdsl.interop.text import ReadError, SourceText

MAX_DEPTH = 60
"""How deep groups and expansions may nest."""

SUBSCRIPT = re.compile(r"""\[(["']?)[\w.-]+\1\]""")
"""A subscript without expansions."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = "@*#?-$!0123456789"
BREAKS = " \t\n;&|()<>"
"""The characters that end a word."""

_REDIRECT = re.compile(r"\d*(?:&>>|&>|>>|>&|>\||<<<|<&|<>|<<-?|>|<)")


class WordParser:
    """A parser of words; ``_position`` is where it stands."""

    def __init__(self, source: SourceText) -> None:
        self._source, self._text, self._position = source, source.text, 0
        self._depth = 0
        self._documents: list[HereDocument] = []  # those that begin after this line

    # -- words

    def word(self) -> Word:
        """The word here; without parts where none begins."""
        start, parts = self._position, list[WordPart]()
        while not self.at_end() and self._text[self._position] not in BREAKS:
            if self._text.startswith("\\\n", self._position):
                self._position += 2
                continue
            parts += self._part()
        if self._ahead("<(") or self._ahead(">("):
            parts.append(self._opaque(self._position, 2, False))
        return Word(_joined(parts), start, self._position)

    def _part(self) -> list[WordPart]:
        start, character = self._position, self._text[self._position]
        if character == "'":
            end = self._text.find("'", start + 1)
            if end < 0:
                raise self.error("a quote that is not closed")
            self._position = end + 1
            return [Literal(self._text[start + 1 : end], True, start + 1, end)]
        if character == '"':
            return self._double_quoted()
        if character == "\\":
            self._position = min(start + 2, len(self._text))
            return [Literal(self._text[start + 1 : start + 2], True, start, self._position)]
        if character == "$":
            return [self._expansion(quoted=False)]
        if character == "`":
            return [self._backquoted(quoted=False)]
        end = start + 1
        while end < len(self._text) and self._text[end] not in BREAKS and self._text[end] not in "'\"\\$`":
            end += 1
        self._position = end
        return [Literal(self._text[start:end], False, start, end)]

    def _double_quoted(self) -> list[WordPart]:
        opening = self._position
        self._position += 1
        parts = [Literal("", True, self._position, self._position), *self._inside_quotes('"', len(self._text))]
        if self.at_end():
            self._position = opening
            raise self.error("a quote that is not closed")
        self._position += 1
        return parts

    def _inside_quotes(self, quote: str, stop: int) -> list[WordPart]:
        """The parts up to a quote or a place, with their expansions."""
        parts, escaped = list[WordPart](), f"$`\\{quote}"
        while self._position < stop and not (quote and self._ahead(quote)):
            start, character = self._position, self._text[self._position]
            if character == "$":
                parts.append(self._expansion(quoted=True))
            elif character == "`":
                parts.append(self._backquoted(quoted=True))
            elif character == "\\" and self._text[start + 1 : start + 2] in tuple(escaped):
                self._position += 2
                parts.append(Literal(self._text[start + 1], True, start, start + 2))
            elif self._text.startswith("\\\n", start):
                self._position += 2
            else:
                end = start + 1
                while end < stop and self._text[end] not in escaped:
                    end += 1
                self._position = end
                parts.append(Literal(self._text[start:end], True, start, end))
        return parts

    def _backquoted(self, *, quoted: bool) -> Opaque:
        start = self._position
        end = self._text.find("`", start + 1)
        if end < 0:
            raise self.error("a backquote that is not closed")
        self._position = end + 1
        return Opaque(self._text[start : end + 1], quoted, start, end + 1)

    def _expansion(self, *, quoted: bool) -> WordPart:
        start = self._position
        if self._ahead("$(("):
            end = self._matching_arithmetic(start + 1)
            if end is not None:
                self._position = end
                return Arithmetic(self._text[start + 3 : end - 2], quoted, start, end)
        if self._ahead("$("):
            return self._opaque(start, 2, quoted)
        if self._ahead("${"):
            return self._braced(quoted=quoted)
        self._position += 1
        match = _NAME.match(self._text, self._position)
        name = match[0] if match else self._text[self._position : self._position + 1]
        if match is None and (not name or name not in _SPECIAL):
            if name == "'" and not quoted:  # $'...' with escapes
                part = self._part()[0]
                return Opaque(self._text[start : part.end + 1], quoted, start, self._position)
            return Literal("$", quoted, start, start + 1)
        self._position += len(name)
        return ShellParameter(
            name=name,
            operator="",
            argument=None,
            all_items=name if name in "@*" else "",
            quoted=quoted,
            start=start,
            end=self._position,
        )

    def _opaque(self, start: int, width: int, quoted: bool) -> Opaque:
        """``$(...)``: its end is found, with quotes and groups inside."""
        self._position, depth = start + width, 1
        while depth:
            if self.at_end():
                self._position = start
                raise self.error("'$(' is not closed")
            character = self._text[self._position]
            if character in "'\"":
                self._part()
                continue
            if character == "\\":
                self._position += 1
            depth += {"(": 1, ")": -1}.get(character, 0)
            self._position += 1
        return Opaque(self._text[start : self._position], quoted, start, self._position)

    def _braced(self, *, quoted: bool) -> ShellParameter:
        start = self._position
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} deep")
        match = re.compile(r"\$\{([!#]?)([A-Za-z_]\w*|[@*?$!0-9-]+|#)(\[[^\]]*\])?").match(self._text, start)
        if match is None:
            self._depth -= 1
            return self._unknown_brace(start, quoted)
        self._position = match.end()
        all_items = match[3][1] if match[3] in ("[@]", "[*]") else match[2] if match[2] in "@*" else ""
        operator_match = re.compile(r":?[-=?+]").match(self._text, self._position)
        operator, argument = "", None
        if operator_match is not None:
            operator, self._position = operator_match[0], operator_match.end()
            argument = self._argument(quoted)
        if not self._ahead("}"):
            self._depth -= 1
            return self._unknown_brace(start, quoted, match[2])
        self._position += 1
        self._depth -= 1
        subscript = "" if all_items else (match[3] or "")
        if match[1] or (subscript and not SUBSCRIPT.fullmatch(subscript)):
            operator = "other"
        return ShellParameter(
            name=match[2] + subscript.replace("'", "").replace('"', ""),
            operator=operator,
            argument=argument,
            all_items=all_items,
            quoted=quoted,
            start=start,
            end=self._position,
        )

    def _unknown_brace(self, start: int, quoted: bool, name: str = "") -> ShellParameter:
        """An expansion of a kind that is not known, such as ``${name//a/b}``: its end is found."""
        self._position, depth = start + 2, 1
        while depth:
            if self.at_end():
                self._position = start
                raise self.error("'${' is not closed")
            character = self._text[self._position]
            if character == "\\":
                self._position += 1
            depth += {"{": 1, "}": -1}.get(character, 0)
            self._position += 1
        return ShellParameter(
            name=name,
            operator="other",
            argument=None,
            all_items="",
            quoted=quoted,
            start=start,
            end=self._position,
        )

    def _argument(self, quoted: bool) -> Word:
        """The word that follows ``:-``, up to the closing brace."""
        start, parts = self._position, list[WordPart]()
        while not self.at_end() and not self._ahead("}"):
            character = self._text[self._position]
            if character == "$":
                parts.append(self._expansion(quoted=quoted))
            elif character == '"':
                parts += self._double_quoted()
            elif character in "'\\" and not quoted:
                parts += self._part()
            elif character == "`":
                parts.append(self._backquoted(quoted=quoted))
            else:
                begin, end = self._position, self._position + 1
                while end < len(self._text) and self._text[end] not in "}$\"'\\`":
                    end += 1
                self._position = end
                parts.append(Literal(self._text[begin:end], quoted, begin, end))
        return Word(_joined(parts), start, self._position)

    def _matching_arithmetic(self, start: int) -> int | None:
        """Where ``((...))`` at a place ends; None for two groups, or what is not closed."""
        depth = 0
        for i in range(start, min(len(self._text), start + 10_000)):
            depth += {"(": 1, ")": -1}.get(self._text[i], 0)
            if depth == 0:
                return i + 1 if self._text[i - 1] == ")" else None
        return None

    # -- blanks, operators and reserved words

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self._position >= len(self._text)

    def blanks(self) -> None:
        """Stand behind blanks, continued lines and a comment."""
        while not self.at_end():
            if self._text[self._position] in " \t":
                self._position += 1
            elif self._text.startswith("\\\n", self._position):
                self._position += 2
            elif self._text[self._position] == "#" and self._begins_word():
                end = self._text.find("\n", self._position)
                self._position = len(self._text) if end < 0 else end
            else:
                return

    def _begins_word(self) -> bool:
        return self._position == 0 or self._text[self._position - 1] in BREAKS

    def _separators(self, *, semicolons: bool = True) -> None:
        """Stand at the next statement."""
        while True:
            self.blanks()
            if self.at_end():
                return
            character = self._text[self._position]
            if character == "\n":
                self._position += 1
                self._skip_documents()
            elif (semicolons and character == ";" and not self._ahead(";;") and not self._ahead(";&")) or (
                semicolons and character == "&" and not self._ahead("&&")
            ):
                self._position += 1
            else:
                return

    def _word_follows(self) -> bool:
        self.blanks()
        if self.at_end():
            return False
        return self._text[self._position] not in BREAKS or self._ahead("<(") or self._ahead(">(")

    def _redirects(self) -> None:
        self.blanks()
        while self._redirect():
            self.blanks()

    def _redirect(self) -> HereDocument | bool:
        """Skip ``2>&1``, ``> file`` and ``<< END``; whether there was one, or the document that it begins."""
        match = _REDIRECT.match(self._text, self._position)
        if match is None or self._ahead("<(") or self._ahead(">("):
            return False
        self._position = match.end()
        self.blanks()
        target = self.word()
        operator = match[0].lstrip("0123456789")
        if operator == "<<<":
            return HereDocument("", strips_tabs=False, is_quoted=False, word=target)
        if operator not in ("<<", "<<-"):
            return True
        literals = [part for part in target.parts if isinstance(part, Literal)]
        is_quoted = any(part.quoted for part in literals)
        end = "".join(part.text for part in literals)
        self._documents.append(HereDocument(end, strips_tabs=operator == "<<-", is_quoted=is_quoted))
        return self._documents[-1]

    def _skip_documents(self) -> None:
        """Stand behind the here-documents that begin on the line before."""
        for document in self._documents:
            start = end = self._position
            while not self.at_end():
                stop = self._text.find("\n", self._position)
                stop = len(self._text) if stop < 0 else stop
                line, end = self._text[self._position : stop], self._position
                self._position = min(stop + 1, len(self._text))
                if (line.lstrip("\t") if document.strips_tabs else line) == document.end:
                    break
            document.word = self._document_word(document, start, end)
        self._documents.clear()

    def _document_word(self, document: HereDocument, start: int, end: int) -> Word | None:
        """The text of a here-document as a word; None for one with expansions that no shell would take."""
        if document.is_quoted:
            return Word((Literal(self._text[start:end], True, start, end),), start, end)
        position, depth, word = self._position, self._depth, None
        self._position = start
        with suppress(ReadError):
            word = Word(_joined(self._inside_quotes("", end)), start, end)
        self._position, self._depth = position, depth
        return word

    def _ahead(self, text: str) -> bool:
        return self._text.startswith(text, self._position)

    def _word_ahead(self, word: str) -> bool:
        end = self._position + len(word)
        return self._ahead(word) and (end >= len(self._text) or self._text[end] in BREAKS)

    def _reserved(self) -> str:
        """The reserved word or operator here; any other word too."""
        self.blanks()
        for operator in (";;&", ";;", ";&", ")"):
            if self._ahead(operator):
                return operator
        match = re.compile(r"[^\s;&|()<>]+").match(self._text, self._position)
        return match[0] if match else ""

    def _expect(self, text: str) -> None:
        self._separators(semicolons=text == "in")
        if not (self._ahead(text) if text == ")" else self._word_ahead(text)):
            raise self.error(f"expected '{text}' here, not '{self.peek_text()}'")
        self._position += len(text)

    def peek_text(self) -> str:
        """The text at this place, for a message."""
        match = re.compile(r"[^\s;&|()<>]+|\S").match(self._text, self._position)
        return match[0][:40] if match else "the end"

    def error(self, message: str) -> ReadError:
        """An error at this place."""
        end = min(self._position + 1, len(self._text))
        return ReadError(f"no shell script: {message}", self._source.span(min(self._position, len(self._text)), end))


def _joined(parts: Sequence[WordPart]) -> tuple[WordPart, ...]:
    """Parts with neighboring literals of one kind as one, where their text is one stretch of the source."""
    joined: list[WordPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if (
            isinstance(part, Literal)
            and isinstance(last, Literal)
            and last.quoted == part.quoted
            and last.end == part.start
            and len(last.text) == last.end - last.start
            and len(part.text) == part.end - part.start
        ):
            joined[-1] = Literal(last.text + part.text, part.quoted, last.start, part.end)
        else:
            joined.append(part)
    return tuple(joined)
