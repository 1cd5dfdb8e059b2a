"""Optimizer steps: reported where the weights end as other ones than those of a role that does it right."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
import hfdsl as hf
import torch

class B(hf.Dim): ...

class Rows(hf.Batch):
    x: hf.f32[B]

def take_step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        {constructor}

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return (self.model(x[:, None]) - 1.0).pow(2).sum()

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    @hf.register(hf.Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> None:
        x = rows.x.tensor
{body}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def weights(self) -> list[float]:
        return [float(p.sum()) for p in self.model.parameters()]

@hf.dataflow
def step(rows: Rows, policy: Policy) -> hf.PerRank[list[float]]:
    policy.update(rows)
    return policy.weights()
"""
ONCE = """
self.optimizer.zero_grad()
for part in x.split(1):
    self.loss(part).backward()
self.clip()
self.optimizer.step()
self.schedule.step()
"""
PASSES = """
for part in x.split(1):
    self.optimizer.zero_grad()
    self.loss(part).backward()
    self.clip()
    self.optimizer.step()
self.schedule.step()
"""
ZERO, BACKWARD, CLIP, STEP, SCHEDULE = (
    "self.optimizer.zero_grad()\n",
    "    self.loss(part).backward()\n",
    "self.clip()\n",
    "self.optimizer.step()\n",
    "self.schedule.step()\n",
)
CLIP_HERE = "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n"
ACCUMULATED = """
for i, part in enumerate(x.split(1)):
    self.loss(part).backward()
    if i % 1 == 0:
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
self.schedule.step()
"""
WRONG = {
    "never cleared": ("HF784", "pass", ONCE.replace(ZERO, "")),
    "cleared before the step": ("HF784", "pass", ONCE.replace(CLIP, ZERO)),
    "cleared in each pass": ("HF784", "pass", ONCE.replace(BACKWARD, f"    {ZERO}{BACKWARD}")),
    "cleared before all passes": ("HF784", "pass", ZERO + PASSES.replace(f"    {ZERO}", "")),
    "no gradients": ("HF784", "pass", ONCE.replace(".backward()", "")),
    "clipped after the step": ("HF784", "pass", ONCE.replace(CLIP, "").replace(STEP, STEP + CLIP_HERE)),
    "model replaced": (
        "HF784",
        "self.model = torch.nn.Linear(1, 1).requires_grad_(True)",
        ONCE,
    ),
    "schedule in each pass": (
        "HF785",
        "pass",
        ONCE.replace(SCHEDULE, "").replace(BACKWARD, f"{BACKWARD}    {SCHEDULE}"),
    ),
    "no schedule": ("HF785", "pass", ONCE.replace(SCHEDULE, "")),
}
RIGHT = {
    "once": (ONCE, ONCE),
    "cleared afterwards": (ONCE, ONCE.replace(ZERO, "").replace(STEP, STEP + ZERO)),
    "cleared by a method": (ONCE, ONCE.replace(ZERO, "self.clear()\n")),
    "cleared by the model": (ONCE, ONCE.replace(ZERO, "self.model.zero_grad()\n")),
    "cleared by hand": (ONCE, ONCE.replace(ZERO, "for p in self.model.parameters(): p.grad = None\n")),
    "one sum": (
        ONCE,
        ZERO + "sum(self.loss(part) for part in x.split(1)).backward()\n" + CLIP + STEP + SCHEDULE,
    ),
    "gradients by autograd": (
        ONCE,
        "loss, parameters = self.loss(x), [*self.model.parameters()]\n"
        "for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)): p.grad = gradient\n"
        + CLIP
        + STEP
        + SCHEDULE,
    ),
    "clipped here": (ONCE, ONCE.replace(CLIP, CLIP_HERE)),
    "passes": (PASSES, PASSES),
    "passes cleared afterwards": (
        PASSES,
        PASSES.replace(f"    {ZERO}", "").replace(f"    {STEP}", f"    {STEP}    {ZERO}"),
    ),
    "passes by a function": (
        PASSES.replace(f"    {CLIP}", ""),
        f"for part in x.split(1):\n    take_step(self.optimizer, self.loss(part))\n{SCHEDULE}",
    ),
    "accumulated": (PASSES, ACCUMULATED),
    "schedule of every pass": (
        PASSES.replace(SCHEDULE, f"    {SCHEDULE}"),
        PASSES.replace(SCHEDULE, "").replace(f"    {STEP}", f"    {STEP}    {SCHEDULE}"),
    ),
}


