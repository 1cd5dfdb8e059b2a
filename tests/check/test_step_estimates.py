"""Estimates over steps: reported where they differ from generalized advantages or returns, and nowhere else."""

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

class B(hf.Dim): ...
class R(hf.Dim): ...

class Rollout(hf.Batch):
    ids: hf.i64[B, R]
    rewards: hf.f32[B, R]
    values: hf.f32[B, R]
class Estimates(hf.Batch):
    {column}: hf.f32[B, R]
class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, estimates: Estimates) -> None: ...

def summed(deltas, decay):
    total, advantages = torch.zeros_like(deltas[:, 0]), torch.zeros_like(deltas)
    for t in {order}:
        total = deltas[:, t] + decay * total
        advantages[:, t] = total
    return advantages

@hf.function
def estimate(rollout: Rollout, gamma: float = 0.9, lam: float = 0.8) -> Estimates:
    r, v = rollout.rewards.tensor, rollout.values.tensor
    steps = r.shape[1]
    values = torch.cat([v, torch.zeros_like(v[:, :1])], dim=1)
    next_values = values[:, 1:]
    last = torch.zeros_like(r[:, 0])
    out = torch.zeros_like(r)
{body}
    return Estimates({column}=out)

@hf.dataflow
def step(rollout: Rollout, policy: Policy) -> None:
    policy.update(rollout, estimate(rollout))

@hf.dataflow
def watched(rollout: Rollout) -> Estimates:
    return estimate(rollout)
