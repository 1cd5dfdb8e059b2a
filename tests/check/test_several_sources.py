"""HF757 against runs: prompts of one source pile up where the check says so, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.check.rules.queues import sources
from hfdsl.protocols.queueing import Late
from tests.runtime import in_flight_programs
from tests.runtime.network_model import Network, deployment
from tests.runtime.network_programs import Library, Lines, Pages, Reader, joined
from tests.runtime.stage_model import decisions
from tests.runtime.stage_programs import Actor, B, Engine, Judge, Prompts, Scored, Trained
from tests.runtime.test_stage_networks import JOINED


def held(case: Network) -> list[int]:
    """The batches of the loader that wait in the driver, at each result."""
    with case.launched() as running:
        stream: Any = running._stream
        results = running.stream(case.loader(), seconds=case.seconds)
        return [len(stream.begun._run.prompts.batches) for _ in results]


def codes(lates: tuple[Late, Late], lags: tuple[int, int] = (1, 2), **options: Any) -> list[str]:
    program = joined.given(late=lates, lags=lags, **options)
    return [finding.code for finding in program.check(deployment("joined"), dims={B: 2}).errors]


@pytest.mark.parametrize("lates", [("drop", "wait"), ("drop", "drop")])
def test_a_source_that_drops_beside_another_one_is_refused_and_its_run_grows(
    lates: tuple[Late, Late], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert codes(lates) == ["HF757"] * lates.count("drop")
    monkeypatch.setattr(sources, "_source_queues", lambda context: [])
    short, long = (max(held(replace(JOINED, lates=lates, steps=steps))) for steps in (20, 80))
    assert long > 2 * short, "the longer the run, the more batches wait"


@pytest.mark.parametrize("lates", [("refill", "wait"), ("mask", "wait"), ("wait", "refill")])
def test_a_source_that_keeps_all_groups_is_accepted_and_its_run_does_not_grow(lates: tuple[Late, Late]) -> None:
    assert codes(lates) == []
    short, long = (max(held(replace(JOINED, lates=lates, steps=steps))) for steps in (20, 80))
    assert long <= short + 1


def test_without_a_lag_nothing_is_dropped_in_front_of_an_update(tmp_path: Path) -> None:
    pool = hf.ResourcePool([2], use_gpu=False)
    roles = {"engine": Engine, "judge": Judge, "library": Library, "actor": Reader}
    together = hf.Deployment(**{name: hf.place(role, pool=pool) for name, role in roles.items()})
    plan = joined.given(late=("drop", "wait"), lags=(0, 2)).compile(together, dims={B: 2})
    case = replace(JOINED, lates=("drop", "wait"), lags=(0, 2), batches=(2, 2), steps=12)
    with plan.launch(seed=3) as running:
        assert len(list(running.stream(case.loader(), seconds=case.seconds, log=tmp_path / "log"))) == case.steps
    assert not [decision for decision in decisions(tmp_path / "log") if decision.kind == "drop"]


def test_the_same_prompts_again_is_a_fix_that_was_tried() -> None:
    [finding] = joined.given(late=("drop", "wait"), lags=(1, 2)).check(deployment("joined"), dims={B: 2}).errors
    assert 'dispatch the same prompts again: late="refill"' in str(finding)


class Notes(Library):
    @hf.register(hf.Dispatch.DP_PROTO)
    def note(self, lines: Lines) -> Lines:
        """The same lines."""
        return lines


@hf.dataflow
def filters(
    prompts: Prompts,
    pages: Pages,
    engine: Engine,
    judge: Judge,
    library: Notes,
    actor: Actor,
    *,
    late: tuple[Late, Late] = ("wait", "wait"),
) -> tuple[Trained, Lines]:
    """A filter in front of the queue of one of two sources."""
    samples = engine.generate(prompts)
    scored = hf.merge(Scored, prompts, samples, judge.score(samples))
    kept = hf.filter(scored, judge.choose(prompts, samples, drops=5).keep)
    trained = actor.update(hf.queue(kept, lag=2, late=late[0]))
    hf.sync(actor, engine)
    return trained, library.note(hf.queue(library.lines(pages), lag=2, late=late[1]))


def filter_report(late: tuple[Late, Late]) -> hf.Report:
    return filters.given(late=late).check(places(engine=Engine, judge=Judge, library=Notes, actor=Actor), dims={B: 2})


def places(**roles: type[hf.Worker]) -> hf.Deployment:
    pools = {name: hf.ResourcePool([1], use_gpu=False, name=name) for name in roles}
    return hf.Deployment(**{name: hf.place(role, pool=pools[name]) for name, role in roles.items()})


@pytest.mark.parametrize("late", [("wait", "refill"), ("refill", "wait"), ("drop", "refill")])
def test_a_filter_in_front_of_one_source_is_refused(late: tuple[Late, Late]) -> None:
    report = filter_report(late)
    assert [finding.code for finding in report.errors] == ["HF757"], str(report)
    same_step = 'train what the filter has kept of one step: late="wait"'
    assert (same_step in str(report)) is (late == ("refill", "wait")), str(report)


def test_a_filter_in_front_of_stages_that_step_together_is_accepted() -> None:
    assert filter_report(("wait", "wait")).ok


class Odd(hf.Batch):
    keep: hf.bool_[in_flight_programs.B]


@hf.function
def odd(samples: in_flight_programs.Samples) -> Odd:
    """Which samples have an odd number."""
    return Odd(keep=samples.number.tensor % 2 == 1)


@hf.dataflow
def in_flight(
    prompts: in_flight_programs.Prompts,
    pages: Pages,
    engine: in_flight_programs.Engine,
    actor: in_flight_programs.Actor,
    library: Notes,
) -> tuple[in_flight_programs.Trained, Lines]:
    """Both queues wait in order, and decide, since weights arrive at times that a log has to keep."""
    samples = engine.generate(prompts)
    trained = actor.update(hf.queue(hf.filter(samples, odd(samples).keep), lag=2, late="wait"))
    hf.sync(actor, engine, during="generate")
    return trained, library.note(hf.queue(library.lines(pages), lag=2, late="wait"))


def test_a_filter_beside_another_source_is_refused_where_weights_arrive_in_flight() -> None:
    report = in_flight.check(dims={in_flight_programs.B: 4, B: 4})
    assert {finding.code for finding in report.errors} == {"HF757", "HF765"}, str(report)
