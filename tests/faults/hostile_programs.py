"""Roles whose bodies end in ways that a worker's process must survive, on the rank and in the way that a row names."""

from __future__ import annotations

import sys
import threading
from typing import Any, NoReturn

import hfdsl as hf
from hfdsl import Dispatch, i64, register

LONG = 10 * 2**20
"""The characters of a long message."""


class B(hf.Dim): ...


class Rows(hf.Batch):
    how: i64[B]


class DeadEndError(BaseException):
    """No Exception."""


class MuteError(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class QuittingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(4)


class LockedError(Exception):
    """Cannot be pickled, neither by its arguments nor by its attributes."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())
        self.lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise SystemExit(5)


HOSTILE: tuple[tuple[str, Any], ...] = (
    ("SystemExit: 3", lambda: sys.exit(3)),
    ("SystemExit: ", sys.exit),
    ("KeyboardInterrupt: ", KeyboardInterrupt),
    ("GeneratorExit: ", GeneratorExit),
    ("StopIteration: 1", lambda: StopIteration(1)),
    ("DeadEndError: away", lambda: DeadEndError("away")),
    ("MuteError: (its message raises LookupError)", MuteError),
    ("QuittingError: (its message raises SystemExit)", QuittingError),
    ("LockedError: <unlocked", LockedError),
    (f"ValueError: {'x' * 1000} [{LONG - 2000} characters left out] {'x' * 1000}", lambda: ValueError("x" * LONG)),
)
"""How an error describes what a body raised, and what makes it."""


def end(how: int) -> None:
    """End a body in one of these ways; -1 is none."""
    if how >= 0:
        error = HOSTILE[how][1]()
        raise error


class Judge(hf.Worker):
    """Ends so on its last rank; its constructor and its state too where they are asked to."""

    def __init__(self, construction: int = -1, state: int = -1) -> None:
        self.in_state = state
        end(construction)

    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows:
        if self.rank == 1:
            end(int(rows.how.tensor[0]))
        return rows

    def state(self) -> dict[str, int]:
        end(self.in_state)
        return {}

    def load_state(self, state: dict[str, int]) -> None: ...


@hf.function
def doubled(rows: Rows) -> Rows:
    end(int(rows.how.tensor[0]) - len(HOSTILE))
    return rows


@hf.dataflow
def judged(rows: Rows, judge: Judge) -> Rows:
    return judge.score(rows)


@hf.dataflow
def computed(rows: Rows, judge: Judge) -> Rows:
    return judge.score(doubled(rows))


def deployment(construction: int = -1, state: int = -1) -> hf.Deployment:
    return hf.Deployment(judge=hf.place(Judge, construction, state, pool=hf.ResourcePool([2], use_gpu=False)))
