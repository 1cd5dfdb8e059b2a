"""A note of the call that a process began last, in memory that outlives the process.

A worked example. Rank 1 ends ``critic.values``, begins ``reward.score`` and is killed 0.3 ms later, before its reply to
the first call has left::

    rank 1                  its note                   what has ended, as the driver knows
    critic.values           step 4, 'critic.values'
    reward.score            step 4, 'reward.score'
    killed                  step 4, 'reward.score'     neither: by the replies it died in 'critic.values'

Why it is right. *It outlives the process*: memory without a name exists as long as any process has it open, and the
driver opens the memory of each process on its node when it starts that process. *Nothing is left behind* for the same
reason. *It costs next to nothing*: a call writes some bytes before its body begins, in under a microsecond. *No other
process is read*: the driver opens the memory only if it has the name that the process reported. A process on another
node has no note here, so a message names every call in which it may have died (``CallClocks.begun``).
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

NOTE_BYTES = 256
"""The size of a note; a longer one is truncated and then ignored."""


NO_STEP = ("", -1)
"""The plan and the step of a call outside of steps."""


class BegunCall(NamedTuple):
    """A call: its plan and the number of its step, or ``NO_STEP``, and its label."""

    plan: str
    step: int
    label: str


@dataclass(frozen=True, slots=True)
class NotePlace:
    """The place of a process's note: an open file, and a word in its name."""

    pid: int
    file: int
    token: str

    def open(self) -> IO[bytes] | None:
        """The note, for reading now or later; None if this process has no access to it."""
        path = Path(f"/proc/{self.pid}/fd/{self.file}")
        try:
            return path.open("rb") if self.token in str(path.readlink()) else None
        except OSError:  # of another machine, or of a process that has ended
            return None


class CallNote:
    """The note of this process.

    >>> note = CallNote()
    >>> file = note.place.open() if note.place else None
    >>> note.begin("ppo", 4, "critic.values")
    >>> note.begin("ppo", 4, "reward.score")
    >>> last_begun(file)
    BegunCall(plan='ppo', step=4, label='reward.score')
    """

    def __init__(self) -> None:
        self.place: NotePlace | None = None
        if hasattr(os, "memfd_create"):
            token = f"hfdsl-{secrets.token_hex(8)}"
            file = os.memfd_create(token)
            os.ftruncate(file, NOTE_BYTES)
            self.place, self._memory = NotePlace(os.getpid(), file, token), mmap.mmap(file, NOTE_BYTES)

    def begin(self, plan: str, step: int, label: str) -> None:
        """Note that a call begins."""
        if self.place is not None:
            self._memory[:] = f"{step}\t{label}\t{plan}\n".encode().ljust(NOTE_BYTES, b"\0")[:NOTE_BYTES]

    def clear(self) -> None:
        """Forget the last call, since the same calls will be repeated."""
        if self.place is not None:
            self._memory[:1] = b"\n"


def last_begun(note: IO[bytes] | None) -> BegunCall | None:
    """The last call that began, also in a process that has ended; None if unknown."""
    if note is None:
        return None
    text, end, _ = os.pread(note.fileno(), NOTE_BYTES, 0).partition(b"\n")
    if not text or not end:
        return None
    step, label, plan = text.decode().split("\t")
    return BegunCall(plan, int(step), label)
