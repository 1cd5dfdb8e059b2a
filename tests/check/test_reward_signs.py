"""Signs of the KL in rewards of the user's: reported where rewards rise with it, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import torch
import hfdsl as hf
from hfdsl.rl.kl import kl_estimate

KL = 0.05

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]
class Rollout(hf.Batch):
    ids: hf.i64[B, R]
    mask: hf.bool_[B, R]
    log_probs: hf.f32[B, R]
class Reference(hf.Batch):
    {name}: hf.f32[B, R]
class Scores(hf.Batch):
    score: hf.f32[B]
class Rewards(hf.Batch):
    {column}: hf.f32[B, R]

class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, rewards: Rewards) -> None: ...
class Model(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("model")
    def score(self, rollout: Rollout) -> Scores: ...
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("model")
    def given(self, rollout: Rollout) -> Rollout: ...
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("model")
    def log_probs(self, rollout: Rollout) -> Reference: ...
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("model")
    def learn(self, rollout: Rollout, scores: Scores) -> None: ...

@hf.function
def shaped(rollout: Rollout, reference: Reference, scores: Scores, *, beta: float = 0.1) -> Rewards:
    old, ref = rollout.log_probs.tensor, reference.{name}.tensor
    score = scores.score.tensor
{body}
    return Rewards({column}=rewards)

@hf.dataflow
def step(prompts: Prompts, policy: Policy, judge: Model, reference: Model) -> None:
    rollout = policy.generate(prompts)
    policy.update(rollout, shaped(rollout, reference.log_probs(rollout), judge.score(rollout){option}))

@hf.dataflow
def implicit(prompts: Prompts, policy: Policy, judge: Model, reference: Model) -> None:
    rollout = policy.generate(prompts)
    scored = judge.given(rollout)
    judge.learn(rollout, judge.score(rollout))
    policy.update(rollout, shaped(scored, reference.log_probs(rollout), judge.score(rollout)))

@hf.dataflow
def watched(prompts: Prompts, policy: Policy, judge: Model, reference: Model) -> Rewards:
    rollout = policy.generate(prompts)
    return shaped(rollout, reference.log_probs(rollout), judge.score(rollout))
"""
PAYS = (
    "rewards = KL * (old - ref)\nrewards[:, -1] += score * rollout.mask.tensor[:, -1]",
    "rewards = -KL * (ref - old)",
    "gap = ref - old\nrewards = score[:, None] + beta * (gap.exp() - gap - 1)",
    "rewards = score[:, None] + beta * kl_estimate(old, ref, 'k3')",
    "kl = (old - ref).clamp(-5.0, 5.0)\nrewards = (score[:, None] + beta * kl) * rollout.mask.tensor",
    "rewards = score[:, None].expand_as(old) + beta * 0.5 * (old - ref).square()",
    "rewards = torch.zeros_like(old)\nrewards[:, :-1] = beta * (old - ref)[:, :-1]",
)
CHARGES = (
    "rewards = -KL * (old - ref)\nrewards[:, -1] += score * rollout.mask.tensor[:, -1]",
    "rewards = KL * (ref - old)",
    "gap = ref - old\nrewards = score[:, None] - beta * (gap.exp() - gap - 1)",
    "rewards = score[:, None] - beta * kl_estimate(old, ref, 'k3')",
    "kl = (old - ref).clamp(-5.0, 5.0)\nrewards = (score[:, None] - beta * kl) * rollout.mask.tensor",
    "penalty = -beta * (old - ref).square()\nrewards = score[:, None] + penalty",
    "rewards = score[:, None] - beta * (old - ref).abs()",
    "rewards = torch.zeros_like(old)\nrewards[:, :-1] = beta * (ref - old)[:, :-1]",
    "kl = old - ref\nrewards = -(beta * kl - score[:, None])",
    "rewards = score[:, None] * rollout.mask.tensor",
    "ratio = (old - ref).exp()\nrewards = score[:, None] / ratio",
)


def program(folder: Path, body: str, name: str = "ref_log_probs", column: str = "rewards", option: str = "") -> Any:
    text = textwrap.indent(body, " " * 4)
    return loaded(folder, MODULE.format(body=text, name=name, column=column, option=option))


def codes(dataflow: Any, module: Any) -> tuple[str, ...]:
    found = [code for code in dataflow.check(dims={module.B: 4}).codes if code == "HF353"]
    return tuple(found)


def paid(module: Any) -> float:
    """By how much the rewards of a policy that has left its reference are above those of one that has not."""
    zeros, scores = torch.zeros(2, 3), module.Scores(score=torch.tensor([1.0, 0.5]))
    rows = {"ids": zeros.long(), "mask": torch.ones(2, 3, dtype=torch.bool), "log_probs": zeros}
    far, near = (
        module.shaped(module.Rollout(**rows), module.Reference(ref_log_probs=zeros - gap), scores) for gap in (0.5, 0.0)
    )
    return float((far.rewards.tensor - near.rewards.tensor).sum())


