"""Drifting replicas: an optimizer step without a reduction is reported where replicas really end with other weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
import functools
import hfdsl as hf
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD

class B(hf.Dim): ...

class Rows(hf.Batch):
    x: hf.f32[B]

def take_step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

def averaged(parameters, group):
    for parameter in parameters:
        parameter.grad = group.all_reduce(parameter.grad, "mean")

def build():
    return torch.nn.Linear(1, 1)

class Policy(hf.Worker):
    def __init__(self, *arguments) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        {constructor}

    def loss(self, rows: Rows) -> torch.Tensor:
        return (self.model(rows.x.tensor[:, None]) ** 2).mean()

    def learn(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.optimizer.step()

    @hf.register(hf.Dispatch.{protocol})
    def update(self, rows: Rows) -> None:
        self.optimizer.zero_grad()
        {body}

    def reduce(self) -> None:
        averaged(self.model.parameters(), self.axis("dp"))

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def weights(self) -> float:
        return float(self.model.weight.sum())

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def take(self, weight: float) -> None:
        with torch.no_grad():
            self.model.weight.fill_(weight)

@hf.function
def mean(weights: hf.PerRank[float]) -> float:
    return sum(weights) / len(weights)

@hf.dataflow
def step(rows: Rows, policy: Policy) -> hf.PerRank[float]:
    policy.update(rows)
    return policy.weights()

@hf.dataflow
def averaging(rows: Rows, policy: Policy) -> hf.PerRank[float]:
    policy.update(rows)
    policy.take(mean(policy.weights()))
    return policy.weights()
"""
APART = (
    ("pass", "self.loss(rows).backward(); self.optimizer.step()"),
    ("pass", "self.learn(self.loss(rows))"),
    (
        "pass",
        "loss = self.loss(rows); loss.backward(); self.optimizer.step(); self.axis('dp').all_reduce(loss.item())",
    ),
    ("pass", "take_step(self.optimizer, self.loss(rows))"),
    ("self.optimizer = SGD(self.model.parameters(), 0.1)", "self.learn(self.loss(rows))"),
    ("import torch.optim as o; self.rule = o.SGD(build().parameters(), 0.1)", "self.learn(self.loss(rows))"),
    ("self.model = build(); self.optimizer = SGD(self.model.parameters(), 0.1)", "self.learn(self.loss(rows))"),
    (
        "self.schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer)",
        "self.learn(self.loss(rows)); self.schedule.step()",
    ),
    ("import os; self.folder = os.environ.get('RUNS', '.')", "self.learn(self.loss(rows))"),
    ("import datetime; self.begun = datetime.datetime.now()", "self.learn(self.loss(rows))"),
    ("self.scale = getattr(arguments, 'scale', 1.0)", "self.learn(self.loss(rows) * getattr(self, 'scale', 2.0))"),
    (
        "self.clip = torch.nn.utils.clip_grad_norm_",
        "self.loss(rows).backward(); self.clip(self.model.parameters(), 9.0); self.optimizer.step()",
    ),
)
"""Constructors and bodies with which replicas drift apart."""

TOGETHER = (
    ("pass", "self.loss(rows).backward(); self.reduce(); self.optimizer.step()"),
    (
        "pass",
        "self.learn(self.loss(rows)); self.model.weight.data = self.axis('dp').all_reduce(self.model.weight.data)",
    ),
    ("pass", "self.loss(rows).backward(); averaged(self.model.parameters(), self.axis('dp')); self.optimizer.step()"),
    ("pass", "self.learn(self.axis('dp').all_reduce(self.loss(rows).detach()) * self.model.weight.sum())"),
    ("pass", "self.loss(rows).backward()"),
    ("self.schedule = torch.optim.lr_scheduler.ConstantLR(self.optimizer)", "self.schedule.step()"),
    ("pass", "pass"),
)
"""Constructors and bodies with which they do not."""

