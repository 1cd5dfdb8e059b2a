r"""The syntax of shell scripts that start a training run, parsed without running anything.

The parser knows words with their quotes and expansions, assignments and arrays, lists, pipelines, ``if``, ``case``, and
groups. Loops and functions are kept as the names that they assign. So ::

    N=${N:-8}            an assignment of a word with one expansion: the parameter N, operator ":-", argument "8"
    python3 train.py \
        size=$N "$@"     a command of four words

``shell_values`` decides the values of the words. A script that bash would refuse raises ``ReadError``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hfdsl.interop.shell_nodes import (
    DECLARING,
    Assignment,
    Body,
    CaseCommand,
    Chain,
    Command,
    GroupCommand,
    If,
    Pipeline,
    Repeated,
    ShellParameter,
    Statement,
    Word,
)
from hfdsl.interop.shell_words import MAX_DEPTH, SUBSCRIPT, WordParser
from hfdsl.interop.text import SourceText

ARGUMENTS = ShellParameter(name="@", operator="", argument=None, all_items="@", quoted=True, start=0, end=0)
"""``"$@"``, over which a ``for`` without words goes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\n]*\])?(\+?)=")
_RESERVED = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"})


def parse(source: SourceText) -> Body:
    """The statements of a script.

    Raises:
        ReadError: HF970 for a script that is cut off, or that no shell would take.
    """
    parser = _Parser(source)
    try:
        body = parser.body(())
    except RecursionError:
        raise parser.error("it is nested too deep") from None
    if not parser.at_end():
        raise parser.error(f"'{parser.peek_text()}' closes nothing")
    return body


def words_of(source: SourceText) -> tuple[Word, ...]:
    """The words of one command line.

    Raises:
        ValueError: for a sign that ends words, such as ``<``.
    """
    parser = WordParser(source)
    words = list[Word]()
    while not parser.at_end():
        parser.blanks()
        if not parser.at_end():
            words.append(parser.word())
            if words[-1].start == words[-1].end:
                raise ValueError("a sign where a word belongs")
    return tuple(words)


