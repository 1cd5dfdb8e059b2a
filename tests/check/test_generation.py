"""Options of generation that a role of the user's writes: reported where all copies of a prompt get one response."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
from dataclasses import dataclass
import torch
import hfdsl as hf

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]
class Rollout(hf.Batch):
    ids: hf.i64[B, R]
class Scores(hf.Batch):
    score: hf.f32[B]
class Gains(hf.Batch):
    gain: hf.f32[B]

@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16

class Model:
    def generate(self, ids, options=None, do_sample=True, **others):
        temperature = options.temperature if options is not None else float(do_sample)
        beams = others.get("num_beams", 1)
        logits = torch.arange(8.0).repeat(len(ids), 4, 1)
        noise = torch.rand(logits.shape) if temperature or beams > 1 else 0.0
        return (logits / 8 + noise).argmax(-1)

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model, self.is_evaluation = Model(), False

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def write(self, prompts: Prompts) -> Rollout:
        ids, options = prompts.prompt.tensor, dict(num_beams=4)
{body}
        return Rollout(ids=out)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, gains: Gains) -> None: ...

class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Scores: ...

@hf.function(rows=hf.Grouped(4))
def compared(scores: Scores) -> Gains:
    groups = scores.score.tensor.view(-1, 4)
    return Gains(gain=(groups - groups.mean(1, keepdim=True)).view(-1))

@hf.dataflow
def step(prompts: Prompts, policy: Policy, judge: Judge) -> None:
    rollout = policy.write(hf.repeat(prompts, 4))
    policy.update(rollout, compared(judge.score(rollout)))

@hf.dataflow
def evaluate(prompts: Prompts, policy: Policy, judge: Judge) -> Gains:
    return compared(judge.score(policy.write(hf.repeat(prompts, 4))))
"""
WRONG = {
    "no sampling": "out = self.model.generate(ids, do_sample=False)",
    "no sampling without gradients": "with torch.no_grad():\n    out = self.model.generate(ids, do_sample=False)",
    "a temperature of 0": "out = self.model.generate(ids, SamplingParams(temperature=0.0, max_tokens=8))",
    "parameters in a name": "params = SamplingParams(temperature=0)\nout = self.model.generate(ids, params)",
}
RIGHT = {
    "sampling": "out = self.model.generate(ids, do_sample=True)",
    "by default": "out = self.model.generate(ids)",
    "a temperature": "out = self.model.generate(ids, SamplingParams(temperature=0.7))",
    "beams": "out = self.model.generate(ids, do_sample=False, num_beams=4)",
    "options": "out = self.model.generate(ids, do_sample=False, **options)",
    "in an evaluation": "if self.is_evaluation:\n    out = self.model.generate(ids, do_sample=False)\n"
    "else:\n    out = self.model.generate(ids, do_sample=True)",
}


def program(folder: Path, body: str) -> Any:
    return loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8)))


def copies_agree(module: Any) -> bool:
    """Whether copies of a prompt get one response."""
    torch.manual_seed(1)
    ids = module.Policy().write(module.Prompts(prompt=torch.zeros(4, 2, dtype=torch.long))).ids.tensor
    return bool((ids == ids[:1]).all())


def codes(module: Any, flow: str = "step") -> tuple[str, ...]:
    report: Any = getattr(module, flow).check(dims={module.B: 2, module.P: 2, module.R: 4})
    return tuple(report.codes)


@pytest.mark.parametrize("name", WRONG)
def test_responses_that_are_all_the_same_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG[name])
    assert copies_agree(module)
    assert codes(module) == ("HF725",)
    assert codes(module, "evaluate") == ()


@pytest.mark.parametrize("name", RIGHT)
def test_responses_that_may_differ_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert not copies_agree(module)
    assert codes(module) == ()
