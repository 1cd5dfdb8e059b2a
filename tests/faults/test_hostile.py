"""Bodies that exit, interrupt, or raise what cannot be read or sent: each is a short error with role and rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import LostProcessError, RoleError
from hfdsl.protocols.raised import MESSAGE_CHARACTERS, TRACE_CHARACTERS
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.rank.role_workers import RoleWorkers
from tests.faults.hostile_programs import HOSTILE, Rows, computed, deployment, judged

WAYS = range(len(HOSTILE))
MOST = MESSAGE_CHARACTERS + TRACE_CHARACTERS + 500
LOCAL: Any = "local"


def rows(how: int) -> Rows:
    return Rows(how=torch.full((4,), how))


def check(error: RoleError, where: str, how: int) -> None:
    """An error of the role's own, by name, that ends no loop and no program of the caller, and is short."""
    assert error.code == "HF806"
    assert re.match(rf"{where}: {re.escape(HOSTILE[how][0])}", error.message)
    assert len(str(error)) < MOST
    assert isinstance(error, Exception)
    assert not isinstance(error, (LostProcessError, SystemExit, KeyboardInterrupt, StopIteration))


@pytest.mark.parametrize("how", WAYS)
def test_a_body_in_a_thread_of_the_caller(how: int) -> None:
    with judged.compile(deployment()).launch("local") as running:
        with pytest.raises(RoleError) as error:
            running.step(rows(how))
        check(error.value, "'judge.score' raised on rank 1 in step 0", how)


@pytest.mark.parametrize("how", WAYS)
def test_a_function_in_the_main_thread_of_the_caller(how: int) -> None:
    expected = KeyboardInterrupt if HOSTILE[how][0].startswith("KeyboardInterrupt") else RoleError
    with judged.compile(deployment()).launch("local") as first:
        running = first.also(computed.compile(first.plan.deployment))
        with pytest.raises(expected) as error:
            running.step(rows(len(HOSTILE) + how))
    if isinstance(error.value, RoleError):
        assert re.match(rf"'doubled' raised on rank [01] in step 0: {re.escape(HOSTILE[how][0])}", error.value.message)


@pytest.mark.parametrize("how", WAYS)
def test_a_constructor_and_a_state(tmp_path: Path, how: int) -> None:
    with pytest.raises(RoleError) as error:
        judged.compile(deployment(construction=how)).launch("local")
    check(error.value, r"'judge.__init__ \(Judge\)' raised on rank 0", how)
    with judged.compile(deployment(state=how)).launch("local") as running, pytest.raises(RoleError) as error:
        running.save(tmp_path)
    check(error.value, r"'judge.state \(Judge\)' raised on rank 0", how)


@pytest.mark.nightly
def test_bodies_in_processes_of_their_own(ray_cluster: Any) -> None:
    """The processes outlive each of them: only the run on them is broken."""
    with judged.compile(deployment()).launch("ray", deadline=120.0) as running:
        for how in WAYS:
            with pytest.raises(RoleError) as error:
                running.step(rows(how))
            check(error.value, f"'judge.score' raised on rank 1 in step {how}", how)
            running._processes.broken, running._processes.steps["judged"] = None, how + 1
        assert running.step(rows(-1)).how.tensor.tolist() == [-1] * 4
    with pytest.raises(RoleError) as error:  # a copy without a state would be one of another run
        judged.compile(deployment(state=0)).launch("ray", deadline=120.0, retries=hf.Retries())
    check(error.value, r"'judge.state \(Judge\)' raised on rank [01]", 0)


def test_states_that_could_not_be_taken_are_no_copy() -> None:
    place = deployment(state=0)
    workers = RoleWorkers(place, RankContext(0, 2, 0, 2), 0, None)
    workers.construct("judge")
    for copy in (workers.copy_states, lambda: workers.save("folder")):
        with pytest.raises(RoleError) as raised:
            workers.take_state("judge", False)
        with pytest.raises(RoleError) as error:
            copy()
        assert error.value is raised.value
    workers["judge"].in_state = -1
    workers.take_state("judge", False)
    assert set(workers.copy_states()) == {"judge"}
