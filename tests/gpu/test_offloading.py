"""Idle roles give their GPU's memory back: models, gradients and the states of optimizers, whole or sharded."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from tests.gpu.offload_programs import Weighed, allocated, supervised
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, numbers

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()
LARGE = replace(  # some tens of MiB
    tiny.MODEL, config={**tiny.LLAMA, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}
)


def test_an_actor_gives_back_its_memory_part_by_part_and_works_on() -> None:
    config = replace(tiny.ACTOR, model=LARGE)
    stays = w.Actor(config)
    expected = [numbers(stays.imitate(tiny.demonstrations(4, seed))) for seed in range(3)]
    del stays
    gc.collect()
    empty = allocated()
    actor = w.Actor(config)
    losses = [numbers(actor.imitate(tiny.demonstrations(4, 0)))]
    size = sum(p.numel() * p.element_size() for p in actor.policy.parameters())
    before = allocated()
    actor.offload("optimizer")
    assert before - allocated() >= 3 * size  # two moments and the gradient
    actor.offload("weights")
    assert allocated() - empty < size / 10
    held = [*actor.policy.parameters(), *(s["exp_avg"] for s in actor.learner.optimizer.state.values())]
    assert all(tensor.is_pinned() for tensor in held)
    actor.onload("weights")
    actor.onload("optimizer")
    assert all(tensor.is_cuda for tensor in held[: len(actor.learner.parameters)])
    assert before - size <= allocated() + size / 10  # all but the gradient
    losses += [numbers(actor.imitate(tiny.demonstrations(4, seed))) for seed in (1, 2)]
    for metrics, actual in zip(losses, expected, strict=True):
        assert metrics == pytest.approx(actual, rel=1e-4)


@pytest.mark.parametrize("role", [w.Reference, w.RewardModel])
def test_a_frozen_role_gives_back_its_memory(role: Any) -> None:
    before = allocated()
    config = w.ReferenceConfig(LARGE) if role is w.Reference else w.RewardConfig(LARGE)
    worker = role(config)
    loaded = allocated()
    worker.offload("weights")
    assert allocated() - before < (loaded - before) / 10
    worker.onload("weights")
    assert allocated() >= loaded


@pytest.mark.parametrize("sharding", ["none", pytest.param("fsdp", marks=pytest.mark.skipif(GPUS < 2, reason="two"))])
def test_a_plan_keeps_the_idle_off_the_gpu(sharding: Any, gpu_cluster: Any) -> None:
    def ran(offload: bool) -> list[Any]:
        training, pool = replace(tiny.TRAINING, sharding=sharding), hf.ResourcePool([min(GPUS, 2)])
        roles = hf.Deployment(
            actor=hf.place(w.Actor, replace(tiny.ACTOR, model=LARGE, training=training), pool=pool, offload=offload),
            reference=hf.place(Weighed, replace(tiny.REFERENCE, model=LARGE), pool=pool, offload=offload),
        )
        with supervised.compile(roles, SIZES).launch("ray", timeout=120) as running:
            return [running.step(tiny.demonstrations(ROWS, seed)) for seed in range(3)]

    stays, moves = ran(False), ran(True)
    assert max(moves[-1][1]) < 0.5 * max(stays[-1][1])
    for staying, actual in zip(stays, moves, strict=True):
        torch.testing.assert_close(staying[0].ref_log_probs.tensor, actual[0].ref_log_probs.tensor)
        assert numbers(actual[2]) == pytest.approx(numbers(staying[2]), rel=1e-4)
