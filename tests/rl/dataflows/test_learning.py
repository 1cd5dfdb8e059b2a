"""Every algorithm learns to say seven, or what it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Distance, ImitationMetrics, Outcome
from tests.rl.dataflows.programs import PROGRAMS, SIZES, colocated
from tests.rl.workers.tiny import ACTOR, MODEL, REFERENCE

STEPS = {  # PPO and GRPO learn in tests/rl/workers
    "ppo_adaptive_kl": 8,
    "remax": 24,
    "dr_grpo": 5,
    "gspo": 5,
    "rloo": 7,
    "reinforce_plus_plus": 8,
    "dapo": 12,
    "online_dpo": 9,
    "mutual": 7,
}


def steps(name: str, count: int, deployment: hf.Deployment | None = None) -> list[tuple[Any, ...]]:
    """What the first steps return."""
    torch.set_num_threads(1)
    program = PROGRAMS[name]
    with program.flow.compile(deployment or colocated(program, 1), SIZES).launch("local") as running:
        return [running.step(*program.inputs(step)) for step in range(count)]


@pytest.mark.nightly_besides("gspo")
@pytest.mark.parametrize("name", STEPS)
def test_the_score_rises(name: str) -> None:
    results = steps(name, STEPS[name])
    scores = [[record.score.value for record in step if isinstance(record, Outcome)] for step in results]
    for policy in zip(*scores, strict=True):
        assert sum(policy[-2:]) / 2 > policy[0] + 0.1


def test_a_policy_prefers_the_better_responses_of_a_data_set() -> None:
    results: list[Any] = steps("dpo", 8)
    assert (results[0].correct.value, results[0].margin.value) == (0, 0)  # the policy is the reference
    assert results[-1].correct.value == 1
    assert results[-1].margin.value > 0.1


def test_a_student_comes_nearer_to_its_teacher() -> None:
    pool = hf.ResourcePool([1], use_gpu=False)
    teacher = replace(REFERENCE, model=replace(MODEL, seed=3), temperature=0.1)  # one with opinions
    roles = hf.Deployment(actor=hf.place(w.Actor, ACTOR, pool=pool), teacher=hf.place(w.Reference, teacher, pool=pool))
    distances = [
        record.kl.value for step in steps("distillation", 25, roles) for record in step if isinstance(record, Distance)
    ]
    assert sum(distances[-3:]) / 3 < 0.8 * sum(distances[:3]) / 3


@pytest.mark.nightly
def test_pretraining_is_part_of_safe_rlhf() -> None:
    losses = [
        record.loss.value for step in steps("safe_rlhf", 8) for record in step if isinstance(record, ImitationMetrics)
    ]
    assert losses[-1] < losses[0] - 0.1


def test_all_groups_alike_are_no_error() -> None:
    """A policy that says the same everywhere leaves DAPO nothing to sample from: it trains on by zero."""
    program, pool = PROGRAMS["dapo"], hf.ResourcePool([1], use_gpu=False)
    pleased = w.VerifierConfig(function=f"{__name__}:always")
    roles = hf.Deployment(actor=hf.place(w.Actor, ACTOR, pool=pool), reward=hf.place(w.Verifier, pleased, pool=pool))
    with program.flow.given(buffer=1, longest=100).compile(roles, SIZES).launch("local") as running:
        metrics, outcome = running.step(*program.inputs(0))
    assert (metrics.grad_norm.value, outcome.score.value) == (0.0, 1.0)


def always(response: list[int], task: dict[str, Any]) -> float:
    return 1.0
