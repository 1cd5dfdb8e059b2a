"""``check_stream`` has ranks die: all laws hold after it, and what is repeated twice, lost or forgotten is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import DefinitionError, LostProcessError
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.backend import HookedBackend
from hfdsl.runtime.rank.body_hooks import BodyHook, BodyMoment
from hfdsl.runtime.recovery.steps import Recovery
from hfdsl.runtime.recovery.streams import JournaledSource
from hfdsl.runtime.running import Running
from hfdsl.testing import BrokenQueueError, check_stream
from hfdsl.testing.deaths import RankDeath
from tests.nightly import examples
from tests.runtime import in_flight_programs, stage_programs
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.queue_programs import Actor, B, chain, deployment, filtered, flow, one_pool, rows
from tests.runtime.stage_model import Case
from tests.runtime.timed_backend import TimedBackend

RETRIES = hf.Retries(every=2)


class DyingBackend(LosingBackend):
    """Simulates processes, which a hook ends: the rank's whole group is replaced, as on Ray."""

    def at_bodies(self, group: str, rank: int, moment: BodyMoment, hook: BodyHook) -> None:
        """Lose the group where the hook raises."""

        def lose(plan: str, step: int, label: str) -> None:
            try:
                hook(plan, step, label)
            except LostProcessError:
                if self._gone is None:
                    self._gone, self._rank = group, rank
                    self._losses.lost.append(group)
                raise

        super().at_bodies(group, rank, moment, lose)

    def lost_ranks(self, wait: float) -> Mapping[str, Sequence[int]]:
        """The rank that a hook has ended."""
        return {} if self._gone is None else {self._gone: [self._rank]}


class Launches:
    """Launches of a plan, with retries on processes that are replaced, and what they have lost."""

    def __init__(self, plan: Any, retries: hf.Retries | None = RETRIES) -> None:
        self._plan, self._retries, self.losses = plan, retries, Losses({})

    def __call__(self) -> Running:
        def lowering(plan: Any, seed: int, **_: Any) -> Any:
            return DyingBackend(plan, seed, self.losses)

        running: Running = self._plan.launch(lowering, seed=7, retries=self._retries)
        return running


PLANS: dict[str, Callable[[], Any]] = {
    "wait": lambda: flow.given(lag=2).compile(deployment(), dims={B: 4}),
    "in a row": lambda: chain.given(first=1, second=2).compile(deployment(), dims={B: 4}),
    "one pool": lambda: filtered.compile(one_pool(), dims={B: 8}),
    "no queue": lambda: flow.given(lag=None).compile(deployment(), dims={B: 4}),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("retries", [RETRIES, hf.Retries(every=None), None])
def test_laws_hold_where_a_rank_dies(name: str, retries: hf.Retries | None) -> None:
    launch, tries = Launches(PLANS[name](), retries), examples(8)
    check_stream(launch, rows(7, size=8 if name == "one pool" else 4), tries=tries, interruptions=["kill"])
    assert len(launch.losses.lost) == tries, "every rank that was to die has died"


@pytest.mark.parametrize("late", ["drop", "refill", "mask"])
@pytest.mark.parametrize("retries", [RETRIES, None])
def test_laws_hold_where_groups_are_late_and_a_rank_dies(late: Late, retries: hf.Retries | None) -> None:
    case = Case(late, 1, 1, 2, 2, ((1, 9), (2, 1)), (1,), 8)
    losses = Losses({})

    def launch() -> Running:
        return case.launched(lambda plan, seed, **_: DyingBackend(plan, seed, losses), retries)

    check_stream(launch, case.loader(), tries=examples(8), seconds=case.seconds)
    assert len(losses.lost) == 2 * examples(8), "once without durations, and once with them"


def test_calls_of_the_local_backend_raise() -> None:
    plan = PLANS["wait"]()
    check_stream(lambda: plan.launch(seed=7), rows(8), tries=examples(8), interruptions="kill")  # type: ignore[arg-type]


def timed_plan(late: Late) -> Any:
    deployment = stage_programs.stage_deployment()
    return stage_programs.deciding.given(late=late).compile(deployment, dims={stage_programs.B: 4})


def timed_launch(late: Late) -> Callable[[], Running]:
    plan = timed_plan(late)
    seconds = {"engine.generate": stage_programs.GivenSeconds([[1, 9]])}
    return lambda: plan.launch(lambda plan, seed, **_: TimedBackend(plan, seed, seconds), seed=7)


@pytest.mark.parametrize("late", ["drop", "refill"])
def test_a_run_that_decides_by_time_keeps_the_laws_from_its_checkpoint_on(late: Late) -> None:
    check_stream(timed_launch(late), stage_programs.prompts(8, 4), tries=examples(8))


# -- planted defects -------------------------------------------------------------------------------------------------


class Forgetful(Actor):
    """Its updates are not in its state."""

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Nothing."""


@pytest.mark.parametrize("retries", [RETRIES, None])
def test_a_state_that_is_not_loaded_is_found(retries: hf.Retries | None) -> None:
    plan = flow.compile(deployment(actor=Forgetful), dims={B: 4})
    with pytest.raises(
        BrokenQueueError, match=r"a run with rank \d of '\w+' killed as a body of step \d .* gave another"
    ):
        check_stream(Launches(plan, retries), rows(8), interruptions=["kill"], tries=8)


def without_restoring(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss, the surviving ranks keep the states to which they have trained the steps that are repeated."""
    monkeypatch.setattr(Recovery, "_restore", lambda recovery, restore: None)


def test_a_step_that_is_trained_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without_restoring(monkeypatch)
    with pytest.raises(BrokenQueueError, match=r"a run with rank \d of '\w+' killed .* gave another result"):
        check_stream(Launches(PLANS["wait"]()), rows(8), interruptions=["kill"], tries=8)


def test_a_prompt_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = JournaledSource.next

    def forgets(source: JournaledSource) -> Any:
        if source.source is not None:
            source.again.clear()  # of what was read before the loss, only what a result had been made of is read again
        return original(source)

    monkeypatch.setattr(JournaledSource, "next", forgets)
    with pytest.raises(BrokenQueueError, match=r"killed .* gave (another result|\d results instead of 8)"):
        check_stream(Launches(PLANS["wait"]()), rows(8), interruptions=["kill"], tries=8)


def test_groups_that_are_dispatched_twice_after_a_death_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Running, "load", lambda running, folder: None)
    with pytest.raises(BrokenQueueError, match=r"killed as a body of step \d \w+.*:\ngroup \d was dispatched twice"):
        check_stream(timed_launch("drop"), stage_programs.prompts(8, 4), interruptions=["kill"], tries=8)


