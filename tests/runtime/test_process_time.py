"""What a run with dynamic queues waits for: calls that a decision needs, while it sees what else has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hfdsl.runtime.queues.process_time import ProcessTime
from hfdsl.runtime.queues.stage_plans import queue_stages
from tests.runtime.stage_programs import B, deciding, stage_deployment

GENERATE, REST = "generate", "rest"


@dataclass
class Processes:
    """A backend of calls that end when a test says so; ``awaited`` is what the last wait was for."""

    over: set[Any] = field(default_factory=set)
    awaited: set[Any] = field(default_factory=set)

    def ended(self, awaited: Collection[Any], others: Collection[Any] = ()) -> list[Any]:
        self.awaited = set(awaited)
        assert self.awaited & self.over, "it would wait forever"
        return [call for call in (*awaited, *others) if call in self.over]


class Step:
    """A step of two ranks, each of which makes a group in two calls, one after the other."""

    table, waits = None, False

    def __init__(self, name: str) -> None:
        self.all = [(name, call, rank) for call in (GENERATE, REST) for rank in (0, 1)]
        self.generating, self._new = self.all[:2], list(self.all)

    def calls(self) -> list[Any]:
        return self.all

    def new_calls(self) -> list[Any]:
        new, self._new = self._new, []
        return new

    def calls_of(self, node: int) -> list[Any]:
        return self.generating

    def result_calls(self) -> list[Any]:
        return self.all

    def resolve(self, running: Collection[Any]) -> bool:
        return True

    def makers(self, groups: Mapping[int, int]) -> dict[int, set[Any]]:
        return {group: {call for call in self.all if call[2] == rank} for group, rank in groups.items()}


def dispatched(time: ProcessTime, number: int) -> Step:
    step = Step(f"dispatch {number}")
    dispatch: Any = SimpleNamespace(
        number=number,
        step=step,
        groups=(2 * number, 2 * number + 1),
        places=lambda group: group % 2,
        settle=lambda table: None,
    )
    time.dispatched(0, {0: dispatch})
    return step


@pytest.fixture
def world() -> tuple[ProcessTime, Processes]:
    processes: Any = Processes()
    return ProcessTime(processes, queue_stages(deciding.compile(stage_deployment(), dims={B: 2}))), processes


def end(processes: Processes, *calls: Sequence[Any]) -> None:
    processes.over.update(map(tuple, calls))


def test_a_group_has_ended_when_all_calls_that_make_it_have(world: tuple[ProcessTime, Processes]) -> None:
    time, processes = world
    step = dispatched(time, 0)
    end(processes, step.all[0])
    assert time.ended(full=()) == []
    end(processes, step.all[2])
    assert time.ended(full=()) == [(0, 0)]
    end(processes, step.all[1], step.all[3])
    assert time.ended(full=()) == [(0, 1)]
    assert time.ended(full=()) is None


def test_while_an_update_is_in_progress_groups_are_seen_and_not_waited_for(
    world: tuple[ProcessTime, Processes],
) -> None:
    time, processes = world
    step, update = dispatched(time, 0), Step("update")
    time.trained(0, {1: update})  # type: ignore[dict-item]
    end(processes, update.all[0], *step.all)
    assert time.ended(full=(0,)) == [(0, 0), (0, 1)]
    assert processes.awaited == set(update.all)
    end(processes, *update.all)
    assert not time.idle()
    assert time.ended(full=(0,)) == []
    assert time.idle()


def test_a_process_that_may_begin_another_dispatch_is_waited_for(world: tuple[ProcessTime, Processes]) -> None:
    time, processes = world
    steps, update = [dispatched(time, number) for number in (0, 1)], Step("update")
    time.trained(0, {1: update})  # type: ignore[dict-item]
    assert not time.accepts(0)
    end(processes, steps[0].all[0], steps[1].all[0])  # rank 0 has begun the rest of both
    assert time.ended(full=()) == []
    assert processes.awaited == {*update.all, *steps[1].generating}  # a rank is free once its newest one has ended
    assert time.accepts(0)


def test_an_idle_trainer_waits_for_groups(world: tuple[ProcessTime, Processes]) -> None:
    time, processes = world
    step = dispatched(time, 0)
    end(processes, *step.all)
    assert time.ended(full=(0,)) == [(0, 0), (0, 1)]
    assert processes.awaited == set(step.all)
