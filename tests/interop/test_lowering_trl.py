"""Runs of TRL as runs of hfdsl: their completions against a simulation, and what has no counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfdsl.interop.lowering import NotLowered
from tests.interop.lowering_runs import assert_the_same, lowered, plan_of
from tests.interop.test_trl import command
from tests.nightly import examples


@settings(max_examples=examples(12), deadline=None)
@given(
    rows=st.integers(1, 4),
    accumulated=st.integers(1, 3),
    updates=st.integers(1, 3),
    iterations=st.integers(1, 2),
    group=st.sampled_from([2, 4, 8]),
    beta=st.sampled_from([0.0, 0.04]),
    loss=st.sampled_from(["grpo", "dapo", "dr_grpo", "bnpo"]),
    scale=st.sampled_from(["group", "none"]),
)
def test_the_completions_of_trl_are_those_of_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    accumulated: int,
    updates: int,
    iterations: int,
    group: int,
    beta: float,
    loss: str,
    scale: str,
) -> None:
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * updates,
        "num_iterations": iterations,
        "num_generations": group,
        "beta": beta,
        "loss_type": loss,
        "scale_rewards": scale,
    }
    run = lowered("trl", command(**arguments))
    micro_batches = [[process] * rows for _ in range(accumulated * updates) for process in range(8)]
    generation = sum(map(len, micro_batches))
    plan = plan_of(run)
    assert {dim.__name__: size for dim, size in plan.dims.items()}["B"] * group == generation
    calls = [step for step in plan.steps if step.label.startswith("actor.update")]
    assert len(calls) == updates * iterations
    assert any("reference" in other.roles for other in plan.groups) == (beta > 0)
    assert_the_same(run, tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_type": "sapo"}, "losses for grpo, bnpo"),
        ({"scale_rewards": "batch"}, "scales rewards by those of a group"),
        ({"steps_per_generation": 2}, "2 micro-batches of a generation are not whole optimizer steps of 4"),
    ],
)
def test_what_of_trl_has_no_counterpart(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NotLowered, match=words):
        lowered("trl", command(**changes))


def test_a_script_of_your_own_may_have_other_defaults() -> None:
    with pytest.raises(NotLowered, match=r"HF982.*'my_grpo.py' may set it"):
        lowered("trl", command("python my_grpo.py"))


def test_rloo(tmp_path: Path) -> None:
    run = lowered("trl", command("trl rloo"))
    assert run.fields["options.advantages"].value == "leave-one-out"
    assert run.fields["options.kl"].value == 0.05
    assert_the_same(run, tmp_path)