class _Parser(WordParser):
    """A parser of statements, by recursive descent."""

    def body(self, closers: Sequence[str]) -> Body:
        """Statements up to one of some reserved words, which stays unread, or the end."""
        statements: list[Statement] = []
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} deep")
        while True:
            self._separators()
            if self.at_end() or self._closes(closers):
                break
            before = self._position
            statements.append(self._chain())
            if self._position == before:
                raise self.error(f"'{self.peek_text()}' is no command")
        self._depth -= 1
        return tuple(statements)

    def _closes(self, closers: Sequence[str]) -> bool:
        ahead = self._reserved()
        return ahead in closers if closers else ahead in _RESERVED

    def _chain(self) -> Statement:
        first, rest = self._pipeline(), list[tuple[str, Statement]]()
        while True:
            self.blanks()
            operator = self._text[self._position : self._position + 2]
            if operator not in ("&&", "||"):
                break
            self._position += 2
            self._separators()
            rest.append((operator, self._pipeline()))
        return Chain(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Statement:
        self.blanks()
        negated = False
        while self._word_ahead("!"):
            self._position += 1
            negated = not negated
            self.blanks()
        if self._word_ahead("time"):
            self._position += 4
        stages = [self._statement()]
        while True:
            self.blanks()
            if self._ahead("||") or not self._ahead("|"):
                break
            self._position += 2 if self._ahead("|&") else 1
            self._separators()
            stages.append(self._statement())
        statement: Statement = stages[0] if len(stages) == 1 else Pipeline(tuple(stages))
        return Chain(statement, (), negated=True) if negated else statement

    def _statement(self) -> Statement:
        self.blanks()
        start = self._position
        if self._ahead("(("):
            inside = self._arithmetic_command()
            if inside is not None:
                return inside
        if self._ahead("("):
            self._position += 1
            body = self.body((")",))
            self._expect(")")
            self._redirects()
            return GroupCommand(body, True, start)
        keyword = self._reserved()
        if keyword in ("if", "case", "for", "while", "until", "select", "function", "{", "[["):
            compound = getattr(self, {"{": "_group", "[[": "_test"}.get(keyword, f"_{keyword}"))
            statement: Statement = compound(start)
            self._redirects()
            return statement
        if (match := re.compile(r"[\w.:-]+[ \t]*\(\s*\)").match(self._text, start)) is not None:
            self._position = match.end()
            return self._function_body(start, match[0].partition("(")[0].strip())
        return self._command()

    def _if(self, start: int) -> If:
        branches: list[tuple[Body | None, Body]] = []
        closer = "if"
        while closer in ("if", "elif"):
            self._expect(closer)
            condition = self.body(("then",))
            self._expect("then")
            branches.append((condition, self.body(("elif", "else", "fi"))))
            closer = self._reserved()
        if closer == "else":
            self._expect("else")
            branches.append((None, self.body(("fi",))))
        self._expect("fi")
        return If(tuple(branches), start)

    def _case(self, start: int) -> CaseCommand:
        self._expect("case")
        self.blanks()
        subject = self.word()
        self._separators()
        self._expect("in")
        branches: list[tuple[tuple[Word, ...], Body]] = []
        self._separators()
        while not self.at_end() and self._reserved() != "esac":
            self.blanks()
            if self._ahead("("):
                self._position += 1
            patterns = []
            while True:
                self.blanks()
                patterns.append(self.word())
                self.blanks()
                if not self._ahead("|"):
                    break
                self._position += 1
            self._expect(")")
            inside = self.body((";;", ";&", ";;&", "esac"))
            branches.append((tuple(patterns), inside))
            if (ahead := self._reserved()) in (";;", ";&", ";;&"):
                self._position += len(ahead)
            self._separators()
        self._expect("esac")
        return CaseCommand(subject, tuple(branches), start)

    def _for(self, start: int) -> Repeated:
        self._position += len(self._reserved())
        self.blanks()
        name, items = "", list[Word]()
        is_open = self._ahead("((") or self._text.startswith("select", start)
        if self._ahead("(("):
            self._skip_arithmetic()
        else:
            match = _NAME.match(self._text, self._position)
            if match is None:
                raise self.error("'for' needs a name")
            name, self._position = match[0], match.end()
            self._separators()
            if self._word_ahead("in"):
                self._position += 2
                while self._word_follows():
                    items.append(self.word())
            else:
                items.append(Word((ARGUMENTS,), self._position, self._position))
        self._separators()
        return Repeated("loop", name, self._loop(), start, items=None if is_open else tuple(items))

    _select = _for

    def _while(self, start: int) -> Repeated:
        self._position += len(self._reserved())
        condition = self.body(("do",))
        is_until = self._text.startswith("until", start)
        return Repeated("loop", "", self._loop(), start, condition=condition, is_until=is_until)

    _until = _while

    def _loop(self) -> Body:
        self._expect("do")
        inside = self.body(("done",))
        self._expect("done")
        return inside

    def _function(self, start: int) -> Repeated:
        self._expect("function")
        self.blanks()
        name = self.word().plain or ""
        self.blanks()
        if match := re.compile(r"\(\s*\)").match(self._text, self._position):
            self._position = match.end()
        return self._function_body(start, name)

    def _function_body(self, start: int, name: str) -> Repeated:
        self._separators()
        return Repeated("function", name, (self._statement(),), start)

    def _group(self, start: int) -> GroupCommand:
        self._expect("{")
        inside = self.body(("}",))
        self._expect("}")
        return GroupCommand(inside, False, start)

    def _test(self, start: int) -> Command:
        end = re.compile(r"(?<=\s)\]\](?=[\s;&|)]|$)").search(self._text, start + 2)
        if end is None:
            raise self.error("'[[' is not closed")
        self._position = end.end()
        return Command((), (), start, end.end(), test=self._text[start + 2 : end.start()])

    def _arithmetic_command(self) -> Command | None:
        start = self._position
        end = self._matching_arithmetic(start)
        if end is None:
            return None
        self._position = end
        return Command((), (), start, end, arithmetic=self._text[start + 2 : end - 2])

    def _skip_arithmetic(self) -> None:
        end = self._matching_arithmetic(self._position)
        if end is None:
            raise self.error("'((' is not closed")
        self._position = end

    def _command(self) -> Command:
        start = self._position
        assignments, words, document = list[Assignment](), list[Word](), None
        while True:
            self.blanks()
            if redirect := self._redirect():
                document = document if redirect is True else redirect
                continue
            if not self._word_follows():
                break
            takes_names = bool(words) and words[0].plain in DECLARING
            match = _ASSIGNMENT.match(self._text, self._position) if not words or takes_names else None
            if match is not None:
                assignments.append(self._assignment(match))
            else:
                words.append(self.word())
        return Command(tuple(assignments), tuple(words), start, self._position, document=document)

    def _assignment(self, match: re.Match[str]) -> Assignment:
        """The assignment that begins with a name and an equals sign."""
        start = self._position
        self._position = match.end()
        append, subscript = bool(match[3]), match[2] or ""
        is_key = bool(SUBSCRIPT.fullmatch(subscript)) and not subscript[1:-1].isdigit()
        name = match[1] + (re.sub("[\"']", "", subscript) if is_key else "")
        indexed = bool(subscript) and not is_key
        if not self._ahead("("):
            value = self.word() if self._word_follows() else Word((), self._position, self._position)
            return Assignment(
                name=name,
                append=append,
                value=value,
                items=None,
                indexed=indexed,
                start=start,
                end=self._position,
            )
        self._position += 1
        items: list[Word] = []
        while True:
            self._separators(semicolons=False)
            if self._ahead(")") or self.at_end():
                break
            before = self._position
            items.append(self.word())
            if self._position == before:
                raise self.error(f"'{self.peek_text()}' is not an item of an array")
        self._expect(")")
        return Assignment(
            name=name,
            append=append,
            value=None,
            items=tuple(items),
            indexed=indexed,
            start=start,
            end=self._position,
        )