def program(folder: Path, constructor: str, body: str) -> Any:
    return loaded(folder, MODULE.format(constructor=constructor, body=textwrap.indent(body, " " * 8)))


@functools.cache
def weights(folder: Path, constructor: str, body: str) -> tuple[float, ...]:
    """The weights after three steps."""
    module = program(folder, constructor, body)
    plan = module.step.compile(
        module.hf.Deployment(policy=module.hf.place(module.Policy, pool=module.hf.ResourcePool([1])))
    )
    with plan.launch() as running:
        results = [running.step(module.Rows(x=torch.tensor([1.0, 2.0]) * (i + 1))) for i in range(3)]
    return tuple(results[-1][0])


@pytest.mark.parametrize("name", WRONG)
def test_a_step_of_other_gradients_is_reported(tmp_path: Path, name: str) -> None:
    code, constructor, body = WRONG[name]
    right = PASSES if "all passes" in name else ONCE
    assert weights(tmp_path, constructor, body) != pytest.approx(weights(tmp_path, "pass", right))
    module = program(tmp_path, constructor, body)
    assert module.step.check(dims={module.B: 2}).codes == (code,)


@pytest.mark.parametrize("name", RIGHT)
def test_other_ways_to_do_the_same_are_not_reported(tmp_path: Path, name: str) -> None:
    right, same = RIGHT[name]
    assert weights(tmp_path, "pass", same) == pytest.approx(weights(tmp_path, "pass", right))
    module = program(tmp_path, "pass", same)
    assert module.step.check(dims={module.B: 2}).codes == ()


@pytest.mark.parametrize(
    "constructor",
    [
        "model = self.model; self.model = torch.nn.Sequential(model)",
        "self.model = torch.nn.Sequential(self.model)",
        "self.model = torch.nn.Linear(1, 1); self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)",
    ],
)
def test_a_model_that_is_wrapped_has_the_parameters_of_its_optimizer(tmp_path: Path, constructor: str) -> None:
    module = program(tmp_path, constructor, ONCE)
    assert module.step.check(dims={module.B: 2}).codes == ()


@pytest.mark.parametrize("constructor", ["import accelerate", "self.tools = getattr(torch, 'nn')"])
def test_nothing_is_said_of_code_that_cannot_be_read(tmp_path: Path, constructor: str) -> None:
    for _, _, body in WRONG.values():
        module = program(tmp_path, constructor, body)
        assert module.step.check(dims={module.B: 2}).codes == ()


@pytest.mark.parametrize(
    "constructor",
    [
        "self.all = [self.schedule]",
        "self.schedule = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [self.schedule], [])",
        "self.second = torch.optim.SGD(self.model.parameters(), 0.1)",
    ],
)
def test_nothing_is_said_of_a_schedule_that_others_may_step(tmp_path: Path, constructor: str) -> None:
    body = WRONG["no schedule"][2] + ("self.second.step()" if "second" in constructor else "")
    module = program(tmp_path, constructor, body)
    assert "HF784" not in module.step.check(dims={module.B: 2}).codes


HEADS = """
import hfdsl as hf
import torch
from torch import nn

class B(hf.Dim): ...

class Rows(hf.Batch):
    x: hf.f32[B]

class Critic(hf.Worker):
    def __init__(self) -> None:
        self.model = nn.Linear(1, 4)
        self.head = nn.Linear(4, 1)
        nn.init.ones_(self.head.weight)
        {optimizer}

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.model(x[:, None])).squeeze(-1)

    @hf.register(hf.Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> None:
        x = rows.x.tensor
        loss = (self.values(x) - 1.0).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([*self.model.parameters(), *self.head.parameters()], 1.0)
        self.optimizer.step()

@hf.dataflow
def step(rows: Rows, critic: Critic) -> None:
    critic.update(rows)
"""
WITHOUT_HEAD = (
    "self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)",
    "parameters = [p for p in self.model.parameters()]\n        self.optimizer = torch.optim.SGD(parameters, 0.1)",
)
WITH_HEAD = (
    "self.optimizer = torch.optim.SGD([*self.model.parameters(), *self.head.parameters()], 0.1)",
    "parts = nn.ModuleList([self.model, self.head])\n        self.optimizer = torch.optim.SGD(parts.parameters(), 0.1)",
    "self.optimizer = torch.optim.SGD([{'params': self.model.parameters()}, {'params': self.head.parameters()}], 0.1)",
    (
        "self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)\n"
        "        self.optimizer.add_param_group({'params': self.head.parameters()})"
    ),
    (
        "parameters = [*self.model.parameters()]\n        parameters += self.head.parameters()\n"
        "        self.optimizer = torch.optim.SGD(parameters, 0.1)"
    ),
    (
        "parameters = [*self.model.parameters()]\n        parameters.extend(self.head.parameters())\n"
        "        self.optimizer = torch.optim.SGD(parameters, 0.1)"
    ),
    (
        "self.learned = [*self.model.parameters(), *self.head.parameters()]\n"
        "        self.optimizer = torch.optim.SGD(self.learned, 0.1)"
    ),
    (
        "self.learned = [*self.model.parameters()]\n"
        "        self.learned.append(self.head.weight)\n"
        "        self.optimizer = torch.optim.SGD(self.learned, 0.1)"
    ),
)
MEANT = (
    "self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)\n        self.head.requires_grad_(False)",
    "self.head.weight.requires_grad = False\n        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)",
)


