"""One run has one stream of steps, whatever loops over it, and a log is of one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import CheckpointError, HfError, WiringError
from hfdsl.plan.plan import Plan
from hfdsl.protocols.queueing import Late
from hfdsl.runtime.running import Running
from tests.runtime.losing_backend import LosingBackend, Losses
from tests.runtime.stage_model import bits
from tests.runtime.stage_programs import B, deciding, prompts, stage_deployment

BOTH = pytest.mark.parametrize("late", ["wait", "drop"])
"""Stages that follow each other step by step, and a dynamic queue."""


def launched(late: Late) -> Running:
    return deciding.given(late=late).compile(stage_deployment(), dims={B: 4}).launch(seed=3)


def lossless(plan: Plan, seed: int, **_: Any) -> LosingBackend:
    return LosingBackend(plan, seed, Losses({}))


def numbers(results: Any) -> list[int]:
    return [number for trained in results for number in trained.number.tensor.tolist()]


@BOTH
def test_a_later_stream_takes_over_the_steps_of_an_earlier_one(late: Late) -> None:
    with launched(late) as running:
        earlier, trained = running.stream(prompts(6, 4)), list[Any]()
        trained.append(next(earlier))
        read = running.batches_read
        later = running.stream(prompts(6, 4, read))
        trained.append(next(later))
        with pytest.raises(HfError, match=r"HF821: this stream of 'deciding' is over: a later running\.stream"):
            next(earlier)
        trained += later
        assert numbers(trained) == list(range(24)), "every prompt once"


@BOTH
@pytest.mark.parametrize("retries", [None, hf.Retries(every=2)])
def test_each_stream_writes_its_decisions_to_its_own_log(
    late: Late, retries: hf.Retries | None, tmp_path: Path
) -> None:
    plan = deciding.given(late=late).compile(stage_deployment(), dims={B: 4})
    with plan.launch(lossless, seed=3, retries=retries) as running:
        earlier = running.stream(prompts(6, 4), log=tmp_path / "earlier")
        next(earlier)
        before = (tmp_path / "earlier").read_text()
        assert len(list(running.stream(prompts(6, 4, running.batches_read), log=tmp_path / "later"))) == 5
        assert (tmp_path / "earlier").read_text() == before
        assert len(before.splitlines()) + len((tmp_path / "later").read_text().splitlines()) == running.decisions
        with pytest.raises(HfError, match="HF821"):
            next(earlier)


def test_a_loader_that_uses_its_own_run_ends_no_stream() -> None:
    with launched("wait") as running:

        def loader() -> Iterator[Any]:
            for batch in prompts(3, 4):
                with pytest.raises(HfError, match="HF821: a stream of 'deciding' was called during a stream of"):
                    next(running.stream(prompts(1, 4)))
                yield batch

        assert numbers(running.stream(loader())) == list(range(12))


@BOTH
def test_a_loop_does_not_go_on_with_the_steps_before_a_load(late: Late, tmp_path: Path) -> None:
    with launched(late) as running:
        results = running.stream(prompts(6, 4))
        next(results)
        running.save(tmp_path)
        read = running.batches_read
        next(results)
        running.load(tmp_path)
        with pytest.raises(HfError, match=r"HF821: .* a running\.load"):
            next(results)
        assert numbers(running.stream(prompts(6, 4, read))) == list(range(4, 24))


@BOTH
def test_a_replay_stops_where_the_loop_of_the_run_was_left(late: Late, tmp_path: Path) -> None:
    with launched(late) as running:
        for _ in running.stream(prompts(6, 4), log=tmp_path / "log"):
            if running.steps == 2:
                break
    with launched(late) as running:
        assert numbers(running.stream(prompts(6, 4), replay=tmp_path / "log")) == list(range(8))


@BOTH
def test_a_log_of_two_loaders_is_repeated_with_one(late: Late, tmp_path: Path) -> None:
    """The queues are emptied at the end of the first loader: an update comes before a dispatch that has a place."""
    log, again = tmp_path / "log", tmp_path / "again"
    with launched(late) as running:
        results = list(running.stream(prompts(4, 4), log=log))
        results += running.stream(prompts(7, 4, 4), log=log)
    with launched(late) as running:
        assert bits(list(running.stream(prompts(7, 4), replay=log, log=again))) == bits(results)
    assert again.read_text() == log.read_text()


@BOTH
@pytest.mark.parametrize("retries", [None, hf.Retries(every=2)])
def test_the_log_of_a_whole_run_is_repeated_from_where_a_run_is(
    late: Late, retries: hf.Retries | None, tmp_path: Path
) -> None:
    log, plan = tmp_path / "log", deciding.given(late=late).compile(stage_deployment(), dims={B: 4})
    with launched(late) as running:
        results = bits(list(running.stream(prompts(7, 4), log=log)))
    with plan.launch(lossless, seed=3, retries=retries) as running:
        repeated = [next(running.stream(prompts(7, 4), replay=log))]
        running.save(tmp_path / "saved")
        read = running.batches_read
        repeated += running.stream(prompts(7, 4, read), replay=log)
        assert bits(repeated) == results
    with plan.launch(lossless, seed=3, retries=retries) as running:
        running.load(tmp_path / "saved")
        assert bits(list(running.stream(prompts(7, 4, read), replay=log))) == results[1:]


@BOTH
def test_a_log_that_ends_before_the_run_is_refused(late: Late, tmp_path: Path) -> None:
    with launched(late) as running:
        next(running.stream(prompts(7, 4), log=tmp_path / "log"))
        list(running.stream(prompts(7, 4, running.batches_read)))
        text = (
            r"HF761: the log to repeat has \d decisions, and this run has made \d+ before; a log can be repeated only"
        )
        with pytest.raises(CheckpointError, match=text):
            next(running.stream(prompts(9, 4, 7), replay=tmp_path / "log"))


@BOTH
def test_a_replay_whose_loader_ends_early_says_so(late: Late, tmp_path: Path) -> None:
    with launched(late) as running:
        list(running.stream(prompts(6, 4), log=tmp_path / "log"))
    text = r"HF761: .* where .*log .*has .*dispatch.*; give the stream as many batches as the run that wrote the log"
    with launched(late) as running, pytest.raises(CheckpointError, match=text):
        list(running.stream(prompts(3, 4), replay=tmp_path / "log"))


@BOTH
def test_a_log_of_several_runs_is_refused(late: Late, tmp_path: Path) -> None:
    for _ in range(2):
        with launched(late) as running:
            list(running.stream(prompts(3, 4), log=tmp_path / "log"))
    text = "HF761: the log dispatches group 0 of 'queue' twice: it has the decisions of several runs, .* of its own$"
    with launched(late) as running, pytest.raises(CheckpointError, match=text):
        running.stream(prompts(3, 4), replay=tmp_path / "log")


@BOTH
def test_the_log_of_a_run_that_was_killed_is_cut_to_the_decisions_of_its_checkpoint(late: Late, tmp_path: Path) -> None:
    log, given = tmp_path / "log", prompts(6, 4)
    with launched(late) as running:
        stream = running.stream(given, log=log)
        next(stream)
        running.save(tmp_path / "saved")
        read = running.batches_read
        next(stream)  # and then the run is killed
    lines = log.read_text("utf-8").splitlines(keepends=True)
    with launched(late) as running:
        running.load(tmp_path / "saved")
        assert running.decisions < len(lines)
        kept = "".join(lines[: running.decisions])
        rest = numbers(running.stream(given[read:], log=log))
    with (
        launched(late) as running,
        pytest.raises(CheckpointError, match=r"cut that file to its first running\.decisions"),
    ):
        running.stream(given, replay=log)
    log.write_text(kept, "utf-8")
    with launched(late) as running:
        running.load(tmp_path / "saved")
        assert numbers(running.stream(given[read:], log=log)) == rest
    with launched(late) as running:
        assert numbers(running.stream(given, replay=log))[-len(rest) :] == rest


@pytest.mark.parametrize("what", [4, None, "prompts", prompts(1, 4)[0], {"prompts": prompts(1, 4)[0]}])
def test_what_is_no_loader_is_refused_by_its_type(what: Any) -> None:
    with launched("wait") as running:
        with pytest.raises(
            WiringError, match=f"HF206: 'deciding' streams from a loader, .* got {type(what).__name__};"
        ):
            running.stream(what)
        with pytest.raises(WiringError, match="HF206: the loader of 'deciding' yielded str"):
            next(running.stream(["prompts"]))  # type: ignore[list-item]
        assert numbers(running.stream(iter(prompts(1, 4)))) == list(range(4))