"""
DELTA = "    delta = r[:, t] + gamma * values[:, t + 1] - values[:, t]\n"
SUM = "    last = delta + gamma * lam * last\n    out[:, t] = last"
APPENDED = "    last = delta + gamma * lam * last\n    advantages.append(last)\n"
STACKED = "out = torch.stack(advantages, dim=1)"
BACKWARDS = "for t in reversed(range(steps)):\n"
CONSTANTS = (
    "GAMMA, LAM = gamma, lam\nfor t in {order}:\n"
    "    delta = r[:, t] + GAMMA * values[:, t + 1] - values[:, t]\n"
    "    last = delta + GAMMA * LAM * last\n    out[:, t] = last"
)
WRONG = {
    "by constants": CONSTANTS.format(order="range(steps)"),
    "forwards": "for t in range(steps):\n" + DELTA + SUM,
    "from 0": "for t in range(0, steps):\n" + DELTA + SUM,
    "in one line": "for t in range(steps):\n"
    "    last = r[:, t] + gamma * values[:, t + 1] - v[:, t] + gamma * lam * last\n    out[:, t] = last",
    "in two assignments at once": "for t in range(steps):\n"
    + DELTA
    + "    out[:, t] = last = delta + gamma * lam * last",
    "in a list": "advantages = []\nfor t in range(steps):\n" + DELTA + "    last = delta + gamma * lam * last\n"
    "    advantages.append(last)\nout = torch.stack(advantages, 1)",
    "in a list that keeps the order of the loop": "advantages = []\n" + BACKWARDS + DELTA + APPENDED + STACKED,
    "in a list by falling indices": "advantages = []\nfor t in range(steps - 1, -1, -1):\n"
    + DELTA
    + APPENDED
    + "out = torch.stack(advantages).T",
    "in a list of pairs": "advantages = []\ndeltas = r + gamma * next_values - v\n"
    "for delta, mask in zip(reversed(deltas.unbind(1)), reversed(torch.ones_like(r).unbind(1))):\n"
    "    last = delta + gamma * lam * last * mask\n    advantages.append(last)\n" + STACKED,
    "over the steps themselves": "advantages = []\nfor delta in (r + gamma * next_values - v).unbind(1):\n"
    + APPENDED
    + STACKED,
    "decayed values": BACKWARDS + DELTA.replace("gamma *", "gamma * lam *") + SUM,
    "decayed values at once": "deltas = r + gamma * lam * values[:, 1:] - values[:, :-1]\n"
    + BACKWARDS
    + SUM.replace("delta", "deltas[:, t]"),
    "a value twice": BACKWARDS + DELTA.replace("t + 1", "t") + SUM,
    "a value twice, where steps may end": BACKWARDS
    + "    alive = 1.0\n    delta = r[:, t] - v[:, t] + alive * gamma * v[:, t]\n"
    + SUM,
    "a value twice at once": "deltas = r + gamma * v - v\n" + BACKWARDS + SUM.replace("delta", "deltas[:, t]"),
    "values with the signs of each other": BACKWARDS
    + "    delta = r[:, t] - gamma * values[:, t + 1] + values[:, t]\n"
    + SUM,
    "values with the signs of each other in parentheses": BACKWARDS
    + "    delta = r[:, t] - (gamma * values[:, t + 1] - values[:, t])\n"
    + SUM,
    "values with the signs of each other by a name": BACKWARDS
    + "    after = v[:, t + 1] if t + 1 < steps else 0.0\n    delta = r[:, t] + v[:, t] - gamma * after\n"
    + SUM,
    "values with the signs of each other at once": "deltas = v + r - gamma * next_values\n"
    + BACKWARDS
    + SUM.replace("delta", "deltas[:, t]"),
    "both values subtracted": BACKWARDS + "    delta = r[:, t] - gamma * values[:, t + 1] - values[:, t]\n" + SUM,
    "decayed values by a name": "deltas = r + lam * gamma * next_values - v\n"
    + BACKWARDS
    + SUM.replace("delta", "deltas[:, t]"),
}
RIGHT = {
    "by constants": CONSTANTS.format(order="reversed(range(steps))"),
    "backwards": BACKWARDS + DELTA + SUM,
    "by a negative step": "for t in range(steps - 1, -1, -1):\n" + DELTA + SUM,
    "by an index of its own": "for i in range(steps):\n    t = steps - 1 - i\n" + DELTA + SUM,
    "in parentheses": BACKWARDS + "    delta = r[:, t] - (v[:, t] - gamma * values[:, t + 1])\n" + SUM,
    "negated": BACKWARDS + "    error = values[:, t] - r[:, t] - gamma * values[:, t + 1]\n    delta = -error\n" + SUM,
    "by a name": BACKWARDS
    + "    nxt = v[:, t + 1] if t + 1 < steps else 0.0\n    delta = r[:, t] + gamma * nxt - v[:, t]\n"
    + SUM,
    "by the value of the step before": "later = torch.zeros_like(last)\n"
    + BACKWARDS
    + "    value = v[:, t]\n    delta = r[:, t] + gamma * later - value\n    later = value\n"
    + SUM,
    "as costs": "costs = -r\n" + BACKWARDS + "    delta = -(costs[:, t] - gamma * values[:, t + 1] + v[:, t])\n" + SUM,
    "by shares": BACKWARDS
    + "    value = v[:, t]\n    delta = r[:, t] + gamma * values[:, t + 1] - value\n"
    + "    smoothed = value + gamma * value * 0\n"
    + SUM,
    "in two assignments at once": BACKWARDS + DELTA + "    out[:, t] = last = delta + gamma * lam * last",
    "from the end": "for i in range(1, steps + 1):\n    last = r[:, -i] + gamma * values[:, steps + 1 - i] - v[:, -i]"
    " + gamma * lam * last\n    out[:, -i] = last",
    "flipped": "deltas = (r + gamma * next_values - v).flip(1)\nfor t in range(steps):\n"
    "    last = deltas[:, t] + gamma * lam * last\n    out[:, t] = last\nout = out.flip(1)",
    **{
        f"by falling indices, {falling}": f"falling = {falling}\ndeltas = (r + gamma * next_values - v)[:, falling]\n"
        "for t in range(steps):\n    last = deltas[:, t] + gamma * lam * last\n    out[:, t] = last\n"
        "out = out[:, falling]"
        for falling in ("list(range(steps - 1, -1, -1))", "steps - 1 - torch.arange(steps)")
    },
    "in a list that is turned": "advantages = []\nfor t in range(steps - 1, -1, -1):\n"
    + DELTA
    + "    last = delta + gamma * lam * last\n    advantages.append(last)\nout = torch.stack(advantages[::-1], 1)",
    "in a list that is turned afterwards": "advantages = []\n"
    + BACKWARDS
    + DELTA
    + APPENDED
    + "advantages.reverse()\n"
    + STACKED,
    "in a list that is read from its end": "advantages = []\n"
    + BACKWARDS
    + DELTA
    + APPENDED
    + "for t in range(steps):\n    out[:, t] = advantages[steps - 1 - t]",
    "in a list that is emptied": "advantages = []\n"
    + BACKWARDS
    + DELTA
    + APPENDED
    + "for t in range(steps):\n    out[:, t] = advantages.pop()",
    "in a list of pairs that is turned": "advantages = []\ndeltas = r + gamma * next_values - v\n"
    "for delta in reversed(deltas.unbind(1)):\n" + APPENDED + "out = torch.stack(list(reversed(advantages)), 1)",
    "in a tensor that is flipped": "advantages = []\n"
    + BACKWARDS
    + DELTA
    + APPENDED
    + "out = torch.stack(advantages, 1).flip(1)",
    "in a list with places": "advantages = []\n"
    + BACKWARDS
    + DELTA
    + APPENDED
    + "for t, each in zip(range(steps - 1, -1, -1), advantages):\n    out[:, t] = each",
    "in a list from its start": "advantages = []\nfor t in reversed(range(steps)):\n"
    + DELTA
    + "    last = delta + gamma * lam * last\n    advantages.insert(0, last)\nout = torch.stack(advantages, 1)",
    "each step by itself": "deltas = r + gamma * next_values - v\nfor t in range(steps):\n"
    "    for k in range(t, steps):\n        out[:, t] += (gamma * lam) ** (k - t) * deltas[:, k]",
    "by powers": "deltas = r + gamma * next_values - v\nat = torch.arange(steps)\n"
    "powers = ((gamma * lam) ** (at[None] - at[:, None]).clamp(min=0)).triu()\nout = deltas @ powers.T",
    "as returns less values": "back = torch.zeros_like(last)\n"
    + BACKWARDS
    + "    back = r[:, t] + gamma * ((1 - lam) * values[:, t + 1] + lam * back)\n    out[:, t] = back - v[:, t]",
    "as returns, multiplied out": "back = torch.zeros_like(last)\n"
    + BACKWARDS
    + "    back = r[:, t] + gamma * (1 - lam) * values[:, t + 1] + gamma * lam * back\n    out[:, t] = back - v[:, t]",
}
MEANT = {
    "a trace": "trace = torch.zeros_like(last)\nfor t in range(steps):\n    trace = r[:, t] + gamma * lam * trace\n"
    "    out[:, t] = r[:, t] - trace.mean()",
    "a baseline": "mean = torch.zeros_like(last)\nfor t in range(steps):\n    out[:, t] = r[:, t] - mean\n"
    "    mean = lam * mean + (1 - lam) * r[:, t]",
    "seen so far": "seen = torch.zeros_like(r)\nfor t in range(steps):\n    last = r[:, t] + gamma * last\n"
    "    seen[:, t] = last\nprint(seen)",
}


def program(folder: Path, body: str, column: str = "advantages", order: str = "reversed(range(4))") -> Any:
    text = textwrap.indent(body, " " * 4)
    return loaded(folder, MODULE.format(body=text, column=column, order=order))


def is_generalized(module: Any) -> bool:
    """Whether an estimate is that of Schulman et al. (2016), equation 16."""
    draw = torch.Generator().manual_seed(0)
    r, v = torch.randn(3, 4, generator=draw), torch.randn(3, 4, generator=draw)
    later = torch.cat([v[:, 1:], torch.zeros(3, 1)], 1)
    deltas = r + 0.9 * later - v
    expected = torch.stack([deltas[:, t:] @ 0.72 ** torch.arange(4 - t) for t in range(4)], 1)
    rollout = module.Rollout(ids=torch.zeros(3, 4, dtype=torch.int64), rewards=r, values=v)
    [name] = module.Estimates.__annotations__
    return torch.allclose(getattr(module.estimate(rollout), name).tensor, expected, atol=1e-5)


def codes(dataflow: Any, module: Any) -> tuple[str, ...]:
    return tuple(code for code in dataflow.check(dims={module.B: 4}).codes if code == "HF363")


@pytest.mark.parametrize("name", WRONG)
def test_sums_over_the_wrong_steps_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG[name])
    assert not is_generalized(module)
    assert codes(module.step, module) == ("HF363",)
    assert codes(module.watched, module) == ()


@pytest.mark.parametrize("name", RIGHT)
def test_generalized_advantages_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert is_generalized(module)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("name", MEANT)
def test_other_sums_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, MEANT[name])
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("order", ["range(4)", "reversed(range(4))"])
def test_functions_that_are_called_are_read(tmp_path: Path, order: str) -> None:
    body = "out = summed(r + gamma * next_values - v, gamma * lam)"
    module = program(tmp_path, body, order=order)
    assert is_generalized(module) is (order != "range(4)")
    assert codes(module.step, module) == (("HF363",) if order == "range(4)" else ())


def test_names_say_what_is_estimated(tmp_path: Path) -> None:
    body = "for t in range(steps):\n    last = r[:, t] + gamma * last\n    out[:, t] = last"
    for column, expected in (("returns", ("HF363",)), ("gae_targets", ("HF363",)), ("momentum", ())):
        module = program(tmp_path, body, column=column)
        assert codes(module.step, module) == expected, column


TO_GO = """
from __future__ import annotations
import numpy as np
import torch
import hfdsl as hf
from hfdsl.rl.masked import whitened

