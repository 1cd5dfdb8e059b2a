"""Parameters of 16 bits learn as float32 ones do whose rounded values the passes see."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from hfdsl.protocols.collectives import SoleRank
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl import workers as w
from hfdsl.rl.models.learning import Learner
from hfdsl.rl.models.policies import policy
from hfdsl.rl.workers.gpu_memory import gpu_bytes
from tests.rl.workers import tiny

NARROW = replace(tiny.MODEL, dtype="bfloat16")
TRAINING = w.TrainingConfig(w.OptimizerConfig(learning_rate=1e-3, weight_decay=0.1), master_weights=True)


def learner(training: w.TrainingConfig = TRAINING, model: w.ModelConfig = NARROW) -> Learner:
    module = policy(model, 1.0, SoleRank())
    return Learner(module, module.model, training, SoleRank())


def losses(module: Any, seed: int) -> list[torch.Tensor]:
    """Those of two micro-batches."""
    parts = (tiny.demonstrations(4, 2 * seed + part) for part in range(2))
    return [
        -(module(rows.ids.tensor, rows.mask.tensor, tiny.RESPONSE)[0] * rows.response_mask.tensor).sum() / 20
        for rows in parts
    ]


def test_steps_are_those_of_float32_copies_written_out() -> None:
    subject = learner()
    module = deepcopy(policy(NARROW, 1.0, SoleRank())).train()
    weights = list(module.parameters())
    copies = [torch.nn.Parameter(weight.detach().float()) for weight in weights]
    optimizer = torch.optim.AdamW(copies, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for seed in range(4):
        step = subject.step(losses(subject.module, seed), SoleRank())
        first, second = (torch.autograd.grad(loss, weights) for loss in losses(module, seed))
        for copy, gradient, actual in zip(copies, first, second, strict=True):
            copy.grad = gradient.float() + actual.float()
        norm = torch.nn.utils.clip_grad_norm_(copies, 1.0)
        optimizer.step()
        with torch.no_grad():
            for weight, copy in zip(weights, copies, strict=True):
                weight.copy_(copy)
        assert step.grad_norm == float(norm)
        for (name, weight), expected in zip(subject.module.named_parameters(), weights, strict=True):
            assert weight.dtype == torch.bfloat16
            assert torch.equal(weight, expected), name


def test_steps_too_small_for_16_bits_add_up() -> None:
    small = replace(TRAINING, optimizer=w.OptimizerConfig(learning_rate=1e-5))
    with_master, lost = learner(small), learner(replace(small, master_weights=False))
    before = [parameter.detach().clone() for parameter in with_master.module.parameters()]
    for seed in range(30):
        with_master.step(losses(with_master.module, seed), SoleRank())
        lost.step(losses(lost.module, seed), SoleRank())
    norms = [name for name, _ in with_master.module.named_parameters() if "norm" in name]  # all of them are 1 at first
    moved, stayed = (
        [name for (name, p), old in zip(side.module.named_parameters(), before, strict=True) if not torch.equal(p, old)]
        for side in (with_master, lost)
    )
    assert len(moved) >= len(stayed)
    assert not set(norms) & set(stayed)
    changed = [(master - old).abs().max() for master, old in zip(with_master.masters.state(), before, strict=True)]
    assert all(float(change) > 5e-5 for change in changed)


def test_a_run_that_continues_has_the_same_bits() -> None:
    first = learner()
    for seed in range(2):
        first.step(losses(first.module, seed), SoleRank())
    state = deepcopy(first.state())
    second = learner()
    second.load_state(state)
    for seed in range(2, 4):
        steps = [side.step(losses(side.module, seed), SoleRank()) for side in (first, second)]
        assert steps[0] == steps[1]
    for weight, actual in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(weight, actual)
    for master, copied in zip(first.masters.state(), second.masters.state(), strict=True):
        assert torch.equal(master, copied)


@pytest.mark.parametrize("master_weights", [False, True])
def test_float32_parameters_are_their_own_masters(master_weights: bool) -> None:
    side = learner(replace(TRAINING, master_weights=master_weights), tiny.MODEL)
    assert side.masters.state() == []
    assert [id(p) for p in side.parameters] == [id(p) for p in side.module.parameters()]


@pytest.mark.parametrize("master_weights", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_predicted_memory_has_the_copies(dtype: Any, master_weights: bool) -> None:
    model, training = replace(tiny.MODEL, dtype=dtype), replace(TRAINING, master_weights=master_weights)
    side = learner(training, model)
    side.step(losses(side.module, 0), SoleRank())
    gradients = [p.grad for p in (*side.parameters, *side.module.parameters()) if p.grad is not None]
    moments = [moment for state in side.optimizer.state.values() for moment in state.values() if moment.dim()]
    expected = {
        "weights": sum(p.nbytes for p in side.module.parameters()),
        "master weights": sum(master.nbytes for master in side.masters.state()),
        "gradients": sum({id(gradient): gradient.nbytes for gradient in gradients}.values()),
        "moments": sum(moment.nbytes for moment in moments),
    }
    held = gpu_bytes(Mesh(), w.ActorConfig(model, tiny.GENERATION, training))[""]
    assert held == {name: size for name, size in expected.items() if size}
