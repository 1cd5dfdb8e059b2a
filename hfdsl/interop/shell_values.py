r"""What the words of a script are worth, found without running anything: abstract interpretation of a shell.

A variable has a text, whose pieces know where they were written, or is unknown. Where a condition cannot be decided,
both branches are followed and what they disagree on becomes unknown; a branch that ends the script does not count.
So ::

    tp=${TP:-}
    case $DEVICE in            DEVICE comes from a command: unknown
        gpu) tp=${tp:-2} ;;    here tp is "2", written in this line
        npu) tp=${tp:-4} ;;    here "4"
        *) exit 1 ;;           the script ends
    esac                       the branches disagree: tp is unknown, because of the 'case'

A variable that the script does not assign has a default, ``${N:-8}``, or comes from the environment. The former counts
as unset, which ``Script.assumed_unset`` says; the latter is unknown unless the caller gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from hfdsl.graph.spans import Span
from hfdsl.interop.arithmetic import integer
from hfdsl.interop.shell_expansion import Expander
from hfdsl.interop.shell_nodes import (
    DECLARING,
    Assignment,
    Body,
    CaseCommand,
    Chain,
    Command,
    GroupCommand,
    If,
    Opaque,
    Pipeline,
    Repeated,
    Statement,
    Word,
    assigned,
)
from hfdsl.interop.shell_syntax import parse, words_of
from hfdsl.interop.shell_tests import combined, test
from hfdsl.interop.shell_text import Hole, Items, ShellValue, TextPiece, WordText, holes, length, same, text_of, texts
from hfdsl.interop.text import SourceText, Unread

MAX_TEXT = 1 << 16
"""The longest text of a variable, and the most items of an array; a longer one is unknown."""

IGNORED = frozenset(
    [
        "[",
        "test",
        "set",
        ":",
        "true",
        "echo",
        "printf",
        "mkdir",
        "cd",
        "pwd",
        "rm",
        "ls",
        "cat",
        "sleep",
        "wait",
        "trap",
        "ulimit",
        "module",
        "date",
        "which",
        "nvidia-smi",
        "pip",
        "pip3",
        "wandb",
        "huggingface-cli",
        "hf",
        "ray",
        "curl",
        "wget",
        "git",
        "cp",
        "ln",
        "chmod",
        "kill",
        "pkill",
        "clear",
        "touch",
        "tee",
    ]
)
"""Commands that assign no variable and start no training."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that a script runs: its words, and where it stands. ``certain`` is false of one in an open branch.

    ``variables`` are those that the script gives a text before it, as far as it is known.
    """

    words: Items
    span: Span
    certain: bool
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShellScript:
    """What a script does: the commands that may start a training, and what was left out."""

    launches: tuple[Launch, ...]
    unread: tuple[Unread, ...]
    assumed_unset: tuple[str, ...]


def read_script(
    source: SourceText, arguments: SourceText | None = None, environment: Mapping[str, str] | None = None
) -> ShellScript:
    """Follow a script; ``arguments`` are its command line's, ``environment`` the variables that it is started with.

    Raises:
        ReadError: HF970 for a script that no shell would take.
    """
    words = words_of(arguments) if arguments is not None else ()
    runner = _Runner(source, environment or {})
    runner.arguments = [runner.text(word, arguments or source) for word in words]
    runner.run(parse(source), certain=True)
    return ShellScript(tuple(runner.launches), tuple(runner.unread), tuple(sorted(runner.assumed)))


def read_words(source: SourceText) -> Items:
    """The words of a command line, without anything to expand them with."""
    runner = _Runner(source, {})
    return tuple(runner.text(word, source) for word in words_of(source))


def _with_one_hole(value: ShellValue) -> ShellValue:
    """The same, where a text with several unknown parts has one: otherwise ``A=$A$A`` doubles them."""

    def shortened(text: WordText) -> WordText:
        unknown = [piece for piece in text if isinstance(piece, Hole)]
        return (unknown[0],) if len(unknown) > 4 else text

    return [shortened(text) for text in value] if isinstance(value, list) else shortened(value)


def _is_ignored(name: str, words: Sequence[WordText]) -> bool:
    """Whether a command starts no training; ``ray job submit -- COMMAND`` may."""
    return name in IGNORED and not (name == "ray" and any(text_of(word) == "--" for word in words))


def _only_text(value: ShellValue) -> str | None:
    """The text of a variable that is no array."""
    return None if isinstance(value, list) else text_of(value)


class _Exit(Exception):  # noqa: N818  # control flow, not an error
    """The script, or this branch of it, ends."""


@dataclass
class _Runner(Expander):
    launches: list[Launch] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    functions: dict[str, Body] = field(default_factory=dict)

    # -- statements

    def run(self, body: Body, *, certain: bool) -> None:
        """Follow statements; whether they are certain to run decides only what is said of the commands."""
        try:
            for statement in body:
                self.statement(statement, certain=certain)
        except _Exit:
            if not certain:
                raise

    def statement(self, statement: Statement, *, certain: bool) -> None:
        match statement:
            case Command():
                self._command(statement, certain=certain)
            case If(branches=branches):
                self._if(branches, statement.start, certain=certain)
            case CaseCommand():
                self._case(statement, certain=certain)
            case GroupCommand(body=body, subshell=subshell):
                kept = dict(self.values)
                for inside in body:
                    self.statement(inside, certain=certain)
                if subshell:
                    self.values = kept
            case Repeated(kind="function", name=name, body=body):
                self.functions[name] = body
            case Repeated(body=body):
                self._repeated(statement)
            case Chain(first=first, rest=rest):
                self._chain(first, rest, certain=certain)
            case Pipeline(stages=stages):
                kept = dict(self.values)
                for stage in stages:
                    self.statement(stage, certain=certain)
                self.values = kept

    def _command(self, command: Command, *, certain: bool) -> None:
        if command.test is not None or command.arithmetic is not None:
            return
        if not command.words or command.words[0].plain in DECLARING:
            for assignment in command.assignments:
                self._assign(assignment)
            return
        words = self.expanded(command.words)
        name = text_of(words[0]) if words else ""
        span = self.source.span(command.start, command.end)
        if name is None:
            # Such as "${LAUNCHER[@]}" -m package: what is started is known, and how it is started is not.
            self.launches.append(Launch(tuple(words), span, certain))
            if all(text_of(word) != "-m" for word in words):
                self.unread.append(Unread(f"which command this is: {holes(words[0])}", span))
        elif name in ("exit", "return", "exec"):
            if name == "exec" and len(words) > 1:
                self.launches.append(Launch(tuple(words[1:]), span, certain))
            raise _Exit
        elif name == "shift":
            self._shift(words)
        elif not self._changes_variables(name, words, span) and name and not _is_ignored(name, words):
            variables = dict(self.values)
            for assignment in command.assignments:
                self._assign(assignment)
            known = {name: text for name, value in self.values.items() if (text := _only_text(value)) is not None}
            self.values = variables
            self.launches.append(Launch(tuple(words), span, certain, known))

    def _changes_variables(self, name: str, words: Sequence[WordText], span: Span) -> bool:
        """Whether a command assigns variables in a way that is not followed, or just one that is."""
        names = [text_of(word) or "" for word in words[1:]]
        if name == "unset":
            self.values.update((unset, ()) for unset in names)
        elif name in ("source", "."):
            self.unread.append(Unread(f"'{names[0] if names else 'a file'}' is read by the script, and not here", span))
        elif name in ("eval", "read", "mapfile", "readarray", "getopts"):
            self.unread.append(Unread(f"'{name}' may assign any variable", span))
            self._forget(names, f"'{name}' assigns it", span)
        elif name in self.functions:
            self.unread.append(Unread(f"the function '{name}' is not followed", span))
            self._forget(assigned(self.functions[name]), f"the function '{name}' assigns it", span)
        else:
            return False
        return True

    def _shift(self, words: Sequence[WordText]) -> None:
        count = text_of(words[1]) if len(words) > 1 else "1"
        del self.arguments[: int(count) if count and count.isdigit() else 0]

    def _assign(self, assignment: Assignment) -> None:
        name, old = assignment.name, self.values.get(assignment.name)
        span = self.source.span(assignment.start, assignment.end)
        value: ShellValue
        if assignment.indexed:
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

    def _forget(self, names: Iterable[str], reason: str, span: Span) -> None:
        self.values.update((name, (Hole(reason, span),)) for name in names if name)

    def _repeated(self, loop: Repeated) -> None:
        span = self.source.span(loop.start, loop.start + 1)
        before = len(self.launches)
        inside = _Runner(self.source, self.environment, dict(self.values), list(self.arguments))
        names = set(assigned(loop.body))
        inside._forget(names, "a loop assigns it", span)
        with suppress(_Exit):
            inside.run(loop.body, certain=False)
        self.launches += [Launch(launch.words, launch.span, False) for launch in inside.launches]
        self.unread += inside.unread
        self.assumed |= inside.assumed
        self._forget(names, "a loop assigns it", span)
        if names and len(self.launches) == before:
            self.unread.append(Unread(f"a loop that assigns {', '.join(sorted(names)[:4])}", span))

    def _if(self, branches: Sequence[tuple[Body | None, Body]], start: int, *, certain: bool) -> None:
        bodies: list[Body] = []
        for condition, body in branches:
            truth = True if condition is None else self._truth(condition)
            if truth is not False:
                bodies.append(body)
            if truth:
                break
        else:
            bodies.append(())
        self._branches(bodies, f"the 'if' in line {self.source.span(start, start).line}", certain=certain)

    def _case(self, case: CaseCommand, *, certain: bool) -> None:
        subject = text_of(self.text(case.subject, self.source))
        bodies: list[Body] = []
        for patterns, body in case.branches:
            truths = [self._matches(subject, pattern) for pattern in patterns]
            if any(truth is not False for truth in truths):
                bodies.append(body)
            if True in truths:
                break
        else:
            bodies.append(())
        self._branches(bodies, f"the 'case' in line {self.source.span(case.start, case.start).line}", certain=certain)

    def _branches(self, bodies: Sequence[Body], cause: str, *, certain: bool) -> None:
        """Follow the branches that may run; what they disagree on is unknown afterwards."""
        if len(bodies) == 1:
            for statement in bodies[0]:
                self.statement(statement, certain=certain)
            return
        before, arguments, outcomes = self.values, list(self.arguments), list[dict[str, ShellValue]]()
        for body in bodies:
            self.values, self.arguments = dict(before), list(arguments)
            try:
                for statement in body:
                    self.statement(statement, certain=False)
            except _Exit:
                continue
            outcomes.append(self.values)
        if not outcomes:
            raise _Exit
        self.values = self._join(outcomes, cause)

    def _join(self, outcomes: Sequence[dict[str, ShellValue]], cause: str) -> dict[str, ShellValue]:
        joined: dict[str, ShellValue] = {}
        for name in dict.fromkeys(name for values in outcomes for name in values):
            values = [values.get(name) for values in outcomes]
            first = values[0]
            if first is not None and all(same(value, first) for value in values):
                joined[name] = first
            else:
                known = next(value for value in values if value is not None)
                place = next((p.span for text in texts(known) for p in text), self.source.span(0, 0))
                joined[name] = (Hole(f"'{name}' depends on {cause}", place),)
        return joined

    def _chain(self, first: Statement, rest: Sequence[tuple[str, Statement]], *, certain: bool) -> None:
        self.statement(first, certain=certain)
        truth = self._truth((first,))
        for operator, statement in rest:
            if truth is None:
                self._branches([(statement,), ()], f"'{operator}' before it", certain=False)
            elif truth == (operator == "&&"):
                self.statement(statement, certain=certain)
                truth = self._truth((statement,))

    # -- conditions

    def _truth(self, condition: Body) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        if len(condition) != 1:
            return None
        match condition[0]:
            case Chain(first=first, rest=(), negated=True):
                truth = self._truth((first,))
                return None if truth is None else not truth
            case Chain(first=first, rest=rest):
                truth = self._truth((first,))
                for operator, statement in rest:
                    truth = combined(operator, truth, self._truth((statement,)))
                return truth
            case GroupCommand(body=body):
                return self._truth(body)
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
        if words[0] in ("true", ":", "echo", "export", "set", "cd", "mkdir"):
            return True if words[0] in ("true", ":", "echo") else None
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
            glob = len(texts) == 3 and texts[1] in ("==", "=", "!=") and set(texts[2] or "") & set("*?[")
            one = None if glob else test(texts)
            truth = one if i == 0 else combined(tokens[i - 1].strip(), truth, one)
        return truth

    def _matches(self, subject: str | None, pattern: Word) -> bool | None:
        text = self.text(pattern, self.source)
        written = text_of(text)
        if written is None:
            return None
        if written == "*":
            return True
        if subject is None:
            return None
        if set(written) & set("*?["):
            return (
                None
                if any(isinstance(piece, TextPiece) and piece.quoted for piece in text)
                else fnmatchcase(subject, written)
            )
        return subject == written
