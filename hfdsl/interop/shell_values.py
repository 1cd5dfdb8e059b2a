r"""The values of a script's words, found without running anything: abstract interpretation of a shell.

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from hfdsl.graph.spans import Span
from hfdsl.interop.launches import Launch, ShellScript, ShellText, inherits_environment, shell_texts, starts_nothing
from hfdsl.interop.shell_conditions import EXPANDED
from hfdsl.interop.shell_flow import (
    MAX_CALL_DEPTH,
    MAX_ROUNDS,
    ShellBreak,
    ShellExit,
    ShellFunction,
    ShellLog,
    ShellReturn,
)
from hfdsl.interop.shell_nodes import (
    DECLARING,
    Body,
    CaseCommand,
    Chain,
    Command,
    GroupCommand,
    If,
    Pipeline,
    Repeated,
    Statement,
    assigned,
)
from hfdsl.interop.shell_syntax import parse, words_of
from hfdsl.interop.shell_text import Hole, Items, ShellValue, WordText, composed, holes, same, text_of
from hfdsl.interop.shell_variables import Variables
from hfdsl.interop.text import ReadError, SourceText, Unread


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
    try:
        runner.run(parse(source), certain=True)
    except RecursionError:
        raise ReadError("no shell script: it is nested too deep", source.span(0, 1)) from None
    log = runner.log
    return ShellScript(source, log.distinct(), tuple(log.unread), tuple(sorted(runner.assumed)))


def read_words(source: SourceText) -> Items:
    """The words of a command line, without anything to expand them with."""
    runner = _Runner(source, {})
    return tuple(runner.text(word, source) for word in words_of(source))


@dataclass
class _Runner(Variables):
    """A shell that follows statements; ``returned`` and ``broken`` say that an open branch has ended early."""

    log: ShellLog = field(default_factory=ShellLog)
    functions: dict[str, ShellFunction] = field(default_factory=dict)
    depth: int = 0
    returned: bool = False
    broken: bool = False

    # -- statements

    def run(self, body: Body, *, certain: bool) -> None:
        """Follow statements; whether they are certain to run decides only what is said of the commands."""
        try:
            self._statements(body, certain=certain)
        except ShellExit:
            if not certain:
                raise

    def _statements(self, body: Body, *, certain: bool) -> None:
        for statement in body:
            self.statement(statement, certain=certain)

    def statement(self, statement: Statement, *, certain: bool) -> None:
        match statement:
            case Command():
                self._command(statement, certain=certain)
            case If(branches=branches):
                self._if(branches, statement.start, certain=certain)
            case CaseCommand():
                self._case(statement, certain=certain)
            case GroupCommand(body=body, subshell=True) | Pipeline(stages=body):
                with self._subshell():
                    self._statements(body, certain=certain)
            case GroupCommand(body=body):
                self._statements(body, certain=certain)
            case Repeated(kind="function", name=name, body=body):
                self.functions[name] = ShellFunction(body, self.source)
            case Repeated():
                if not self._rounds(statement, certain=certain):
                    self._repeated(statement)
            case Chain(first=first, rest=rest):
                self._chain(first, rest, certain=certain)

    @contextmanager
    def _subshell(self) -> Iterator[None]:
        """A process with the variables of this shell, whose end and assignments stay its own."""
        values = dict(self.values)
        with suppress(ShellExit):
            yield
        self.values = values

    def _command(self, command: Command, *, certain: bool) -> None:
        if command.test is not None or command.arithmetic is not None:
            return
        if not command.words or command.words[0].plain in DECLARING:
            self.declare(command)
            return
        words = self.expanded(command.words)
        name = text_of(words[0]) if words else ""
        span = self.source.span(command.start, command.end)
        if name is None:
            # Such as "${LAUNCHER[@]}" -m package: what is started is known, and how it is started is not.
            self.log.launches.append(Launch(tuple(words), span, certain))
            if all(text_of(word) != "-m" for word in words):
                self.log.unread.append(Unread(f"which command this is: {holes(words[0])}", span))
        elif name in ("exit", "return"):
            raise ShellReturn if name == "return" else ShellExit
        elif name in ("break", "continue"):
            raise ShellBreak(goes_on=name == "continue")
        elif name == "exec":
            if len(words) > 1:
                self._start(words[1:], span, self.document(command), certain=certain)
                raise ShellExit
        elif name == "shift":
            self.shift(words)
        elif not self._changes_variables(name, words, command, certain=certain) and name:
            self._run_command(words, command, span, certain=certain)

    def _run_command(self, words: Sequence[WordText], command: Command, span: Span, *, certain: bool) -> None:
        """Follow a function or start a program, with the assignments before it."""
        hidden = {assignment.name: self.values.get(assignment.name) for assignment in command.assignments}
        for assignment in command.assignments:
            self.assign(assignment)
        name = text_of(words[0])
        if name in self.functions:
            self._call(name, words, span, certain=certain)
        elif not starts_nothing(name or "", words):
            self._start(words, span, self.document(command), certain=certain, exported=hidden)
        self.restore(hidden)

    def _start(
        self,
        words: Sequence[WordText],
        span: Span,
        document: WordText | None,
        *,
        certain: bool,
        exported: Iterable[str] = (),
    ) -> None:
        """Start a program; follow the text of a shell such as ``bash -c TEXT`` if it is known."""
        texts, names = shell_texts(words, document, self.values), {*self.exported, *exported}
        inherits = inherits_environment(words)
        followed = [self._follow_shell(text, names, inherits=inherits, certain=certain) for text in texts]
        if not any(followed):
            self.log.launches.append(Launch(tuple(words), span, certain, self.texts_of_variables()))

    # -- functions and texts that a shell runs

    def _may_call(self) -> bool:
        return self.depth < MAX_CALL_DEPTH and self.log.count_call()

    def _call(self, name: str, words: Sequence[WordText], span: Span, *, certain: bool) -> None:
        """Follow a function, with its arguments and its local variables."""
        function = self.functions[name]
        names = set(assigned(function.body))
        if not self._may_call():
            self.log.unread.append(Unread(f"the function '{name}' is not followed", span))
            self.forget(names, f"the function '{name}' assigns it", span)
            return
        outer = self.source, self.arguments, self.hidden, self.returned
        hidden: dict[str, ShellValue | None] = {}
        self.source, self.arguments, self.hidden, self.returned = function.source, list(words[1:]), hidden, False
        self.depth += 1
        try:
            with suppress(ShellReturn):
                self._statements(function.body, certain=certain)
            if self.returned:
                self.forget(names, f"the function '{name}' may return before it assigns it", span)
        finally:
            self.depth -= 1
            self.restore(hidden)
            self.source, self.arguments, self.hidden, self.returned = outer

    def _follow_shell(self, shell_text: ShellText, exported: set[str], *, inherits: bool, certain: bool) -> bool:
        """Follow the text of a shell that a command starts; whether it can be."""
        text = composed((shell_text.text,))
        body = None if text is None else self._parsed(text)
        if text is None or body is None:
            return False
        values: dict[str, ShellValue] = {
            name: value
            if inherits and name in exported
            else (Hole(f"'{name}' is not exported to that shell", text.span(0, 1)),)
            for name, value in self.values.items()
        }
        functions = {name: function for name, function in self.functions.items() if inherits and name in exported}
        shell = replace(self, source=text, values=values, functions=functions, exported=exported, hidden=None)
        shell.arguments, shell.depth = list(shell_text.arguments), self.depth + 1
        with suppress(ShellExit):
            shell.run(body, certain=certain)
        return True

    def _parsed(self, text: SourceText) -> Body | None:
        """The statements of a text that a script makes; None for one that is not followed."""
        try:
            return parse(text) if self._may_call() else None
        except ReadError:
            return None

    def _evaluate(self, words: Sequence[WordText], *, certain: bool) -> bool:
        """Follow ``eval TEXT``; whether it can be."""
        text, launches, unread = composed(tuple(words)), len(self.log.launches), len(self.log.unread)
        body = None if text is None else self._parsed(text)
        if text is None or body is None:
            return False
        outer, self.source = self.source, text
        self.depth += 1
        try:
            self._statements(body, certain=certain)
        finally:
            self.source, self.depth = outer, self.depth - 1
        if all(text_of(word) is not None for word in words):
            return True
        return len(self.log.launches) > launches and len(self.log.unread) == unread

    def _changes_variables(self, name: str, words: Sequence[WordText], command: Command, *, certain: bool) -> bool:
        """Whether a command assigns variables in a way that is not followed, or just one that is."""
        names, span = [text_of(word) or "" for word in words[1:]], self.source.span(command.start, command.end)
        if name == "unset":
            self.values.update((unset, ()) for unset in names if unset)
        elif name in ("source", "."):
            file = f"'{names[0]}'" if any(names[:1]) else "a file whose name is not known"
            self.log.unread.append(Unread(f"{file} is read by the script, and not here", span))
        elif name == "getopts" and not self.arguments:
            return True  # it finds no option, and ends its loop
        elif name == "eval" and self._evaluate(words[1:], certain=certain):
            return True
        elif name == "read" and "-d" in names and (document := self.document(command)) is not None:
            self.values[names[-1]] = document
        elif name in ("eval", "read", "mapfile", "readarray", "getopts"):
            self.log.unread.append(Unread(f"'{name}' may assign any variable", span))
            self.forget(names, f"'{name}' assigns it", span)
        else:
            return False
        return True

    def _rounds(self, loop: Repeated, *, certain: bool) -> bool:
        """Follow a loop round by round; whether its words or its conditions are known."""
        values, arguments = dict(self.values), list(self.arguments)
        launches, unread = len(self.log.launches), len(self.log.unread)
        outer, self.broken = self.broken, False
        try:
            for number, has_round in enumerate(self._conditions(loop, certain=certain)):
                if not has_round or self.broken or number == MAX_ROUNDS or not self.log.count_call():
                    self.values, self.arguments = values, arguments
                    self.log.cut(launches, unread)
                    return False
                try:
                    self._statements(loop.body, certain=certain)
                except ShellBreak as end:
                    if not end.goes_on:
                        break
            return not self.broken
        finally:
            self.broken = outer

    def _conditions(self, loop: Repeated, *, certain: bool) -> Iterator[bool]:
        """True before each round of a loop; False if unknown whether there is one."""
        words = self.expanded(loop.items or ())
        texts = [text_of(word) for word in words]
        if loop.condition is None and (
            loop.items is None or any(text is None or set(text) & EXPANDED for text in texts)
        ):
            yield False
        for word in words:
            self.values[loop.name] = word
            yield True
        while loop.condition is not None:
            self.without_arguments = True
            try:
                self._statements(loop.condition, certain=certain)
                truth = self.truth(loop.condition)
            finally:
                self.without_arguments = False
            if truth is loop.is_until:
                return
            yield truth is not None

    def _repeated(self, loop: Repeated) -> None:
        span = self.source.span(loop.start, loop.start + 1)
        launches, unread = len(self.log.launches), len(self.log.unread)
        body = (*(loop.condition or ()), *loop.body)
        names, changed = {name for name in (*assigned(body), loop.name) if name}, set[str]()
        while True:
            names |= changed
            inside = replace(self, values=dict(self.values), arguments=list(self.arguments))
            inside.forget(names, "a loop assigns it", span)
            start = dict(inside.values)
            try:
                inside.run(body, certain=False)
            except ShellExit as end:
                inside.returned = inside.returned or isinstance(end, ShellReturn)
            self.returned = inside.returned
            changed = {name for name, value in inside.values.items() if not same(start.get(name), value)} - names
            if not changed:
                break
            # A function or an eval in the loop assigns more names: forget those also.
            self.log.cut(launches, unread)
        self.forget(names, "a loop assigns it", span)
        if names and len(self.log.launches) == launches:
            self.log.unread.append(Unread(f"a loop that assigns {', '.join(sorted(names)[:4])}", span))

    def _if(self, branches: Sequence[tuple[Body | None, Body]], start: int, *, certain: bool) -> None:
        bodies: list[Body] = []
        for condition, body in branches:
            self._statements(condition or (), certain=certain and condition is branches[0][0])
            truth = True if condition is None else self.truth(condition)
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
            truths = [self.matches(subject, pattern) for pattern in patterns]
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
            self._statements(bodies[0], certain=certain)
            return
        before, arguments, ends = self.values, list(self.arguments), list[ShellExit]()
        outcomes = list[dict[str, ShellValue]]()
        for body in bodies:
            self.values, self.arguments = dict(before), list(arguments)
            try:
                self._statements(body, certain=False)
            except ShellExit as end:
                self.returned = self.returned or isinstance(end, ShellReturn)
                self.broken = self.broken or isinstance(end, ShellBreak)
                ends.append(end)
                continue
            outcomes.append(self.values)
        if not outcomes:
            raise next((end for end in ends if type(end) is not ShellExit), ends[0])
        self.values = self.join(outcomes, cause)

    def _chain(self, first: Statement, rest: Sequence[tuple[str, Statement]], *, certain: bool) -> None:
        self.statement(first, certain=certain)
        truth = self.truth((first,))
        for operator, statement in rest:
            if truth is None:
                self._branches([(statement,), ()], f"'{operator}' before it", certain=False)
            elif truth == (operator == "&&"):
                self.statement(statement, certain=certain)
                truth = self.truth((statement,))