def head_learns(module: Any) -> bool:
    """Whether an update changes the head."""
    critic = module.Critic()
    before = critic.head.weight.detach().clone()
    critic.update(module.Rows(x=torch.tensor([1.0, 2.0])))
    return not torch.equal(before, critic.head.weight)


@pytest.mark.parametrize("optimizer", WITHOUT_HEAD)
def test_a_head_that_no_optimizer_has_is_reported(tmp_path: Path, optimizer: str) -> None:
    module = loaded(tmp_path, HEADS.format(optimizer=optimizer))
    assert not head_learns(module)
    assert module.step.check(dims={module.B: 2}).codes == ("HF784",)


@pytest.mark.parametrize("line", ["w.grad = w.grad / 2", "if w.grad is not None: w.grad.div_(2)"])
def test_a_head_whose_gradients_alone_are_used_is_reported(tmp_path: Path, line: str) -> None:
    loop = f"for w in [*self.model.parameters(), *self.head.parameters()]: {line}\n        self.optimizer.step()"
    if line.startswith("if"):
        loop = loop.replace(": if", ":\n            if")
    text = HEADS.format(optimizer=WITHOUT_HEAD[0]).replace("self.optimizer.step()", loop)
    module = loaded(tmp_path, text)
    assert not head_learns(module)
    assert module.step.check(dims={module.B: 2}).codes == ("HF784",)


@pytest.mark.parametrize("optimizer", WITH_HEAD)
def test_a_head_that_an_optimizer_has_is_not(tmp_path: Path, optimizer: str) -> None:
    module = loaded(tmp_path, HEADS.format(optimizer=optimizer))
    assert head_learns(module)
    assert module.step.check(dims={module.B: 2}).codes == ()


def test_a_role_that_is_a_module_has_all_parameters(tmp_path: Path) -> None:
    text = HEADS.format(optimizer="self.optimizer = torch.optim.SGD(self.parameters(), 0.1)")
    text = text.replace("(hf.Worker)", "(hf.Worker, nn.Module)")
    text = text.replace("self.model = nn", "nn.Module.__init__(self)\n        self.model = nn", 1)
    module = loaded(tmp_path, text)
    assert head_learns(module)
    assert module.step.check(dims={module.B: 2}).codes == ()


@pytest.mark.parametrize("optimizer", MEANT)
def test_a_head_that_is_frozen_is_meant(tmp_path: Path, optimizer: str) -> None:
    module = loaded(tmp_path, HEADS.format(optimizer=optimizer))
    assert not head_learns(module)
    assert module.step.check(dims={module.B: 2}).codes == ()


def test_a_head_that_is_random_on_purpose_is_meant(tmp_path: Path) -> None:
    text = HEADS.format(optimizer=WITHOUT_HEAD[0]).replace("self.head", "self.random_projection")
    module = loaded(tmp_path, text)
    assert module.step.check(dims={module.B: 2}).codes == ()


@pytest.mark.parametrize(
    "line", ["p.data.sub_(0.1 * p.grad)", "torch.add(p.detach(), p.grad, alpha=-0.1, out=p.detach())"]
)
def test_a_head_that_is_learned_by_hand_is_meant(tmp_path: Path, line: str) -> None:
    loop = f"for p in self.head.parameters(): {line}"
    text = HEADS.format(optimizer=WITHOUT_HEAD[0]).replace(
        "self.optimizer.step()", f"self.optimizer.step()\n        {loop}"
    )
    module = loaded(tmp_path, text)
    assert head_learns(module)
    assert module.step.check(dims={module.B: 2}).codes == ()
