"""The syntax tree of a shell script: what a script says, before anything is known of its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    """Text as written; ``quoted`` text is one word whatever blanks are in it, and no pattern."""

    text: str
    quoted: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShellParameter:
    """``$name``, ``${name}``, ``${name[@]}`` or ``${name:-word}``; ``operator`` is "other" for one that is not known.

    ``all_items`` is ``@`` or ``*`` where all items of an array are meant.
    """

    name: str
    operator: str
    argument: Word | None
    all_items: str
    quoted: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """An expansion whose value only a shell knows: ``$(command)``, backquotes, ``<(command)``."""

    text: str
    quoted: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``$((expression))``."""

    expression: str
    quoted: bool
    start: int
    end: int


WordPart: TypeAlias = Literal | ShellParameter | Opaque | Arithmetic


@dataclass(frozen=True, slots=True)
class Word:
    """Parts without a blank between them."""

    parts: tuple[WordPart, ...]
    start: int
    end: int

    @property
    def plain(self) -> str | None:
        """The text of an unquoted word without expansions."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Literal) and not self.parts[0].quoted:
            return self.parts[0].text
        return None


@dataclass(slots=True)
class HereDocument:
    """The text between ``<< END`` and ``END``; ``word`` is None until the parser has come to it."""

    end: str
    strips_tabs: bool
    is_quoted: bool
    word: Word | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name=value``, ``name+=value`` or ``name=(items)``; ``items`` is None for a plain value."""

    name: str
    append: bool
    value: Word | None
    items: tuple[Word, ...] | None
    indexed: bool
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Command:
    """Assignments and words; ``test`` is the inside of ``[[ ]]``, ``arithmetic`` that of ``(( ))``.

    ``document`` is what it reads from a here-document or a here-string.
    """

    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    start: int
    end: int
    test: str | None = None
    arithmetic: str | None = None
    document: HereDocument | None = None


@dataclass(frozen=True, slots=True)
class If:
    """Branches in order; the condition of ``else`` is None."""

    branches: tuple[tuple[Body | None, Body], ...]
    start: int


@dataclass(frozen=True, slots=True)
class CaseCommand:
    """A word and, for each branch, its patterns."""

    subject: Word
    branches: tuple[tuple[tuple[Word, ...], Body], ...]
    start: int


@dataclass(frozen=True, slots=True)
class GroupCommand:
    """``{ ...; }`` or, in a process of its own, ``( ... )``."""

    body: Body
    subshell: bool
    start: int


@dataclass(frozen=True, slots=True)
class Repeated:
    """A loop, or a function's definition.

    ``items`` are the words of ``for NAME in WORDS``, ``condition`` is that of ``while`` and ``until``; None for others.
    """

    kind: str
    name: str
    body: Body
    start: int
    items: tuple[Word, ...] | None = None
    condition: Body | None = None
    is_until: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements joined by ``&&`` and ``||``."""

    first: Statement
    rest: tuple[tuple[str, Statement], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Statements joined by ``|``; each runs in a process of its own."""

    stages: tuple[Statement, ...]


Statement: TypeAlias = Command | If | CaseCommand | GroupCommand | Repeated | Chain | Pipeline
Body: TypeAlias = tuple[Statement, ...]

DECLARING = ("export", "local", "declare", "typeset", "readonly")
"""Commands whose arguments may be assignments."""


def assigned(body: Body) -> Iterator[str]:
    """The names that statements may assign, wherever they stand."""
    for statement in body:
        if isinstance(statement, Command):
            yield from (assignment.name for assignment in statement.assignments)
            words = [word.plain or "" for word in statement.words]
            if words and words[0] in ("read", "unset", "mapfile", *DECLARING):
                yield from (word.partition("=")[0] for word in words[1:] if not word.startswith("-"))
        else:
            if isinstance(statement, Repeated) and statement.kind == "loop" and statement.name:
                yield statement.name
            yield from assigned(_inside(statement))


def _inside(statement: Statement) -> Body:
    """The parts of a compound statement."""
    match statement:
        case If(branches=branches):
            return tuple(part for condition, inside in branches for part in ((condition or ()) + inside))
        case CaseCommand(branches=cases):
            return tuple(part for _, inside in cases for part in inside)
        case Repeated(condition=condition, body=body):
            return (*(condition or ()), *body)
        case GroupCommand(body=body):
            return body
        case Chain(first=first, rest=rest):
            return (first, *(part for _, part in rest))
        case Pipeline(stages=stages):
            return stages
        case _:
            return ()
