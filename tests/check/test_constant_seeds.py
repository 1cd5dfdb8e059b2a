"""Constant seeds in bodies that sample: reported where two steps draw the same numbers, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import random
import numpy as np
import torch
import hfdsl as hf
from torch.distributions import Categorical

SEED = 7

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]

class Rollout(hf.Batch):
    ids: hf.i64[B, R]

class Scores(hf.Batch):
    score: hf.f32[B]

def stream():
    return torch.Generator().manual_seed(0)

def seed_all():
    torch.manual_seed(0)

def drawn(chances, generator):
    return torch.multinomial(chances, 4, replacement=True, generator=generator)

class Policy(hf.Worker):
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(0)
        self.draw = torch.Generator().manual_seed(0)
        self.lazy = None
        self.seed = seed
        self.calls = 0

    def again(self) -> None:
        self.draw.manual_seed(SEED)

    def any(self, chances):
        return torch.multinomial(chances, 4, replacement=True)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, seed: int = 0) -> Rollout:
        chances = torch.ones(len(prompts.prompt.tensor), 1000)
        self.calls += 1
{body}
        return Rollout(ids=ids)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def tested(self, rollout: Rollout) -> Scores:
        cases = random.Random(0)
        right = cases.randint(0, 999)
        return Scores(score=(rollout.ids.tensor == right).float().mean(1))

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, scores: Scores) -> None:
        shuffle = torch.randperm(len(rollout.ids.tensor), generator=torch.Generator().manual_seed(0))

@hf.dataflow
def step(prompts: Prompts, policy: Policy) -> Rollout:
    rollout = policy.generate(prompts)
    policy.update(rollout, policy.tested(rollout))
    return rollout

@hf.dataflow
def evaluation(prompts: Prompts, policy: Policy) -> Rollout:
    return policy.generate(prompts)
"""
SAME = (
    "torch.manual_seed(0)\nids = torch.multinomial(chances, 4, replacement=True)",
    "torch.manual_seed(seed=SEED)\nids = self.any(chances)",
    "seed_all()\nids = Categorical(chances).sample((4,)).T",
    "draw = torch.Generator().manual_seed(1234)\nids = torch.randint(0, 1000, (len(chances), 4), generator=draw)",
    "draw = torch.Generator()\ndraw.manual_seed(0)\nids = chances.multinomial(4, replacement=True, generator=draw)",
    "ids = drawn(chances, torch.Generator().manual_seed(0))",
    "draw = stream()\nids = drawn(chances, generator=draw)",
    "ids = drawn(chances, stream())",
    "self.again()\nids = drawn(chances, self.draw)",
    "self.draw.manual_seed(0)\nfor _ in range(2):\n    ids = drawn(chances, self.draw)",
    "random.seed(0)\nids = torch.tensor([random.choices(range(1000), k=4) for _ in chances])",
    "np.random.seed(0)\nids = torch.tensor(np.random.randint(0, 1000, (len(chances), 4)))",
    "draw = np.random.default_rng(0)\nids = torch.tensor(draw.integers(0, 1000, (len(chances), 4)))",
    "ids = torch.tensor(np.random.default_rng(0).choice(1000, (len(chances), 4)))",
    "torch.manual_seed(0)\nif len(chances):\n    ids = torch.rand(len(chances), 1000).topk(4).indices",
    "torch.manual_seed(0)\nids = (chances / torch.empty_like(chances).exponential_()).topk(4).indices",
)
OTHER = (
    "ids = torch.multinomial(chances, 4, replacement=True)",
    "ids = drawn(chances, self.draw)",
    "ids = drawn(chances, hf.current_call().generator())",
    "torch.manual_seed(hf.current_call().step)\nids = self.any(chances)",
    "torch.manual_seed(0 + self.calls)\nids = self.any(chances)",
    "draw = torch.Generator().manual_seed(self.calls)\nids = drawn(chances, draw)",
    "torch.manual_seed(0)\nids = drawn(chances, self.draw)",
    "draw = torch.Generator().manual_seed(0)\ndraw.manual_seed(self.calls)\nids = drawn(chances, draw)",
    "if self.lazy is None:\n    self.lazy = torch.Generator().manual_seed(0)\nids = drawn(chances, self.lazy)",
    "if self.calls == 1:\n    torch.manual_seed(0)\nids = self.any(chances)",
    "ids = self.any(chances)\ntorch.manual_seed(0)\nself.noise = 0",
    "self.lazy = self.lazy or torch.Generator().manual_seed(0)\nids = drawn(chances, self.lazy)",
    "with torch.random.fork_rng():\n    torch.manual_seed(0)\n    self.noise = torch.rand(3)\nids = self.any(chances)",
    "draw = np.random.default_rng(self.calls)\nids = torch.tensor(draw.integers(0, 1000, (len(chances), 4)))",
    "random.seed(0)\nids = torch.multinomial(chances, 4, replacement=True)",
)


def program(folder: Path, body: str) -> Any:
    return loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8)))


def draws_the_same(module: Any) -> bool:
    """Whether two steps of one run draw the same tokens."""
    prompts = module.Prompts(prompt=torch.zeros(4, 2, dtype=torch.int64))
    deployment = hf.Deployment(policy=hf.place(module.Policy, pool=hf.ResourcePool([1], use_gpu=False)))
    with module.step.compile(deployment, {module.B: 4, module.P: 2, module.R: 4}).launch() as running:
        first, second = (running.step(prompts).ids.tensor for _ in range(2))
    return torch.equal(first, second)


@pytest.mark.parametrize("body", [*SAME, *OTHER])
def test_a_constant_seed_is_reported_if_two_steps_draw_the_same(tmp_path: Path, body: str) -> None:
    module = program(tmp_path, body)
    assert draws_the_same(module) is (body in SAME)
    assert module.step.check(dims={module.B: 4}).codes == (("HF362",) if body in SAME else ())
    assert module.evaluation.check(dims={module.B: 4}).codes == ()
