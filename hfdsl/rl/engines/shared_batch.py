"""One batch in an engine for the rows of several calls.

A worked example: two calls, and an engine that runs at most eight decode steps in a round::

    round           0         1         2         3
    joins           call 0              call 1
    loads                               version 3
    decode steps    8         8         8         5
    ends                                          call 0
    led by          call 0    call 0    call 0    call 0     call 1 leads on

The bodies of calls run in threads, each of which waits for its own rows. One of them *leads* until its rows have ended:
in each round it admits waiting calls, loads weights that have arrived, and lets the engine sample. Rows that end are
handed to their call in the same round. So the few rows of a long tail share their decode steps with the rows of later
calls.

Why it is right. *Weights*: between two rounds, the leader loads them for all calls of the batch at once
(``Call.take_weights``), and the engine drops everything computed with the old weights. So all rows have the same
weights in a decode step, and each call begins with a version that is no older than its dispatch. *Rows*: a row is
sampled with its own seed, and other rows of the batch change its log-probs only by rounding. *Nothing hangs*: as long
as there are calls, one of them leads, or takes the lead when it wakes, as it does whenever a leader ends. An error in a
round is raised in each of its calls and ends the engine, since the engine may have rows that no call waits for any
more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from threading import Condition
from typing import Final

from hfdsl.protocols.call import Call
from hfdsl.rl.engines.interface import Completion
from hfdsl.rl.engines.process import EngineProcess

STEPS: Final = 8
"""The maximum number of decode steps per round; joining calls and arriving weights wait for the round to end."""


@dataclass(frozen=True, slots=True)
class EngineActions:
    """The engine operations of a leader.

    ``prepare`` makes sure that the engine is awake and has the newest weights of the role, ``reload`` replaces the
    weights of an engine that has rows, and ``process`` returns the current process of the engine.
    """

    prepare: Callable[[], None]
    reload: Callable[[], None]
    process: Callable[[], EngineProcess]


@dataclass(eq=False, slots=True)
class BatchedCall:
    """A call: its prompts and seeds, and at its end its ``completions`` and the ``versions`` loaded for them."""

    call: Call
    length: int
    """The maximum number of decode steps of a row."""

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int] | None
    steps: int = 0
    versions: list[int] = field(default_factory=list)
    completions: list[Completion] | None = None
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether its rows are complete or have failed."""
        return self.completions is not None or self.error is not None


class SharedBatch:
    """The calls with rows in an engine, and the maximum number of decode ``steps`` per round."""

    def __init__(self, steps: int = STEPS) -> None:
        self.steps = steps
        self._changed = Condition()
        self._led = False
        self._joining: list[BatchedCall] = []
        self._calls: dict[int, BatchedCall] = {}  # by the number that the engine knows
        self._numbers = count()

    def sample(self, call: BatchedCall, engine: EngineActions) -> list[Completion]:
        """The completions of a call, once all of its rows have ended; raises the error of its last round, if any."""
        with self._changed:
            self._joining.append(call)
            self._changed.wait_for(lambda: call.ended or not self._led)
            self._led = self._led or not call.ended
        if not call.ended:
            self._lead(call, engine)
        if call.completions is None:
            raise call.error or RuntimeError("a call has ended without rows")
        return call.completions

    def _lead(self, call: BatchedCall, engine: EngineActions) -> None:
        """Lead rounds until the rows of a call have ended."""
        try:
            while not call.ended:
                self._round(engine)
        except BaseException as error:
            engine.process().close()
            for member in self._calls.values():
                member.error = error
            self._calls.clear()
            raise
        finally:
            self._end_lead()

    def _end_lead(self) -> None:
        """Hand the lead to another call."""
        with self._changed:
            self._led = False
            self._changed.notify_all()

    def _round(self, engine: EngineActions) -> None:
        with self._changed:
            joining, self._joining = self._joining, []
        before = list(self._calls.values())
        new = {next(self._numbers): call for call in joining}
        self._calls |= new
        first, *others = self._calls.values()
        version = first.call.take_weights(first.steps, first.length, [(member.call, member.steps) for member in others])
        if not before:
            engine.prepare()
        elif before[0].versions[-1] != version:
            engine.reload()
            for call in before:
                call.versions.append(version)
        for number, call in new.items():
            call.versions.append(version)
            engine.process().begin(number, call.prompts, call.seeds)
        stepped = engine.process().step(self.steps)
        for call in self._calls.values():
            call.steps += stepped.steps
        for number, completions in stepped.ended.items():
            self._calls.pop(number).completions = completions
        if stepped.ended:
            with self._changed:
                self._changed.notify_all()
