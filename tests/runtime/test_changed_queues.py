"""A run that continues from a checkpoint with other lags: those that the rows in its queues keep."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import CheckpointError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late
from tests.nightly import examples
from tests.runtime import queue_programs
from tests.runtime.network_programs import Critic, beside
from tests.runtime.stage_programs import (
    Actor,
    B,
    Engine,
    GivenSeconds,
    Judge,
    Prompts,
    Scored,
    Trained,
    deciding,
    prompts,
    stage_deployment,
)

LATES = st.sampled_from(get_args(Late))
STEPS = 14


def compiled(lag: int | None, late: Late | None) -> CompiledPlan:
    return optional.given(lag=lag, late=late).compile(stage_deployment(), dims={B: 4})


@hf.dataflow
def optional(
    prompts: Prompts, engine: Engine, judge: Judge, actor: Actor, *, lag: int | None = 1, late: Late | None = "drop"
) -> Trained:
    """A program that may have no lag; its actor checks the versions that a call says."""
    samples = engine.generate(prompts)
    scored = hf.merge(Scored, prompts, samples, judge.score(samples))
    trained = actor.update(hf.queue(scored, lag=lag, late=late))
    hf.sync(actor, engine)
    return trained


def allowed(before: tuple[int, Late], after: tuple[int, Late]) -> bool:
    """Whether rows that were made for one queue keep the bound of another one: by its discipline, or its lag."""
    (lag_before, late_before), (lag, late) = before, after
    decided_before, decides = late_before != "wait", late != "wait"
    return decided_before == decides and (decides or lag >= lag_before)


@settings(max_examples=examples(16), deadline=None)
@given(
    st.tuples(st.integers(1, 3), LATES),
    st.tuples(st.integers(1, 3), LATES),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
)
@example((1, "wait"), (3, "wait"), 2, [(1, 1)])
@example((3, "drop"), (1, "refill"), 3, [(1, 9)])
@example((3, "mask"), (1, "drop"), 1, [(9, 1)])
def test_rows_keep_the_lag_of_the_run_that_trains_them(
    before: tuple[int, Late], after: tuple[int, Late], results: int, generation: list[tuple[int, int]]
) -> None:
    seconds = {"engine.generate": GivenSeconds(generation), "actor.update": GivenSeconds([(2,)])}
    with TemporaryDirectory() as folder:
        state, trained = Path(folder, "state"), list[Any]()
        with compiled(*before).launch(seed=3) as running:
            for result in running.stream(prompts(STEPS, 4), seconds=seconds):
                trained.append(result)
                if running.steps == results:
                    running.save(state)
                    break
            read = running.batches_read
        with compiled(*after).launch(seed=3) as running:
            if not allowed(before, after):
                with pytest.raises(CheckpointError, match=r"HF905: .* other queues: "):
                    running.load(state)
                return
            running.load(state)
            later = list(running.stream(prompts(STEPS, 4, read), seconds=seconds))
            [queue] = running.queues
    for result in later:
        columns = (column.tensor.tolist() for column in (result.update, result.version, result.unmasked))
        assert all(update - version <= after[0] for update, version, unmasked in zip(*columns, strict=True) if unmasked)
    numbers = [number for result in [*trained, *later] for number in result.number.tensor.tolist()]
    assert len(set(numbers)) == len(numbers), "none is trained twice"
    if "drop" not in (before[1], after[1]):
        waiting = [*(group.prompt for group in queue.groups.values()), *queue.again]
        assert sorted([*numbers, *waiting])[: 4 * STEPS - 4] == list(range(4 * STEPS - 4)), "none is lost"


def test_a_refusal_says_which_queues_may_continue(tmp_path: Path) -> None:
    with compiled(3, "wait").launch(seed=3) as running:
        next(running.stream(prompts(6, 4)))
        running.save(tmp_path)
    text = (
        'HF905: the state comes from a run with other queues: lag=3 with late="wait" there, lag=1 with late="wait" '
        "here, so its rows may be later than these allow: a lag may become larger, and behind a single queue that "
        "drops, refills or masks, lag= and late= may be any"
    )
    with compiled(1, "wait").launch(seed=3) as running, pytest.raises(CheckpointError) as refused:
        running.load(tmp_path)
    assert str(refused.value) == text
    text = 'lag=3 with late="wait" there, no queue with a lag here; continue with the dataflow and the options that'
    with compiled(None, None).launch(seed=3) as running, pytest.raises(CheckpointError, match=text):
        running.load(tmp_path)


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_lags_of_queues_in_a_row_may_become_larger(first: int, second: int, tmp_path: Path) -> None:
    def launched(first: int, second: int) -> Any:
        program = queue_programs.chain.given(first=first, second=second)
        return program.compile(queue_programs.deployment(), {queue_programs.B: 4}).launch(seed=3)

    with launched(1, 1) as running:
        next(running.stream(queue_programs.rows(9)))
        running.save(tmp_path / "saved")
        read = running.batches_read
    with launched(first, second) as running:
        running.load(tmp_path / "saved")
        results = list(running.stream(queue_programs.rows(9)[read:]))
    staleness = [int((result.update.tensor - result.version.tensor).max()) for result in results]
    assert [int(result.update.tensor[0]) for result in results] == list(range(1, 9))
    assert max(staleness) == first + second
    with launched(first, second) as running:
        next(running.stream(queue_programs.rows(9)))
        running.save(tmp_path / "larger")
    with launched(second, first) as running, pytest.raises(CheckpointError, match=r"HF905: .* a lag may become"):
        running.load(tmp_path / "larger")


@settings(max_examples=examples(8), deadline=None)
@given(st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(0, 2), st.integers(0, 2)), st.booleans())
@example((1, 2), (0, 0), False)
def test_an_actor_and_a_critic_count_the_same_updates(
    lags: tuple[int, int], more: tuple[int, int], decides: bool
) -> None:
    """Each holds the version that its call says against its own updates."""
    late: tuple[Late, Late] = ("mask", "mask") if decides else ("wait", "wait")
    larger = lags[0] + more[0], lags[1] + more[1]
    with TemporaryDirectory() as folder:
        with beside_critic(lags, late).launch(seed=3) as running:
            results = [next(running.stream(prompts(9, 4)))]
            running.save(Path(folder, "state"))
            read = running.batches_read
        with beside_critic(larger, late).launch(seed=3) as running:
            running.load(Path(folder, "state"))
            results += running.stream(prompts(9, 4, read))
    for trained, fitted in results:
        for rows, lag in ((trained, larger[0]), (fitted, larger[1])):
            assert int((rows.update.tensor - rows.version.tensor).max()) <= lag
    assert [int(fitted.update.tensor[0]) for _, fitted in results] == list(range(9))


def beside_critic(lags: tuple[int, int], late: tuple[Late, Late]) -> CompiledPlan:
    roles = stage_deployment()
    pool = hf.ResourcePool([1], use_gpu=False, name="critic")
    deployment = hf.Deployment(**{role: roles[role] for role in roles}, critic=hf.place(Critic, pool=pool))
    return beside.given(lags=lags, late=late).compile(deployment, dims={B: 4})


@pytest.mark.parametrize("before", [None, "wait"])
@pytest.mark.parametrize("late", ["drop", "mask", "refill"])
def test_a_queue_that_decides_counts_from_the_steps_before_it(before: Late | None, late: Late, tmp_path: Path) -> None:
    """The actor holds the versions of calls against its own updates; no random numbers come twice."""
    with compiled(before and 2, before).launch(seed=3) as running:
        trained = list(running.stream(prompts(3, 4)))
        running.save(tmp_path)
    with compiled(2, late).launch(seed=3) as running:
        running.load(tmp_path)
        assert (running.steps, running.batches_read) == (3, 3)
        trained += running.stream(prompts(9, 4, 3), log=tmp_path / "log")
        assert (running.steps, running.batches_read) == (9, 9)
        assert [queue.version for queue in running.queues] == [9]
    assert [n for result in trained for n in result.number.tensor.tolist()] == list(range(36))
    assert len({noise for result in trained for noise in result.noise.tensor.tolist()}) == 36
    with compiled(2, late).launch(seed=3) as running:
        running.load(tmp_path)
        repeated = list(running.stream(prompts(9, 4, 3), replay=tmp_path / "log"))
    assert [r.noise.tensor.tolist() for r in repeated] == [r.noise.tensor.tolist() for r in trained[3:]]


def test_rows_that_no_batch_of_the_new_size_has_are_refused(tmp_path: Path) -> None:
    with deciding.given(lag=3, rows=6, late="mask").compile(stage_deployment(), dims={B: 4}).launch() as running:
        next(running.stream(prompts(6, 4)))
        running.save(tmp_path)
    with (
        deciding.given(lag=3, rows=2, late="mask").compile(stage_deployment(), dims={B: 4}).launch() as running,
        pytest.raises(CheckpointError, match=r"HF905: .* differ: '.*rows=6, group=1' there, '.*rows=2, group=1' here"),
    ):
        running.load(tmp_path)