class B(hf.Dim): ...
class R(hf.Dim): ...

class Rewarded(hf.Batch):
    rewards: hf.f32[B, R]
    mask: hf.bool_[B, R]
    score: hf.f32[B]
class Estimates(hf.Batch):
    advantages: hf.f32[B, R]
class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rewarded: Rewarded, estimates: Estimates) -> None: ...

def summed(x):
    return torch.cumsum(x, dim=-1)

def turned(x):
    return torch.flip(x, dims=[1])

def to_go(rewards, mask):
    returns = (rewards * mask).cumsum(1)
    return returns, returns[:, -1:]

@hf.function
def estimate(rewarded: Rewarded, gamma: float = 1.0) -> Estimates:
    r, mask, score = rewarded.rewards.tensor, rewarded.mask.tensor, rewarded.score.tensor
{body}
    return Estimates(advantages=out)

@hf.dataflow
def step(rewarded: Rewarded, policy: Policy) -> None:
    policy.update(rewarded, estimate(rewarded))
"""
UP_TO = {
    "a method": "out = r.cumsum(1)",
    "a function": "out = torch.cumsum(r, dim=-1)",
    "a function of the user's": "out = summed(r * mask)",
    "masked afterwards": "returns = r.cumsum(dim=1)\nout = returns.masked_fill(~mask, 0.0) * mask",
    "the first of two": "out, total = to_go(r, mask)",
    "in NumPy": "out = torch.from_numpy(np.cumsum(r.numpy(), axis=1))",
    "less a baseline": "out = r.cumsum(1) - r.mean()",
    "normalized": "total = r.cumsum(1)\nout = (total - total.mean()) / (total.std() + 1e-8)",
    "by a formula": "out = whitened(r.cumsum(1), mask)",
    "discounted": "out = (r * gamma ** torch.arange(r.shape[1])).cumsum(1)",
    "of steps before": "out = r.cumsum(1) - r",
    "with a score at the end": "rewards = r.clone()\nrewards[:, -1] += score\nout = rewards.cumsum(-1)",
    "of a buffer": "rewards = torch.zeros_like(r)\nrewards[:, -1] = score\nout = rewards.cumsum(-1) + r.cumsum(1)",
    "in a loop": "total, out = torch.zeros_like(score), torch.zeros_like(r)\nadvantages = out\n"
    "for t in range(r.shape[1]):\n    total = total + r[:, t]\n    advantages[:, t] = total",
    "in a loop, in place": "total, out = torch.zeros_like(score), torch.zeros_like(r)\nadvantages = out\n"
    "for t in range(r.shape[1]):\n    total += r[:, t]\n    advantages[:, t] = total.clone()\n    out[:, t] = total",
}
AFTER = {
    "flipped": "out = r.flip(1).cumsum(1).flip(1)",
    "flipped by a function": "out = turned(summed(turned(r)))",
    "in NumPy": "out = torch.from_numpy(np.ascontiguousarray(np.cumsum(r.numpy()[:, ::-1], axis=1)[:, ::-1]))",
    "from the total": "out = r.sum(1, keepdim=True) - r.cumsum(1) + r",
    "from the last": "total = r.cumsum(1)\nout = total[:, -1:] - total + r",
    "from two results": "total, last = to_go(r, torch.ones_like(mask))\nout = last - total + r",
    "by the same name": "returns = r.cumsum(1)\nreturns = returns[:, -1:] - returns + r\nout = returns",
    "by a negative": "out = -(r.cumsum(1) - r) + r.sum(-1, keepdim=True)",
    "by a matrix": "out = r @ torch.ones(r.shape[1], r.shape[1]).tril()",
    "by indices": "back = torch.arange(r.shape[1] - 1, -1, -1)\nout = r[:, back].cumsum(1)[:, back]",
}
OTHER = {
    "positions": "positions = mask.cumsum(1)\nout = score[:, None] * (positions <= 3)",
    "a count as weight": "out = r * mask.cumsum(1)",
    "a mask of the end": "out = torch.where(mask.cumsum(1) == mask.sum(1, keepdim=True), score[:, None], r)",
    "a ratio of what came before": "out = r * (r.cumsum(1) - r).exp()",
    "the last of a sum": "out = r.cumsum(1)[:, -1:].expand_as(r)",
    "a mean so far": "out = r - r.cumsum(1) / torch.arange(1, r.shape[1] + 1)",
    "over rows": "out = r - r.cumsum(0)",
    "a discount of steps": "out = score[:, None] * 0.9 ** (mask.sum(1, keepdim=True) - mask.cumsum(1))",
}


def is_to_go(module: Any) -> bool:
    """Whether an estimate is the sum of the rewards of each step and those after it."""
    rewards = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    rewarded = module.Rewarded(rewards=rewards, mask=torch.ones(3, 4, dtype=torch.bool), score=torch.ones(3))
    expected = torch.stack([rewards[:, t:].sum(1) for t in range(4)], 1)
    return torch.allclose(module.estimate(rewarded).advantages.tensor, expected, atol=1e-5)


@pytest.mark.parametrize("name", UP_TO)
def test_sums_of_rewards_up_to_each_step_are_reported(tmp_path: Path, name: str) -> None:
    module = loaded(tmp_path, TO_GO.format(body=textwrap.indent(UP_TO[name], " " * 4)))
    assert not is_to_go(module)
    assert codes(module.step, module) == ("HF363",)


@pytest.mark.parametrize("name", AFTER)
def test_rewards_to_go_are_not(tmp_path: Path, name: str) -> None:
    module = loaded(tmp_path, TO_GO.format(body=textwrap.indent(AFTER[name], " " * 4)))
    assert is_to_go(module)
    assert codes(module.step, module) == ()


@pytest.mark.parametrize("name", OTHER)
def test_other_uses_of_a_sum_up_to_each_step_are_not(tmp_path: Path, name: str) -> None:
    module = loaded(tmp_path, TO_GO.format(body=textwrap.indent(OTHER[name], " " * 4)))
    assert codes(module.step, module) == ()
