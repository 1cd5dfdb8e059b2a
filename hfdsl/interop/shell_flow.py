"""The flow of a shell: how it ends early, and what it has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from hfdsl.interop.launches import Launch
from hfdsl.interop.shell_nodes import Body
from hfdsl.interop.text import SourceText, Unread

MAX_CALLS = 400
"""How many calls of functions, texts of shells and rounds of loops are followed in a script."""

MAX_CALL_DEPTH = 20
"""How deep functions and texts of shells may nest."""

MAX_ROUNDS = 64
"""How many rounds of one loop are followed."""


class ShellExit(Exception):  # noqa: N818  # control flow, not an error
    """The end of a script, or of this branch of it."""


class ShellReturn(ShellExit):
    """The end of a function, or of this branch of it."""


class ShellBreak(ShellExit):
    """The end of a loop, or of this branch of it; ``goes_on`` for ``continue``, which ends a round."""

    def __init__(self, *, goes_on: bool) -> None:
        super().__init__()
        self.goes_on = goes_on


@dataclass
class ShellLog:
    """The launches of a script so far; the shells and loops within it write into one log."""

    launches: list[Launch] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    calls: int = 0

    def count_call(self) -> bool:
        """Count a call; whether it is still followed."""
        self.calls += 1
        return self.calls <= MAX_CALLS

    def cut(self, launches: int, unread: int) -> None:
        """Forget what came after these numbers of entries."""
        del self.launches[launches:], self.unread[unread:]

    def distinct(self) -> tuple[Launch, ...]:
        """The launches, those of one place with the same words as one."""
        merged: dict[object, Launch] = {}
        for launch in self.launches:
            key = launch.span, launch.words
            merged[key] = launch if key not in merged or launch.certain else merged[key]
        return tuple(merged.values())


@dataclass(frozen=True, slots=True)
class ShellFunction:
    """A function that a script defines, and the text in which it stands."""

    body: Body
    source: SourceText