# -- processes of Ray, which are killed ------------------------------------------------------------------------------


def on_ray(plan: Any, retries: hf.Retries | None) -> Callable[[], Running]:
    return lambda: plan.launch("ray", seed=7, retries=retries, deadline=60.0)


def test_a_process_that_is_killed_breaks_no_law(ray_cluster: Any) -> None:
    """Rank 1 of the judge, in step 5; a run that takes groups as they end continues with retries."""
    check_stream(
        on_ray(timed_plan("drop"), RETRIES), stage_programs.prompts(8, 4), interruptions=["kill"], tries=1, seed=55
    )


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*HF840:hfdsl.errors.HfWarning")  # of the peers of a killed process
@pytest.mark.parametrize("retries", [RETRIES, None])
@pytest.mark.parametrize("decides", [False, True])
def test_processes_that_are_killed_break_no_law(ray_cluster: Any, retries: hf.Retries | None, decides: bool) -> None:
    if decides:
        check_stream(on_ray(timed_plan("refill"), retries), stage_programs.prompts(8, 4), tries=2)
    else:
        check_stream(on_ray(PLANS["wait"](), retries), rows(8), tries=2)


@pytest.mark.nightly
@pytest.mark.parametrize("late", ["wait", "drop"])
def test_an_engine_that_takes_weights_in_flight_resumes(ray_cluster: Any, late: Late) -> None:
    """No run with retries can repeat when weights arrived."""
    program = in_flight_programs.in_flight.given(lag=3, late=late)
    plan = program.compile(in_flight_programs.flight_deployment(), dims={in_flight_programs.B: 4})
    check_stream(on_ray(plan, None), in_flight_programs.prompts(8, 4), interruptions=["kill"], tries=2)


@pytest.mark.nightly
def test_a_step_that_processes_train_twice_is_found(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of the engine is killed in step 5, and the actor keeps the state from before the steps repeated."""
    without_restoring(monkeypatch)
    with pytest.raises(BrokenQueueError, match=r"rank \d of 'engine' killed as a body of step 5 .* another result"):
        check_stream(on_ray(PLANS["wait"](), RETRIES), rows(8), interruptions=["kill"], tries=1, seed=12)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_a_death_follows_from_the_seed() -> None:
    plan = PLANS["wait"]()
    drawn = [[RankDeath.drawn(plan, 8, Random(seed)) for seed in range(20)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert {(death.group, death.rank) for death in drawn[0]} == {
        ("engine", 0),
        ("engine", 1),
        ("judge", 0),
        ("actor", 0),
        ("actor", 1),
    }
    assert len({death.step for death in drawn[0]}) > 4


def test_a_backend_without_hooks_is_refused() -> None:
    class Bare(DyingBackend):
        at_bodies = None  # type: ignore[assignment]

    plan = PLANS["wait"]()
    assert not isinstance(Bare, HookedBackend)
    with pytest.raises(DefinitionError, match=r"HF921: check_stream: interruptions='kill' needs at_bodies of Bare"):
        check_stream(lambda: plan.launch(lambda plan, seed, **_: Bare(plan, seed, Losses({}))), rows(3))
