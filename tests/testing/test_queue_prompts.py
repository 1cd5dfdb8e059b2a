"""The law over the prompts of queues behind and beside each other, on random schedules and on loops that break it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.errors import SizeError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.decisions import Decision
from hfdsl.runtime.queues.links import TRAINER, QueueLink, QueueLinks
from hfdsl.runtime.queues.loop import PromptReader, QueuedId, QueueLoop
from hfdsl.runtime.schedule import QueueBatch, QueueSpec, QueueState
from hfdsl.testing import BrokenQueueError, check_prompts

CHAIN = QueueLinks((QueueLink(0, 1), QueueLink(1, 2), QueueLink(2, TRAINER)))
CHAIN_AND_SOURCE = QueueLinks((QueueLink(0, 1), QueueLink(1, TRAINER), QueueLink(2, TRAINER)))
BESIDE = QueueLinks((QueueLink(0, TRAINER), QueueLink(0, TRAINER)))

UPDATES = 12


@dataclass
class RandomWorld:
    """Groups and updates that end in any order; a group may wait for several updates."""

    links: QueueLinks
    random: Random
    running: list[QueuedId] = field(default_factory=list)
    training: bool = False
    updates: int = 0

    def accepts(self, stage: int) -> bool:
        return True

    def dispatch(
        self, stage: int, numbers: Sequence[int], prompts: Sequence[int], version: int, batch: QueueBatch | None
    ) -> None:
        self.running += [(queue, number) for queue in self.links.fed_by(stage) for number in numbers]

    def idle(self) -> bool:
        return not self.training

    def train(self, batches: Sequence[QueueBatch]) -> None:
        self.training, self.updates = True, self.updates + 1

    def ended(self) -> Sequence[QueuedId] | None:
        self.training = self.training and self.random.random() < 0.5
        groups = [group for group in self.running if self.random.random() < 0.3]
        self.running = [group for group in self.running if group not in groups]
        return groups if self.updates < UPDATES else None


@dataclass(frozen=True)
class Case:
    """Queues, and the seed of what ends when; the last queue of a chain loses a share of its groups.

    The loader is found not to have delivered in a share of ``slow``.
    """

    links: QueueLinks
    specs: tuple[QueueSpec, ...]
    seed: int
    slow: float = 0.0

    def decisions(self, loop_type: type[QueueLoop] = QueueLoop) -> list[Decision]:
        loop = loop_type([QueueState(spec) for spec in self.specs], self.links)
        world = RandomWorld(self.links, Random(self.seed))
        prompts = {stage: self.delivered(stage) for stage in self.links.sources}
        lost = Random(self.seed + 1)
        steps = loop.run(world, prompts, lambda group: self.specs[group[0]].loses and lost.random() < 0.3, [])
        return list(islice(chain.from_iterable(steps), 2_000))

    def delivered(self, stage: int) -> Iterator[int | None]:
        random = Random(f"{self.seed} {stage}")
        for prompt in range(1_000):
            while random.random() < self.slow:
                yield None
            yield prompt


@st.composite
def cases(draw: st.DrawFn) -> Case:
    links = draw(st.sampled_from([CHAIN, CHAIN_AND_SOURCE, BESIDE]))
    size, specs = draw(st.integers(1, 3)), []
    for index, link in enumerate(links.of):
        lates: list[Late] = ["drop"] if links is BESIDE else ["drop", "refill"]
        late = draw(st.sampled_from(lates))
        loses = link.reads == TRAINER and late == "refill" and draw(st.booleans())
        lag = draw(st.integers(2, 4))
        spec = QueueSpec(f"queue{index}", lag, late, batch=size, dispatch=size, loses=loses)
        specs.append(replace(spec, trains=link.reads == TRAINER))
    return Case(links, tuple(specs), draw(st.integers(0, 10_000)), draw(st.sampled_from([0.0, 0.3, 0.9])))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_no_prompt_is_lost_or_trained_twice(case: Case) -> None:
    decisions = case.decisions()
    assert {decision.queue for decision in decisions if decision.kind == "take"} == {spec.name for spec in case.specs}
    check_prompts(case.links, case.specs, decisions)


def test_a_reader_tells_prompts_to_come_from_too_few_prompts() -> None:
    reader = PromptReader(iter([0, None, 1, 2]))
    assert (reader.next(2, ()), reader.pending, reader.exhausted) == ([], True, False)
    assert (reader.next(2, ()), reader.pending, reader.exhausted) == ([0, 1], False, False)
    assert (reader.next(2, ()), reader.pending, reader.exhausted) == ([], False, True)
    assert (reader.next(2, [7]), reader.pending, reader.exhausted) == ([7, 2], False, False)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_no_loader_changes_the_decisions_of_queues_that_wait(lag: int, batch: int, dispatch: int, seed: int) -> None:
    """Neither of one queue, nor of two with the same batches, from two sources."""
    links = (QueueLinks(), QueueLinks((QueueLink(0, TRAINER), QueueLink(1, TRAINER))))[seed % 2]
    try:
        specs = tuple(QueueSpec(f"queue{index}", lag, "wait", batch, dispatch) for index, _ in enumerate(links.of))
    except SizeError:
        return
    instant, slow = (Case(links, specs, seed, share).decisions() for share in (0.0, 0.5))
    both = min(len(instant), len(slow))  # a world may end before the last dispatches
    assert instant[:both] == slow[:both]
    assert instant[both - 1].version >= UPDATES - 1


class ForgetsRefills(QueueLoop):
    """Prompts of late groups are not dispatched again."""

    def _take(self, stage: int) -> tuple[list[Decision], list[tuple[int, QueueState, QueueBatch]]]:
        decisions, batches = super()._take(stage)
        for index in self.links.read_by(stage):
            self.queues[index] = self.queues[index].sent_again(self.queues[index].again)
        return decisions, [(index, state.sent_again(state.again), batch) for index, state, batch in batches]


class RepeatsRefills(QueueLoop):
    """Prompts of late groups are dispatched again, and once more."""

    def _dispatch(self, world: object, stage: int, prompts: Sequence[int], batch: QueueBatch | None) -> list[Decision]:
        again = [queue.again for queue in self.queues]
        decisions = super()._dispatch(world, stage, prompts, batch)  # type: ignore[arg-type]  # a world of the loop
        for index, prompts_again in enumerate(again):
            if prompts_again:
                object.__setattr__(self.queues[index], "again", prompts_again)
        return decisions


class HandsOnOthers(QueueLoop):
    """A stage between two queues hands on the first prompt in the place of all."""

    def _dispatch(self, world: object, stage: int, prompts: Sequence[int], batch: QueueBatch | None) -> list[Decision]:
        chosen = prompts if batch is None else [prompts[0]] * len(prompts)
        return super()._dispatch(world, stage, chosen, batch)  # type: ignore[arg-type]  # a world of the loop


class TakesTwice(QueueLoop):
    """A batch that was handed on stays in the queue."""

    def _pass_on(self, world: object, stage: int) -> list[Decision]:
        before = {index: self.queues[index] for index in self.links.read_by(stage)}
        decisions = super()._pass_on(world, stage)  # type: ignore[arg-type]  # a world of the loop
        if any(decision.kind == "take" for decision in decisions):
            for index, state in before.items():
                self.queues[index] = state
        return decisions


@pytest.mark.parametrize("broken", [ForgetsRefills, RepeatsRefills, HandsOnOthers, TakesTwice])
def test_a_loop_that_loses_or_repeats_prompts_is_found(broken: type[QueueLoop]) -> None:
    specs = tuple(
        QueueSpec(f"queue{index}", 1, "refill", 2, 2, trains=link.reads == TRAINER)
        for index, link in enumerate(CHAIN.of)
    )
    assert not any(is_broken(specs, Case(CHAIN, specs, seed).decisions()) for seed in range(20))
    assert any(is_broken(specs, Case(CHAIN, specs, seed).decisions(broken)) for seed in range(20))


def is_broken(specs: Sequence[QueueSpec], decisions: Sequence[Decision]) -> bool:
    """Whether the law finds something in a log of a chain."""
    try:
        check_prompts(CHAIN, specs, decisions)
    except BrokenQueueError:
        return True
    return False


def test_entries_that_no_loop_writes_are_found() -> None:
    links, specs = QueueLinks(), [QueueSpec("scored", lag=1)]
    with pytest.raises(BrokenQueueError, match="a take is of 'other', and the queues are 'scored'"):
        check_prompts(links, specs, [Decision("take", "other", 0, (0,))])
    with pytest.raises(BrokenQueueError, match="a dispatch of 'scored' has 2 groups, 1 prompts"):
        check_prompts(links, specs, [Decision("dispatch", "scored", 0, (0, 1), (0,))])
