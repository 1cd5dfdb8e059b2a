"""A stream that loses processes gives the results of one that loses none and makes the same decisions, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError, LostProcessError
from hfdsl.runtime.running import Running
from hfdsl.testing import check_decisions
from tests.nightly import examples
from tests.runtime import queue_programs
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.stage_model import Case, bits, cases, decisions
from tests.runtime.stage_programs import Prompts

pytestmark = pytest.mark.filterwarnings("ignore:.*HF840|.*lost rank:hfdsl.errors.HfWarning")

LOSSES = st.dictionaries(st.integers(1, 60), st.integers(0, 2), max_size=4)
"""Which process group is lost at which submission; not at the first, which may be the copy of the launch."""

RETRIES = st.sampled_from([1, 2, 5, None]).map(lambda every: hf.Retries(attempts=9, every=every))


def losing(losses: Losses) -> Any:
    return lambda plan, seed, **_: LosingBackend(plan, seed, losses)


@settings(max_examples=examples(40), deadline=None)
@given(cases(), LOSSES, RETRIES)
@example(Case("wait", 1, 1, 2, 2, ((1, 1),), (1,), 4), {4: 0}, hf.Retries())  # stages that follow each other
@example(Case("drop", 1, 1, 2, 2, ((1, 9), (2, 1)), (1,), 6), {9: 1, 20: 2}, hf.Retries(every=None))
@example(Case("refill", 2, 2, 4, 4, ((7, 4),), (2,), 6), {12: 0, 25: 1}, hf.Retries(every=2))
@example(Case("mask", 1, 1, 2, 3, ((1, 9), (2, 1)), (1,), 6), {8: 0, 9: 2, 31: 1}, hf.Retries(every=2))
@example(Case("refill", 1, 2, 2, 2, ((7, 4),), (2,), 9, "sampling", 0b0100101), {12: 0, 25: 1}, hf.Retries(every=2))
@example(
    Case("drop", 1, 1, 4, 4, ((1, 1),), (1,), 5, program="sampling", drops=91), {}, hf.Retries(attempts=9, every=1)
)
def test_a_loss_costs_no_bit_and_no_decision(case: Case, losses: Mapping[int, int], retries: hf.Retries) -> None:
    with TemporaryDirectory() as folder:
        log, again, lost = Path(folder, "log"), Path(folder, "again"), Losses(losses)
        with case.launched(losing(lost), retries=retries) as running:
            results = list(running.stream(case.loader(), seconds=case.seconds, log=log))
            counted, [queue] = (running.steps, running.decisions), running.queues
            assert len(running.recoveries) <= len(lost.lost)
            assert running.recoveries or not lost.lost or lost.unnoticed
        with case.launched() as running:
            assert bits(list(running.stream(case.loader(), replay=log, log=again))) == bits(results)
            assert (running.steps, running.decisions) == counted
        assert log.read_text() == again.read_text()
        check_decisions(queue.spec, decisions(log))


def trained(result: Any) -> tuple[Any, ...]:
    """What a result says, of which the last is the weight of the actor."""
    update, *_ = result if isinstance(result, tuple) else (result,)
    return update.version.tensor.tolist(), update.update.tensor.tolist(), update.weight.tensor.tolist()


def with_looks(running: Running, steps: int) -> tuple[list[Any], int]:
    """The results of a stream that is left and gone on with, with steps of another plan between."""
    looking = running.also(queue_programs.look.compile(running.plan.deployment, dims={queue_programs.B: 4}))
    loader, seen = iter(queue_programs.rows(steps)), list[Any]()
    for most in (3, steps):
        for result in islice(running.stream(loader), most):
            seen += [trained(result), looking.step(queue_programs.rows(1)[0]).x.tensor.tolist()]
    return seen, len(running.recoveries)


PROGRAMS: Mapping[str, Callable[[], Any]] = {
    "two stages": lambda: queue_programs.flow,
    "three stages": lambda: queue_programs.chain,
    "a filter in front": lambda: queue_programs.filtered,
    "no queue": lambda: queue_programs.flow.given(lag=None),
}


@settings(max_examples=examples(24), deadline=None)
@pytest.mark.parametrize("name", PROGRAMS)
@given(losses=LOSSES, retries=RETRIES, steps=st.integers(1, 7))
@example(losses={7: 0, 22: 2}, retries=hf.Retries(every=2), steps=6)
@example(losses={26: 0}, retries=hf.Retries(every=1), steps=3)
@example(losses={16: 0, 17: 0}, retries=hf.Retries(every=2), steps=2)
def test_stages_that_follow_each_other_and_other_plans_go_back_together(
    name: str, losses: Mapping[int, int], retries: hf.Retries, steps: int
) -> None:
    plan, lost = PROGRAMS[name]().compile(queue_programs.deployment(), dims={queue_programs.B: 4}), Losses(losses)
    with plan.launch("local", seed=3) as running:
        undisturbed, _ = with_looks(running, steps)
    with plan.launch(losing(lost), seed=3, retries=retries) as running:
        disturbed, recoveries = with_looks(running, steps)
    assert disturbed == undisturbed
    assert recoveries <= len(lost.lost)
    assert recoveries or not lost.lost or lost.unnoticed


class InterruptedOnce(Mapping[str, Any]):
    """A batch whose first reader is interrupted: the loader has given it, and no step has begun with it."""

    def __init__(self, **named: Any) -> None:
        self._named, self._interrupts = named, True

    def __getitem__(self, name: str) -> Any:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        if self._interrupts:
            self._interrupts = False
            raise KeyboardInterrupt
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_has_the_batch_that_a_loss_leaves_to_be_read_again(name: str) -> None:
    """An interrupt and a loss in one save leave one, of the dispatch that both cut short."""
    plan = PROGRAMS[name]().compile(queue_programs.deployment(), dims={queue_programs.B: 4})
    batches = queue_programs.rows(7)
    with plan.launch("local", seed=3) as running:
        undisturbed = [trained(result) for result in running.stream(batches)]
    (name_of_input,) = (node.label for node in plan.graph.inputs)
    loader: Iterator[Any] = iter(
        InterruptedOnce(**{name_of_input: batch}) if number == 5 else batch for number, batch in enumerate(batches)
    )
    results, losses = list[Any](), Losses({})
    with TemporaryDirectory() as folder:
        with plan.launch(losing(losses), seed=3, retries=hf.Retries()) as running:
            with pytest.raises(KeyboardInterrupt):
                results.extend(trained(result) for result in running.stream(loader))
            losses.at_save = "engine"
            running.save(folder)
            assert len(running.recoveries) == 1
        with plan.launch("local", seed=3) as running:
            running.load(folder)
            results += [trained(result) for result in running.stream(loader)]
    assert results == undisturbed


@pytest.mark.parametrize("every", [1, None])
def test_a_batch_that_a_file_has_is_not_read_again_after_a_loss(every: int | None, tmp_path: Path) -> None:
    """The file has a batch that a loss had left to be read again, and another loss goes back to the file."""
    plan = queue_programs.flow.compile(queue_programs.deployment(), dims={queue_programs.B: 4})
    batches = queue_programs.rows(7)
    with plan.launch("local", seed=3) as running:
        undisturbed = [trained(result) for result in running.stream(batches)]
    for later in range(1, 14):
        loader: Iterator[Any] = iter([*batches[:5], InterruptedOnce(prompts=batches[5]), batches[6]])
        results, losses, folder = list[Any](), Losses({}), tmp_path / str(later)
        folder.mkdir()
        with plan.launch(losing(losses), seed=3, retries=hf.Retries(every=every)) as running:
            with pytest.raises(KeyboardInterrupt):
                results.extend(trained(result) for result in running.stream(loader))
            losses.at_save = "engine"
            running.save(folder)
            running.go_back_to(folder)
            losses.at = {losses.submissions + later: 0}
            results += [trained(result) for result in running.stream(loader)]
            assert running.batches_read == len(batches)
        assert results == undisturbed, later


@settings(max_examples=examples(24), deadline=None)
@given(cases(), st.integers(1, 3), LOSSES, st.booleans())
@example(Case("drop", 1, 1, 2, 2, ((1, 9), (2, 1)), (1,), 6), 2, {12: 1, 20: 2}, False)
@example(Case("wait", 2, 1, 2, 2, ((1, 1),), (1,), 6), 2, {12: 1, 14: 2}, True)
@example(Case("drop", 2, 1, 2, 2, ((1, 2),), (1,), 4), 3, {}, False)  # a group is dropped, and no result is left
def test_a_stream_goes_back_to_a_file_with_what_was_in_its_queue(
    case: Case, saved: int, losses: Mapping[int, int], loads: bool
) -> None:
    def launched() -> Running:
        return case.launched(losing(Losses(losses)), retries=hf.Retries(attempts=9, every=None))

    loader = iter(case.loader())
    with TemporaryDirectory() as folder:
        log, state = Path(folder, "log"), Path(folder, "state")
        state.mkdir()
        with launched() as running:
            list(islice(running.stream(loader, seconds=case.seconds), saved))
            running.save(state)
            rest = list(loader)
            running.go_back_to(state)
            results = [] if loads else list(running.stream(rest, seconds=case.seconds, log=log))
        with launched() as running:
            running.load(state)
            if loads:
                results = list(running.stream(rest, seconds=case.seconds, log=log))
        with case.launched() as running:
            running.load(state)
            assert bits(list(running.stream(rest, replay=log))) == bits(results)


def test_what_a_loader_raises_is_no_loss() -> None:
    def raising() -> Iterator[Prompts]:
        yield from Case("drop", 1, 1, 2, 2, ((1, 1),), (1,), 3).loader()
        raise LostProcessError("HF806", "of the loader")

    case, lost = Case("drop", 1, 1, 2, 2, ((1, 1),), (1,), 6), Losses({5: 0, 22: 1})
    with case.launched() as running:
        expected = bits(list(running.stream(case.loader())))
    with case.launched(losing(lost), retries=hf.Retries(every=2)) as running:
        results = list[Any]()
        with pytest.raises(LostProcessError, match="of the loader"):
            results.extend(running.stream(raising()))
        assert len(running.recoveries) == 1
        results = list(running.stream(case.loader()[3:]))
    assert bits(results) == expected[-len(results) :]
    assert len(lost.lost) == 2


def test_a_result_that_loses_processes_too_often_ends_the_run() -> None:
    case = Case("drop", 1, 1, 2, 2, ((1, 1),), (1,), 6)
    with case.launched(losing(Losses(dict.fromkeys(range(10, 40), 0))), retries=hf.Retries(attempts=2)) as running:
        with pytest.raises(LostProcessError, match=r"HF840: step \d of 'deciding' lost processes 3 times"):
            list(running.stream(case.loader()))
        with pytest.raises(HfError, match="HF808"):
            list(running.stream(case.loader()))
