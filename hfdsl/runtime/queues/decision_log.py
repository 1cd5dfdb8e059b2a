"""The log of a stream's decisions: a file of them, and those of an earlier run to repeat."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import NoneType
from typing import Final, Self, TextIO

from hfdsl.errors import CheckpointError, WiringError
from hfdsl.runtime.decisions import (
    CallNumber,
    Decision,
    Loads,
    check_one_after_another,
    check_one_run,
    read_log,
    to_lines,
)
from hfdsl.types.numbers import brief

MORE_BATCHES: Final = "give the stream as many batches as the run that wrote the log had"

FROM_ITS_BEGINNING: Final = "a log can be repeated only from the step at which it begins"


def repair_log(path: Path) -> None:
    """Make a file to append decisions to, without the line that a killed run did not finish.

    Raises:
        CheckpointError: HF906 if it cannot be written.
    """
    try:
        whole = path.read_bytes() if path.is_file() else b""
        if whole and not whole.endswith(b"\n"):
            os.truncate(path, whole.rfind(b"\n") + 1)
        path.open("a").close()
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> CheckpointError:
    text = f"the decisions of the queues cannot be written to '{path}': {error.strerror or error}"
    return CheckpointError("HF906", text)


class DecisionLog:
    """A log of decisions: writes them to a file, and compares them with those of a run to repeat.

    ``expected`` are the decisions that are still to be repeated; None without a log to repeat. ``journal`` is a list
    that keeps decisions for a recovery, which repeats them.
    """

    def __init__(self, log: str | PathLike[str] | None, replay: str | PathLike[str] | None) -> None:
        for name, path in (("log", log), ("replay", replay)):
            if not isinstance(path, (str, PathLike, NoneType)):
                raise WiringError("HF206", f"{name}= of a stream takes the path of a file, got {brief(path)}")
        self._path = None if log is None else Path(log)
        self._file: TextIO | None = None  # opened for the first decisions: a stream may never be iterated over
        self._pauses = False
        self.expected: deque[Decision] | None = None
        self.journal: list[Decision] | None = None
        self._loads: dict[CallNumber, Decision] | None = None
        self._read = list[Decision]()
        if replay is not None:
            if self._path is not None and self._path.resolve() == Path(replay).resolve():
                text = (
                    f"log= and replay= of a stream are both '{replay}', to which the run would append what it repeats"
                )
                raise CheckpointError("HF761", f"{text}; write the decisions to another file, or leave out log=")
            self._read = read_log(replay)
            self._repeat(self._read)
        if self._path is not None:
            repair_log(self._path)

    def leave_out(self, count: int) -> None:
        """Leave out the first decisions of the log of a whole run, which this run has made before.

        Raises:
            CheckpointError: HF761 if the log has fewer.
        """
        first = self._read[0] if count and self._read else None
        if first is None or first.kind != "dispatch" or 0 not in first.groups:
            return
        if len(self._read) < count:
            text = f"the log to repeat has {len(self._read)} decisions, and this run has made {count} before"
            raise CheckpointError("HF761", f"{text}; {FROM_ITS_BEGINNING}")
        self._repeat(self._read[count:])

    def _repeat(self, decisions: Iterable[Decision]) -> None:
        decisions = list(decisions)
        check_one_run(decisions)
        self.expected = deque(decision for decision in decisions if decision.kind != "load")
        self._loads = {decision.call: decision for decision in decisions if decision.call is not None}
        check_one_after_another({call: decision.loaded for call, decision in self._loads.items()})

    def check_queues(self, names: Sequence[str]) -> None:
        """Refuse to repeat decisions of other queues than those with these names.

        Raises:
            CheckpointError: HF761 for those.
        """
        for decision in self.expected or ():
            if decision.queue not in names:
                queues = ", ".join(f"'{name}'" for name in names)
                text = f"the log has decisions of a queue '{decision.queue}', and this program has {queues}"
                raise CheckpointError("HF761", f"{text}; a log can be repeated only by the program that wrote it")

    @classmethod
    def repeating(cls, decisions: Iterable[Decision]) -> Self:
        """A log without a file, of decisions recorded before."""
        log = cls(None, None)
        log._pauses = True
        log._repeat(decisions)
        return log

    @property
    def loads(self) -> Loads | None:
        """The loads of weights in flight in the run to repeat, which calls load again; None without such a run."""
        return None if self._loads is None else {call: decision.loaded for call, decision in self._loads.items()}

    @property
    def next(self) -> Decision | None:
        """The next decision to be repeated, if there is one."""
        return self.expected[0] if self.expected else None

    @property
    def begins_steps(self) -> bool:
        """Whether another step may begin: always, if there is no log to repeat."""
        return self.expected is None or any(decision.kind == "dispatch" for decision in self.expected)

    @property
    def repeated(self) -> bool:
        """Whether this log repeats decisions, and all were repeated."""
        return self.expected is not None and not self.expected

    @property
    def paused(self) -> bool:
        """Whether this log repeats decisions of its own run, and all were repeated."""
        return self._pauses and not self.expected

    def add(self, decisions: Sequence[Decision], *, loader_ended: bool = False) -> None:
        """Record decisions; the journal records them in any case, since they were carried out.

        Raises:
            CheckpointError: HF761 if they differ from the repeated log, HF906 if the file cannot be written.
        """
        if self.journal is not None:
            self.journal += decisions
        for decision in decisions if self.expected is not None else ():
            if decision.call is not None:  # calls end in any order
                expected: Decision | None = (self._loads or {}).pop(decision.call, decision)
            else:
                expected = self.expected.popleft() if self.expected else None
            if decision != expected:
                logged = to_lines([expected]).strip() if expected else "nothing"
                text = f"this run decides {to_lines([decision]).strip()} where its log has {logged}"
                lacks = loader_ended and expected is not None and expected.kind == "dispatch"
                advice = MORE_BATCHES if lacks else FROM_ITS_BEGINNING
                raise CheckpointError("HF761", f"{text}; {advice}")
        if self._path is not None and decisions:
            try:
                self._file = self._file or self._path.open("a", encoding="utf-8")
                self._file.write(to_lines(decisions))
                self._file.flush()
            except OSError as error:
                raise _unwritten(self._path, error) from None

    def end(self) -> None:
        """Note that the run has ended.

        Raises:
            CheckpointError: HF761 if the log to repeat has more decisions.
        """
        if self.expected and not self._pauses:
            text = f"the loader ended where the log to repeat has {to_lines([self.expected[0]]).strip()}"
            raise CheckpointError("HF761", f"{text}; {MORE_BATCHES}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # of lines that could not be written
                self._file.close()