UNKNOWN = (
    ("self.model = DDP(self.model)", "self.learn(self.loss(rows))"),
    ("pass", "self.loss(rows).backward(); dist.all_reduce(self.model.weight.grad); self.optimizer.step()"),
    ("import accelerate; self.model = accelerate.prepare(self.model)", "self.learn(self.loss(rows))"),
    ("import pytest; self.model = pytest.wrapped(self.model)", "self.learn(self.loss(rows))"),
    ("from . import helpers; helpers.wrap(self.model)", "self.learn(self.loss(rows))"),
    ("pass", "self.learn(self.loss(rows)); getattr(self.model, 'reduce_gradients')()"),
    (
        "torch.manual_seed(self.rank); self.model = build(); self.optimizer = SGD(self.model.parameters(), 0.1)",
        "self.learn(self.loss(rows))",
    ),
    ("pass", "self.learn(self.loss(rows)); no_such_function(self.model)"),
    ("self.group = getattr(self, 'axis')('dp')", "self.learn(self.loss(rows))"),
    ("self.group = getattr(self, 'axis', None)", "self.learn(self.loss(rows))"),
    ("name = 'axis'; self.group = getattr(self, name)", "self.learn(self.loss(rows))"),
    ("import subprocess; subprocess.run(['true'])", "self.learn(self.loss(rows))"),
)
"""Those of which a check cannot know it."""


def program(folder: Path, constructor: str, body: str, protocol: str = "DP_PROTO") -> Any:
    return loaded(folder, MODULE.format(constructor=constructor, body=body, protocol=protocol))


def placed(module: Any, mesh: Any, *arguments: Any) -> Any:
    pool = module.hf.ResourcePool([mesh.world_size])
    return module.hf.Deployment(policy=module.hf.place(module.Policy, *arguments, pool=pool, mesh=mesh))


def check(module: Any, flow: Any, mesh: Any, *arguments: Any) -> Any:
    return flow.check(placed(module, mesh, *arguments), {module.B: 4})


def weights(module: Any, flow: Any, mesh: Any) -> set[float]:
    """The weights of all ranks after a step on rows that differ."""
    with flow.compile(placed(module, mesh)).launch() as running:
        return set(running.step(module.Rows(x=torch.tensor([1.0, 2.0, 3.0, 5.0]))))


@pytest.mark.parametrize(("constructor", "body"), [*APART, *TOGETHER])
def test_what_drifts_apart_is_reported(tmp_path: Path, constructor: str, body: str) -> None:
    module = program(tmp_path, constructor, body)
    drifts = len(weights(module, module.step, module.hf.Mesh(dp=2))) > 1
    assert drifts is ((constructor, body) in APART)
    report = check(module, module.step, module.hf.Mesh(dp=2))
    assert report.codes == (("HF782",) if drifts else ())


@pytest.mark.parametrize(
    ("protocol", "mesh"), [("DP_PROTO", {}), ("THREE_D_PROTO", {"tp": 2}), ("ONE_TO_ALL", {"dp": 2})]
)
def test_ranks_with_the_same_rows_do_not_drift(tmp_path: Path, protocol: str, mesh: dict[str, int]) -> None:
    module = program(tmp_path, *APART[0], protocol)
    ranks = module.hf.Mesh(**mesh)
    assert len(weights(module, module.step, ranks)) == 1
    assert check(module, module.step, ranks).codes == ()


def test_weights_that_a_dataflow_averages_do_not_drift(tmp_path: Path) -> None:
    module = program(tmp_path, *APART[0])
    mesh = module.hf.Mesh(dp=2)
    assert len(weights(module, module.averaging, mesh)) == 1
    assert check(module, module.averaging, mesh).codes == ()


@pytest.mark.parametrize(("constructor", "body"), UNKNOWN)
def test_nothing_is_said_of_code_that_may_reduce(tmp_path: Path, constructor: str, body: str) -> None:
    module = program(tmp_path, constructor, body)
    assert check(module, module.step, module.hf.Mesh(dp=2)).codes == ()


def test_nothing_is_said_of_a_model_that_the_caller_gives(tmp_path: Path) -> None:
    module = program(tmp_path, "self.model = arguments[0]", "self.learn(self.loss(rows))")
    mesh = module.hf.Mesh(dp=2)
    assert check(module, module.step, mesh, torch.nn.Linear(1, 1)).codes == ()
    assert check(module, module.step, mesh, {"width": (1, 2.0, None)}).codes == ("HF782",)


def test_the_finding_is_at_the_step_and_names_the_replicas(tmp_path: Path) -> None:
    module = program(tmp_path, "pass", "self.learn(self.loss(rows))")
    [finding] = check(module, module.step, module.hf.Mesh(dp=4)).findings
    [line] = [i for i, text in enumerate(MODULE.splitlines(), 1) if text == "        self.optimizer.step()"]
    assert finding.primary.span.line == line
    assert "'policy.update' takes an optimizer step on each of 4 replicas" in finding.message
