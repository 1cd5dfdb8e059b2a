"""Unsaved attributes: reported where a run that is saved and continued gives other values than without a break."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
import collections
import time
import hfdsl as hf
import torch

class B(hf.Dim): ...

class Rows(hf.Batch):
    x: hf.f32[B]

class Running:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def centered(self, x):
        self.total += float(x.sum())
        self.count += len(x)
        return x - self.total / self.count

class Saved(hf.Worker):
    def __init__(self) -> None:
        self.steps = 0

    @hf.register(hf.Dispatch.DP_PROTO)
    def counted(self, rows: Rows) -> Rows:
        self.steps += 1
        return Rows(x=rows.x.tensor + self.steps)

    def state(self):
        return {{"steps": self.steps}}

    def load_state(self, state):
        self.steps = state["steps"]

class Role(hf.Worker):
    def __init__(self) -> None:
        self.mean = 0.0
{constructor}

    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Rows:
        x = rows.x.tensor
{body}

    def track(self, x: torch.Tensor) -> None:
        self.mean += 0.1 * (float(x.mean()) - self.mean)
{methods}

@hf.dataflow
def step(rows: Rows, saved: Saved, role: Role) -> Rows:
    return role.score(saved.counted(rows))

@hf.dataflow
def alone(rows: Rows, role: Role) -> Rows:
    return role.score(rows)
"""
MEAN = "self.mean = 0.9 * self.mean + 0.1 * float(x.mean()); return Rows(x=x - self.mean)"
ADAM = "self.model = torch.nn.Linear(1, 1, bias=False); self.optimizer = torch.optim.Adam(self.model.parameters(), 0.1)"
LEARN = """
loss = self.model(x[:, None]).pow(2).mean(); self.optimizer.zero_grad(); loss.backward(); self.optimizer.step()
return Rows(x=self.model(x[:, None])[:, 0].detach())
"""
SCHEDULE = "; self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)"
FIRST = """
if self.mean is None:
    self.mean = x.mean()
else:
    self.mean = 0.9 * self.mean + 0.1 * x.mean()
return Rows(x=x - self.mean)
"""
CACHE = """
for value in x.tolist():
    self.cache[value] = self.cache.get(value) or 2 * value
return Rows(x=torch.tensor([self.cache[value] for value in x.tolist()]))
"""
ALL = """
def state(self): return {name: value for name, value in vars(self).items() if name == "mean"}
def load_state(self, state): vars(self).update(state)
"""
EMA = """
with torch.no_grad():
    for slow, weight in zip(self.slow.parameters(), [x.mean()]):
        slow.mul_(0.9).add_(0.1 * weight)
return Rows(x=self.slow(x[:, None])[:, 0].detach())
"""


def state(saved: str, load: str = "pass") -> str:
    return f"def state(self): return {{{saved}}}\ndef load_state(self, state):\n    {load}"


MODEL = '"model": self.model.state_dict()', 'self.model.load_state_dict(state["model"])'
LOST = {
    "mean": ("pass", MEAN, ""),
    "mean in a helper": ("pass", "self.track(x); return Rows(x=x - self.mean)", ""),
    "mean left out": ("pass", MEAN, state("")),
    "mean not restored": ("pass", MEAN, state('"mean": self.mean')),
    "first mean": ("self.mean = None", FIRST, ""),
    "counter": ("self.count = 0", "self.count += 1; return Rows(x=x / self.count)", ""),
    "tensor in place": (
        "self.low = torch.zeros(1)",
        "self.low.mul_(0.9).add_(x.mean()); return Rows(x=x - self.low)",
        "",
    ),
    "minimum": ("self.low = 0.0", "self.low = min(self.low, float(x.min()) - 9); return Rows(x=x - self.low)", ""),
    "deque": (
        "self.recent = collections.deque(maxlen=9)",
        "self.recent.append(float(x.mean())); return Rows(x=x - sum(self.recent) / len(self.recent))",
        "",
    ),
    "object": ("self.running = Running()", "return Rows(x=self.running.centered(x))", ""),
    "slow weights": ("self.slow = torch.nn.Linear(1, 1, bias=False)", EMA, ""),
    "optimizer": (ADAM, LEARN, state(*MODEL)),
    "schedule": (
        ADAM + SCHEDULE,
        LEARN.replace("return", "self.schedule.step(); return"),
        state(
            f'{MODEL[0]}, "optimizer": self.optimizer.state_dict()["state"]',
            f"{MODEL[1]}; self.optimizer.state.update(zip(self.model.parameters(), state['optimizer'].values()))",
        ),
    ),
}
KEPT = {
    "mean saved": ("pass", MEAN, state('"mean": self.mean', 'self.mean = state["mean"]')),
    "mean by helpers": (
        "pass",
        MEAN,
        state('"mean": self.mean', "self.put(state)") + '\ndef put(self, state): self.mean = state["mean"]',
    ),
    "all of it": ("pass", MEAN, ALL),
    "set without the old one": (
        "pass",
        "self.mean = float(x.mean()); self.mean += 1.0; return Rows(x=x - self.mean)",
        "",
    ),
    "cache": ("self.cache = {}", CACHE, ""),
    "filled when needed": (
        "self.table = None",
        "self.table = self.table or [1.0]; return Rows(x=x - self.table[0])",
        "",
    ),
    "scratch": ("self.parts = []", "self.parts.clear(); self.parts.append(x); return Rows(x=self.parts[0])", ""),
    "log": (
        "self.count = 0",
        "self.count += 1\nif self.count % 10 == 0:\n    print(self.count)\nreturn Rows(x=x)",
        "",
    ),
    "time": ("self.took = 0.0", "self.took += time.time(); return Rows(x=x + 0 * self.took)", ""),
    "plain SGD": (ADAM.replace("Adam", "SGD"), LEARN, state(*MODEL)),
    "all of a learner": (
        ADAM,
        LEARN,
        state(
            f'{MODEL[0]}, "optimizer": self.optimizer.state_dict()',
            f'{MODEL[1]}; self.optimizer.load_state_dict(state["optimizer"])',
        ),
    ),
}


