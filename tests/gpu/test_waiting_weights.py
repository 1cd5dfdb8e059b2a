"""Weights that wait for the calls of an engine wait in their actor's memory, and not in the engine's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from tests.gpu import waiting_programs as p

pytestmark = pytest.mark.gpu

SIZE, LAG, STEPS = 64 * 2**20, 4, 9


@pytest.mark.parametrize("gpus", [1, 2])
def test_an_engine_has_memory_for_one_version_that_it_loads(gpu_cluster: Any, gpus: int) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip("too few GPUs")
    pool = hf.ResourcePool([1], name="gpu")
    actor = hf.place(p.Actor, SIZE, pool=pool, colocate=False, transport="cuda ipc")
    engine = hf.place(p.Engine, SIZE, 0.3, pool=hf.ResourcePool([1]) if gpus == 2 else pool, colocate=False)
    plan = p.lagged.given(lag=LAG).compile(hf.Deployment(engine=engine, actor=actor), dims={p.B: 2})
    prompts = [p.Prompts(number=torch.zeros(2)) for _ in range(STEPS)]
    with plan.launch("ray", deadline=120) as running:
        results = list(running.stream(prompts))
    assert [result.weight.value for result in results] == [max(0.0, step - LAG) for step in range(STEPS)]
    version = SIZE * 4
    for result in results:  # the first sync loads before the first call
        assert 2 * version <= result.peak.value < 2.5 * version, "its own, and one that arrives"
