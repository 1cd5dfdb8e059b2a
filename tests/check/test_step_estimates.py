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
BACKWARDS = "for t in reversed(range(steps)):\n"
WRONG = {
    "forwards": "for t in range(steps):\n" + DELTA + SUM,
    "from 0": "for t in range(0, steps):\n" + DELTA + SUM,
    "in one line": "for t in range(steps):\n"
    "    last = r[:, t] + gamma * values[:, t + 1] - v[:, t] + gamma * lam * last\n    out[:, t] = last",
    "in two assignments at once": "for t in range(steps):\n"
    + DELTA
    + "    out[:, t] = last = delta + gamma * lam * last",
    "in a list": "advantages = []\nfor t in range(steps):\n" + DELTA + "    last = delta + gamma * lam * last\n"
    "    advantages.append(last)\nout = torch.stack(advantages, 1)",
    "decayed values": BACKWARDS + DELTA.replace("gamma *", "gamma * lam *") + SUM,
    "decayed values at once": "deltas = r + gamma * lam * values[:, 1:] - values[:, :-1]\n"
    + BACKWARDS
    + SUM.replace("delta", "deltas[:, t]"),
    "decayed values by a name": "deltas = r + lam * gamma * next_values - v\n"
    + BACKWARDS
    + SUM.replace("delta", "deltas[:, t]"),
}
RIGHT = {
    "backwards": BACKWARDS + DELTA + SUM,
    "by a negative step": "for t in range(steps - 1, -1, -1):\n" + DELTA + SUM,
    "by an index of its own": "for i in range(steps):\n    t = steps - 1 - i\n" + DELTA + SUM,
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
