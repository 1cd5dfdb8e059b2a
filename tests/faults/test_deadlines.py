"""A call that takes longer than its own deadline ends the run, and every other call has the time that it needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import DeadlineError, HfError, ResourceError
from hfdsl.plan.deadlines import longest_deadline, step_deadline
from tests.faults.deadline_programs import judging, places, shared, weighing, weighing_both
from tests.faults.failing_programs import FOLDER, Actor, Prompts, deployment, ppo, set_deadline

PROMPTS = Prompts(x=torch.arange(4.0))

LAUNCH = 600.0
"""The launch's deadline, which no test waits for."""


def test_the_nearest_deadline_counts() -> None:
    answer, score = judging.compile(places(deadline=60.0)).steps
    plan = judging.compile(places(deadline=60.0))
    declared = {step.label: step_deadline(plan, step) for step in plan.steps}
    assert {label: limit.seconds for label, limit in declared.items() if limit} == {
        answer.label: 60.0,
        score.label: 5.0,
    }
    assert longest_deadline(plan.deployment, 10.0) == 60.0
    assert longest_deadline(plan.deployment, 100.0) == 100.0
    without = judging.compile(places())
    assert step_deadline(without, without.steps[0]) is None


@pytest.mark.parametrize(
    ("judge", "other", "seconds"),
    [(None, None, None), (60.0, None, None), (None, 60.0, None), (60.0, 90.0, 90.0), (90.0, 60.0, 90.0)],
)
def test_a_function_has_the_deadline_of_the_roles_whose_processes_run_it(
    judge: float | None, other: float | None, seconds: float | None
) -> None:
    plan = weighing_both.compile(shared(judge, other))
    weighed = plan.steps[-1]
    assert [step.role for step in plan.steps] == ["other", "judge", None]
    limit = step_deadline(plan, weighed)
    assert (limit and limit.seconds) == seconds
    if limit:
        assert limit.set_by == "hf.place(Judge, ..., deadline=...)"
    alone = weighing.compile(places(deadline=60.0))
    assert [limit and limit.seconds for limit in (step_deadline(alone, step) for step in alone.steps)] == [60, 5, 60]


def hung(failure: pytest.ExceptionInfo[DeadlineError], rank: int, body: str) -> None:
    """The rank that hangs is the first in the list."""
    first, *_ = [line for line in failure.value.message.splitlines() if line.startswith("  rank ")]
    assert first.startswith(f"  rank {rank} of ")
    assert f": runs {body} (" in first


def test_a_constructor_that_hangs_ends_at_the_deadline_of_its_role(tmp_path: Path, ray_cluster: Any) -> None:
    (tmp_path / "actor.__init__ 1").write_text("hang")
    plan = ppo.compile(deployment("colocated", actor_deadline=5.0))
    with pytest.raises(DeadlineError, match=r"^HF807: 'actor.__init__' was not done after 5 s on ") as failure:
        plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=LAUNCH)
    assert "hf.place(Actor, ..., deadline=...) sets this" in failure.value.message
    hung(failure, 1, "__init__")


@pytest.mark.nightly
def test_states_that_hang_end_at_the_deadline_of_their_role(tmp_path: Path, ray_cluster: Any) -> None:
    faults, saved = tmp_path / "faults", tmp_path / "saved"
    faults.mkdir()
    saved.mkdir()
    plan = ppo.compile(deployment("colocated", actor_deadline=10.0))
    with plan.launch("ray", worker_env={FOLDER: str(faults)}, deadline=LAUNCH) as running:
        running.step(PROMPTS)
        running.save(saved)
        (faults / "actor.load_state 0").write_text("hang")
        with pytest.raises(DeadlineError, match=r"^HF807: 'actor.load_state' was not done after 10 s on ") as failure:
            running.load(saved)
        hung(failure, 0, "load_state")
        with pytest.raises(HfError, match="HF808"):
            running.step(PROMPTS)
    again = tmp_path / "again"
    again.mkdir()
    with plan.launch("ray", worker_env={FOLDER: str(faults)}, deadline=LAUNCH) as running:
        (faults / "actor.state 1").write_text("hang")
        with pytest.raises(DeadlineError, match=r"^HF807: 'actor.state' was not done after 10 s on ") as failure:
            running.save(again)
        hung(failure, 1, "state")


@pytest.mark.nightly
@pytest.mark.parametrize("relay", [False, True])
def test_a_method_ends_at_its_own_deadline(tmp_path: Path, ray_cluster: Any, relay: bool) -> None:
    plan = judging.compile(places(), optimize=hf.Optimize(relay=relay))
    with plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=LAUNCH) as running:
        (tmp_path / "judge.score 1").write_text("hang")
        with pytest.raises(DeadlineError, match=r"^HF807: 'judge.score' was not done in step 0 after 5 s") as failure:
            running.step(PROMPTS)
        assert "register(..., deadline=...) of score sets this" in failure.value.message
        hung(failure, 1, "score")


@pytest.mark.nightly
@pytest.mark.parametrize("relay", [False, True])
@pytest.mark.parametrize("how", ["SIGSTOP", "hang"])
def test_a_function_that_does_not_end_is_named_at_the_deadline_of_its_processes(
    tmp_path: Path, ray_cluster: Any, how: str, relay: bool
) -> None:
    plan = weighing.compile(places(deadline=6.0), optimize=hf.Optimize(relay=relay))
    with plan.launch("ray", worker_env={FOLDER: str(tmp_path)}, deadline=LAUNCH) as running:
        running.step(PROMPTS)
        (tmp_path / "weighed 0").write_text(how)
        with pytest.raises(
            DeadlineError, match=r"^HF807: 'weighed' was not done in step 1 after 6 s on 1 of 1 "
        ) as failure:
            running.step(PROMPTS)
    assert "hf.place(Judge, ..., deadline=...) sets this" in failure.value.message
    [line] = [line for line in failure.value.message.splitlines() if line.startswith("  rank ")]
    stack = r"gave no stack" if how == "SIGSTOP" else r"runs weighed \(.*deadline_programs.py"
    assert re.match(rf"  rank 0 of 'judge' \(pid \d+ on node .*\) in 'weighed', called .*{stack}", line), line


@pytest.mark.nightly
def test_a_call_may_take_longer_than_the_launch_allows_a_step(tmp_path: Path, ray_cluster: Any) -> None:
    with judging.compile(places(deadline=300.0)).launch("ray", worker_env={FOLDER: str(tmp_path)}) as running:
        expected = running.step(PROMPTS).score.tensor.tolist()
        set_deadline(running, 0.2)
        (tmp_path / "judge.answer 1").write_text("slow")
        assert running.step(PROMPTS).score.tensor.tolist() == expected


@pytest.mark.parametrize("wrong", [0, -1.5, float("nan"), float("inf"), True, "30"])
def test_deadlines_that_are_none(wrong: Any) -> None:
    with pytest.raises(ResourceError, match=r"HF931: register: deadline= must be a positive number of seconds"):
        register(Dispatch.DP_PROTO, deadline=wrong)
    pool = hf.ResourcePool([2], use_gpu=False)
    with pytest.raises(ResourceError, match=r"HF931: place\(Actor\): deadline= must be a positive number of seconds"):
        hf.place(Actor, pool=pool, deadline=wrong)
    with pytest.raises(ResourceError, match=r"HF931: launch\(deadline=\) must be a positive number of seconds"):
        judging.compile(places()).launch("local", deadline=wrong)
