"""Ctrl-C between any two instructions of a stream loses no batch: the run is broken, or continues as if undisturbed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
import hfdsl.runtime.loading
from hfdsl.errors import HfError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late
from tests.nightly import examples
from tests.runtime import queue_programs
from tests.runtime.losing_backend import LosingBackend, Losses

RUNTIME = Path(hfdsl.runtime.loading.__file__).parent
PARTS = tuple(map(str, (RUNTIME / "loading.py", RUNTIME / "queues", RUNTIME / "recovery")))
BATCHES = 5


class Interrupt:
    """A trace function that interrupts a thread before one of the instructions of a stream, and counts them."""

    def __init__(self, before: int) -> None:
        self.before, self.count = before, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        """Trace the frames of a stream."""
        return self.of_frame if frame.f_code.co_filename.startswith(PARTS) else None

    def of_frame(self, frame: FrameType, event: str, _: Any) -> Any:
        """Count an instruction."""
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.before:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.of_frame


@contextmanager
def traced(interrupt: Interrupt) -> Iterator[None]:
    """Within this context, the function traces this thread."""
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def program(late: Late | None) -> CompiledPlan:
    """A program with a queue, or without one."""
    flow = queue_programs.flow.given(lag=None if late is None else 2, late=late)
    return flow.compile(queue_programs.deployment(), dims={queue_programs.B: 4})


def losing(plan: Any, seed: int, **_: Any) -> LosingBackend:
    """A backend of which a run may recover, and that loses nothing."""
    return LosingBackend(plan, seed, Losses({}))


def interrupted(late: Late | None, recovers: bool, before: int) -> tuple[list[list[float]], str, int]:
    """The results of a stream that is interrupted and continued, the error of its second part, and the instructions."""
    loader, results, interrupt = iter(queue_programs.rows(BATCHES)), list[list[float]](), Interrupt(before)
    with program(late).launch(
        losing if recovers else "local", seed=3, retries=hf.Retries(attempts=2) if recovers else None
    ) as running:
        stream = running.stream(loader)
        try:
            with traced(interrupt):
                results.extend(trained.weight.tensor.tolist() for trained in stream)
        except KeyboardInterrupt:
            pass
        try:
            results.extend(trained.weight.tensor.tolist() for trained in running.stream(loader))
        except HfError as error:
            return results, error.code, interrupt.count
        assert running.batches_read == running.steps == BATCHES
    return results, "", interrupt.count


@cache
def undisturbed(late: Late | None, recovers: bool) -> tuple[list[list[float]], int]:
    """The results without an interrupt, and the number of instructions."""
    results, error, count = interrupted(late, recovers, before=0)
    assert (len(results), error) == (BATCHES, "")
    return results, count


@pytest.mark.nightly_besides("None-False", "wait-True", "drop-False", "refill-True")
@pytest.mark.parametrize("recovers", [False, True])
@pytest.mark.parametrize("late", [None, "wait", "drop", "refill"])
@settings(max_examples=examples(160), deadline=None)
@given(place=st.floats(0, 1))
def test_an_interrupt_loses_no_batch(late: Late | None, recovers: bool, place: float) -> None:
    """At most the result that was on its way to the caller is not seen."""
    straight, count = undisturbed(late, recovers)
    results, error, _ = interrupted(late, recovers, before=1 + round(place * (count - 1)))
    if error:
        assert error == "HF808"
    else:
        assert results in [straight, *map(list, combinations(straight, BATCHES - 1))]