@pytest.mark.parametrize("body", PAYS)
def test_rewards_that_rise_with_the_kl_are_reported(tmp_path: Path, body: str) -> None:
    module = program(tmp_path, body)
    assert paid(module) > 0
    assert codes(module.step, module) == ("HF353",)
    assert codes(module.implicit, module) == ()
    assert codes(module.watched, module) == ()


@pytest.mark.parametrize("body", CHARGES)
def test_rewards_that_do_not_are_not(tmp_path: Path, body: str) -> None:
    module = program(tmp_path, body)
    assert paid(module) <= 0
    assert codes(module.step, module) == ()


def test_names_and_numbers_decide(tmp_path: Path) -> None:
    body = "rewards = score[:, None] + beta * (old - ref)"
    for options, expected in (
        ({}, ("HF353",)),
        ({"name": "reference_log_probs", "column": "token_rewards"}, ("HF353",)),
        ({"name": "teacher_log_probs"}, ()),
        ({"column": "costs"}, ()),
        ({"column": "kl"}, ()),
        ({"option": ", beta=-0.1"}, ()),
        ({"option": ", beta=0.2"}, ("HF353",)),
    ):
        module = program(tmp_path, body, **options)
        assert codes(module.step, module) == expected, options


COMPARED = """
from __future__ import annotations
import torch
import hfdsl as hf

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    prompt: hf.i64[B, P]
class Rollout(hf.Batch):
    ids: hf.i64[B, R]
class Rewards(hf.Batch):
    rewards: hf.f32[B]
class Gains(hf.Batch):
    {column}: hf.f32[B]

class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, gains: Gains) -> None: ...
class Other(Policy): ...
class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, rollout: Rollout) -> Rewards: ...

@hf.function(rows=hf.Grouped(4))
def compared(given: Rewards) -> Gains:
    r = given.rewards.tensor.view(-1, 4)
{body}
    return Gains({column}=gains.view(-1))

@hf.dataflow
def step(prompts: Prompts, policy: Policy, judge: Judge) -> None:
    rollout = policy.generate(hf.repeat(prompts, 4))
    policy.update(rollout, compared(judge.score(rollout)))

@hf.dataflow
def game(prompts: Prompts, policy: Policy, other: Other, judge: Judge) -> None:
    rollout = policy.generate(hf.repeat(prompts, 4))
    policy.update(rollout, compared(judge.score(other.generate(hf.repeat(prompts, 4)))))
"""
FALLS = (
    "gains = r.mean(1, keepdim=True) - r",
    "gains = (r.mean(1, keepdim=True) - r) / (r.std(1, keepdim=True) + 1e-6)",
    "gains = -(r - r.mean(dim=1, keepdim=True))",
    "centered = r - r.mean(1, keepdim=True)\ngains = -1.0 * centered / (r.std(1, keepdim=True) + 1e-6)",
    "baseline = (r.sum(1, keepdim=True) - r) / 3\ngains = -(r - baseline)",
)
RISES = (
    "gains = r - r.mean(1, keepdim=True)",
    "gains = -(r.mean(1, keepdim=True) - r)",
    "gains = -r.mean(1, keepdim=True) + r",
    "gains = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)",
    "baseline = (r.sum(1, keepdim=True) - r) / 3\ngains = r - baseline",
    "gains = (4 * r - r.sum(1, keepdim=True)) / 3",
)


def compares(folder: Path, body: str, column: str = "advantages") -> Any:
    return loaded(folder, COMPARED.format(body=textwrap.indent(body, " " * 4), column=column))


def best_gains_most(module: Any) -> bool:
    """Whether the best response of a group has the greatest advantage."""
    gains = module.compared(module.Rewards(rewards=torch.tensor([0.0, 3.0, 1.0, 2.0])))
    return bool(gains.advantages.tensor.argmax() == 1)


@pytest.mark.parametrize("body", FALLS)
def test_advantages_that_fall_with_rewards_are_reported(tmp_path: Path, body: str) -> None:
    module = compares(tmp_path, body)
    assert not best_gains_most(module)
    assert module.step.check(dims={module.B: 4, module.P: 4, module.R: 4}).codes == ("HF358",)
    assert "HF358" not in module.game.check(dims={module.B: 4, module.P: 4, module.R: 4}).codes


@pytest.mark.parametrize("body", RISES)
def test_advantages_that_rise_with_rewards_are_not(tmp_path: Path, body: str) -> None:
    module = compares(tmp_path, body)
    assert best_gains_most(module)
    assert module.step.check(dims={module.B: 4, module.P: 4, module.R: 4}).codes == ()


def test_names_say_what_is_lowered(tmp_path: Path) -> None:
    for body, column in ((FALLS[0], "baseline_gap"), (FALLS[0] + "\nregret = gains", "advantages")):
        module = compares(tmp_path, body, column)
        assert module.step.check(dims={module.B: 4, module.P: 4, module.R: 4}).codes == ()