def source(constructor: str, body: str, methods: str) -> str:
    return MODULE.format(
        constructor=textwrap.indent(constructor, " " * 8),
        body=textwrap.indent(body, " " * 8),
        methods=textwrap.indent(methods, " " * 4),
    )


def program(folder: Path, constructor: str, body: str, methods: str) -> Any:
    return loaded(folder, source(constructor, body, methods))


def deployment(module: Any) -> Any:
    pool = module.hf.ResourcePool([1])
    return module.hf.Deployment(
        saved=module.hf.place(module.Saved, pool=pool), role=module.hf.place(module.Role, pool=pool)
    )


def continues(module: Any, folder: Path) -> bool:
    """Whether a run that is saved after two steps and loaded gives what it gives without a break."""
    batches = [module.Rows(x=torch.arange(4.0) * (i + 1)) for i in range(4)]
    plan = module.step.compile(deployment(module))
    with plan.launch() as running:
        for batch in batches[:2]:
            running.step(batch)
        running.save(str(folder / "saved"))
        later = [running.step(batch).x.tensor for batch in batches[2:]]
    with plan.launch() as running:
        running.load(str(folder / "saved"))
        again = [running.step(batch).x.tensor for batch in batches[2:]]
    return all(map(torch.equal, later, again))


@pytest.mark.parametrize("name", [*LOST, *KEPT])
def test_what_a_continued_run_starts_again_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, *{**LOST, **KEPT}[name])
    assert continues(module, tmp_path) is (name in KEPT)
    report = module.step.check(deployment(module), {module.B: 4})
    assert report.codes == (() if name in KEPT else ("HF783",)), str(report)


def test_nothing_is_said_where_no_role_has_a_state(tmp_path: Path) -> None:
    module = program(tmp_path, *LOST["mean"])
    pool = module.hf.ResourcePool([1])
    places = module.hf.Deployment(role=module.hf.place(module.Role, pool=pool))
    assert module.alone.check(places, {module.B: 4}).codes == ()


def test_the_finding_names_the_attribute_and_its_place(tmp_path: Path) -> None:
    module = program(tmp_path, *LOST["mean left out"])
    [finding] = module.step.check(deployment(module), {module.B: 4}).findings
    assert (
        "'role.score' changes self.mean from step to step, and its state() and load_state() do not" in finding.message
    )
    assert [label.text for label in finding.related] == ["called here", "has no self.mean"]


DERIVED = """
class Role(Base):
    def state(self):
        return {**super().state(), "more": 1}

    def load_state(self, state):
        LOAD

@hf.dataflow
def step("""


@pytest.mark.parametrize("load", ["super().load_state(state)", "Base.load_state(self, state)", "pass"])
def test_a_state_has_what_the_base_class_saves(tmp_path: Path, load: str) -> None:
    saved = state('"mean": self.mean', 'self.mean = state["mean"]')
    text = source("pass", MEAN, saved).replace("class Role(", "class Base(")
    text = text.replace("\n@hf.dataflow\ndef step(", DERIVED.replace("LOAD", load), 1)
    report = loaded(tmp_path, text).step.check()
    assert ("HF783" in report.codes) is (load == "pass"), str(report)
