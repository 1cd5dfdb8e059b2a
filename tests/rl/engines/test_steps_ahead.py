"""Decode steps that vLLM begins ahead, on a stand-in for its engine that has its queue of two steps."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hfdsl.rl.engines.vllm_engine import VllmEngine, _Begun


class Row:
    """A row that ends after ``length`` tokens."""

    def __init__(self, name: str, length: int) -> None:
        self.request_id, self.length, self.begun, self.tokens = name, length, 0, 0
        self.finished = False


class Scheduler:
    def __init__(self, engine: QueueOfTwo) -> None:
        self.engine = engine

    def has_requests(self) -> bool:
        return bool(self.engine.rows)


class QueueOfTwo:
    """vLLM's ``step`` with steps ahead: a step begins before the previous one has returned, also an empty one."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.batch_queue: deque[tuple[list[Row], Any]] = deque(maxlen=2)
        self.scheduler = Scheduler(self)
        self.engine_core = SimpleNamespace(engine_core=self)

    def step(self) -> list[Row]:
        if self.scheduler.has_requests():
            scheduled = [row for row in self.rows if row.begun < row.length]
            for row in scheduled:
                row.begun += 1
            self.batch_queue.appendleft((scheduled, SimpleNamespace(total_num_scheduled_tokens=len(scheduled))))
            if len(self.batch_queue) < 2:
                return []
        elif not self.batch_queue:
            return []
        returned, _ = self.batch_queue.pop()
        for row in returned:
            row.tokens += 1
            row.finished = row.tokens == row.length
        self.rows = [row for row in self.rows if not row.finished]
        return returned


class Begun(_Begun):
    def completions(self) -> list[Any]:
        return self.ended


def steps_of(engine: VllmEngine, queue: QueueOfTwo, lengths: list[int], loads: set[int], most: int) -> int:
    """The decode steps that a call of rows with these lengths is said to take, with loads after some rounds."""
    rows = [Row(str(number), length) for number, length in enumerate(lengths)]
    queue.rows += rows
    engine.calls, engine.call_of = {0: Begun(rows)}, {row.request_id: 0 for row in rows}
    steps, rounds = 0, 0
    while engine.calls:
        stepped = engine.step(most)
        steps, rounds = steps + stepped.steps, rounds + 1
        if rounds in loads and engine.calls:
            engine._finish_steps()
            assert not [work for work, _ in queue.batch_queue if work]
            assert [row.begun for row in rows] == [row.tokens for row in rows]
    assert [row.tokens for row in rows] == lengths
    return steps


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sets(st.integers(1, 6))),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 3),
)
def test_a_call_takes_as_many_steps_as_its_longest_row(calls: list[tuple[list[int], set[int]]], most: int) -> None:
    queue, engine = QueueOfTwo(), object.__new__(VllmEngine)
    engine.llm, engine.finished_steps = SimpleNamespace(llm_engine=queue), 0
    for lengths, loads in calls:
        assert steps_of(engine, queue, lengths, loads, most) == max(lengths)
