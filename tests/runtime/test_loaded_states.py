"""A state that a role loads and does not keep: refused where a later step would read it, and right everywhere else."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import CheckpointError, HfWarning
from hfdsl.runtime.saving.loaded_states import check_loaded_states
from tests.runtime.dying_programs import FOLDER, death
from tests.runtime.loaded_programs import (
    deployment,
    look,
    program,
    queued,
    rows,
    sync_first,
    sync_last,
)

LOST = r"HF908: role 'engine' \(Engine\) loads 'policy', and 'engine.sample' reads it in a later step of '{}'.* but {} "
CALLS = st.tuples(*[st.lists(st.sampled_from(["sync", "sample", "score", "tokenize"]), max_size=3)] * 2).map(
    lambda parts: (*parts[0], "sync", *parts[1])
)


@pytest.fixture(autouse=True)
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a file kills a process."""
    folder = tmp_path / "faults"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


def reads_an_older_step(calls: tuple[str, ...]) -> bool:
    """Whether an engine that is built again before the second step reads another version than one that is not."""

    def versions(loses: bool) -> list[int]:
        held, read = -1, list[int]()
        for step in range(2):
            held = -1 if loses and step == 1 else held
            for call in calls:
                if call == "sync":
                    held = step
                elif call != "tokenize":
                    read.append(held)
        return read

    return versions(loses=True) != versions(loses=False)


@given(CALLS)
def test_what_is_refused_is_what_reads_another_version(calls: tuple[str, ...]) -> None:
    plan = program(calls).compile(deployment())
    refused = pytest.raises(CheckpointError, match="HF908") if reads_an_older_step(calls) else nullcontext()
    with refused:
        check_loaded_states([plan], [plan], "a checkpoint")


def test_a_checkpoint_and_a_recording_without_the_state_are_refused(tmp_path: Path) -> None:
    with sync_last.compile(deployment()).launch("local") as running:
        with pytest.raises(CheckpointError, match=LOST.format("sync_last", "a checkpoint")):
            running.save(tmp_path / "saved")
        with pytest.raises(CheckpointError, match=LOST.format("sync_last", "a checkpoint")):
            running.save_in_background(tmp_path / "saved")
        with (
            pytest.raises(CheckpointError, match=LOST.format("sync_last", "a recording")),
            running.record(tmp_path / "recording"),
        ):
            pass
    assert not (tmp_path / "recording").exists()


def test_retries_that_could_not_give_the_state_back_are_refused_before_a_process_starts() -> None:
    def backend(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was started")

    with pytest.raises(CheckpointError, match=LOST.format("sync_last", "the copy of states of hf.Retries")):
        sync_last.compile(deployment()).launch(backend, retries=hf.Retries())
    with pytest.raises(CheckpointError, match=r"HF908: role 'engine' \(Engine\) loads 'policy' once a step"):
        queued.compile(deployment()).launch(backend, retries=hf.Retries())  # a copy is made while a stream runs
    with pytest.raises(AssertionError, match="it was started"):  # these repeat all steps from the constructors on
        sync_last.compile(deployment()).launch(backend, retries=hf.Retries(every=None))


def test_another_plan_that_reads_the_state_of_the_step_before(tmp_path: Path) -> None:
    plan = sync_first.compile(deployment())
    with plan.launch("local") as running:
        looking = running.also(look.compile(plan.deployment))
        running.step(rows(0))
        with pytest.raises(CheckpointError, match=LOST.format("look", "a checkpoint")):
            running.save(tmp_path / "saved")
        with pytest.raises(CheckpointError, match=LOST.format("look", "a recording")), looking.record(tmp_path / "r"):
            pass
        with running.record(tmp_path / "recording"):  # of a plan that loads what it reads
            running.step(rows(1))


def test_a_program_that_syncs_first_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    plan, saved = sync_first.compile(deployment()), tmp_path / "saved"
    saved.mkdir()
    with plan.launch("local") as running:
        running.step(rows(0))
        running.save(saved)
        expected = running.step(rows(1)).x.tensor.tolist()
    with plan.launch("local") as running:
        running.load(saved)
        assert running.step(rows(1)).x.tensor.tolist() == expected


@pytest.mark.nightly
def test_an_engine_lost_before_its_sync_costs_no_value(faults: Path) -> None:
    plan = sync_first.compile(deployment())

    def results(running: Any) -> list[list[float]]:
        return [running.step(rows(step)).x.tensor.tolist() for step in range(3)]

    with plan.launch("local") as running:
        expected = results(running)
    death(faults, "engine.sample", 0, 2)
    with plan.launch("ray", worker_env={FOLDER: str(faults)}, retries=hf.Retries(every=1)) as running:
        with pytest.raises(CheckpointError, match=LOST.format("look", "the copy of states of hf.Retries")):
            running.also(look.compile(plan.deployment))
        with pytest.warns(HfWarning, match="HF840: step 2 of .* lost rank 0 of 'engine'"):
            assert results(running) == expected
    assert not list(faults.iterdir())
