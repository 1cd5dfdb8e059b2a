"""Widths at run time: columns are as wide as the plan says of their dims, in the first step, on every backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import WiringError
from tests.runtime.width_programs import (
    Actor,
    B,
    H,
    P,
    Prompts,
    R,
    embedding,
    generating,
    generating_by_first,
    scoring,
    thinking,
)

BACKENDS = pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=pytest.mark.ray)])


def step(program: Any, dims: dict[Any, int], backend: str = "local", **sizes: Any) -> Any:
    deployment = hf.Deployment(actor=hf.place(Actor, **sizes, pool=hf.ResourcePool([2], use_gpu=False)))
    with program.compile(deployment, dims).launch(backend) as running:
        return running.step(Prompts(ids=torch.zeros(4, 3, dtype=torch.int64)))


@BACKENDS
def test_a_width_that_is_not_planned_ends_the_first_step(backend: str, request: pytest.FixtureRequest) -> None:
    if backend == "ray":
        request.getfixturevalue("ray_cluster")
    message = r"HF805: 'actor.generate' returned column 'log_probs' of width 8 on rank \d, where the plan has R = 6"
    with pytest.raises(WiringError, match=message):
        step(generating, {R: 6}, backend, ids=11, log_probs=8)


@pytest.mark.parametrize(
    ("program", "sizes", "message"),
    [
        (generating, {"ids": 8}, r"'actor.generate' returned column 'ids' of width 8 on rank 0, .* P\+R = 9"),
        (generating, {"log_probs": 5}, "column 'log_probs' of width 5 on rank 0, where the plan has R = 6"),
        (
            generating_by_first,
            {"log_probs": 5},
            "column 'log_probs' of width 5 from its collect .* has R = 6",
        ),
        (thinking, {"longest": 7}, "column 'tokens' with a row of 7 on rank 0, where the plan has R = 6"),
        (embedding, {"hidden": 5}, "column 'hidden' of width 5 on rank 0, where the plan has H = 4"),
        (scoring, {"log_probs": 7}, "'actor.score' returned a width of 7 on rank 0, where the plan has R = 6"),
    ],
)
def test_every_column_with_a_planned_dim_is_held_to_it(program: Any, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(WiringError, match=message):
        step(program, {R: 6, H: 4}, **sizes)


@pytest.mark.parametrize("program", [generating, generating_by_first, thinking, embedding, scoring])
def test_widths_as_planned_pass(program: Any) -> None:
    step(program, {P: 3, R: 6, H: 4})


def test_a_ragged_row_may_be_shorter() -> None:
    assert step(thinking, {R: 6}, longest=2) is not None


def test_a_width_that_is_not_planned_is_free() -> None:
    assert step(generating, {B: 4}, ids=11, log_probs=8).log_probs.tensor.shape == (4, 8)
