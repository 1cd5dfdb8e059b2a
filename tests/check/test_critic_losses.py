"""Losses of critics of the user's: the smaller of two errors, and advantages as targets, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.check.repair.edits import apply
from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import torch
import torch.nn.functional as F
import hfdsl as hf
from hfdsl.rl.masked import masked_mean

class B(hf.Dim): ...
class R(hf.Dim): ...

class Rollout(hf.Batch):
    ids: hf.i64[B, R]
    response_mask: hf.bool_[B, R]
    rewards: hf.f32[B, R]
class Values(hf.Batch):
    values: hf.f32[B, R]
class Estimates(hf.Batch):
    advantages: hf.f32[B, R]
    returns: hf.f32[B, R]
class Lesson(hf.Batch):
    ids: hf.i64[B, R]
    response_mask: hf.bool_[B, R]
    old: hf.f32[B, R]
    advantages: hf.f32[B, R]
    target: hf.f32[B, R]

def token_mean(x, mask):
    return (x * mask).sum() / mask.sum().clamp(min=1)

def clip_by_value(x, tensor_min, tensor_max):
    return torch.max(torch.min(x, tensor_max), tensor_min)

class ValueLoss(torch.nn.Module):
    def __init__(self, clip_eps: float = 0.1) -> None:
        super().__init__()
        self.clip_eps = clip_eps

    def forward(self, values, old_values, returns, action_mask=None):
        if self.clip_eps is not None:
            values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
            surr1 = (values_clipped - returns) ** 2
            surr2 = (values - returns) ** 2
            loss = torch.{extreme}(surr1, surr2)
        else:
            loss = (values - returns) ** 2
        return 0.5 * token_mean(loss, action_mask)

class Critic(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Embedding(8, 1)
        torch.nn.init.normal_(self.model.weight, generator=torch.Generator().manual_seed(1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.eps = 0.1
        self.value_loss = ValueLoss()

    def forward_micro_batch(self, ids):
        values = self.model(ids)
        return values.squeeze(-1)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("critic")
    def value(self, rollout: Rollout) -> Values:
        return Values(values=self.forward_micro_batch(rollout.ids.tensor).detach())

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("critic")
    def learn(self, lesson: Lesson) -> None:
        ids, mask, eps = lesson.ids.tensor, lesson.response_mask.tensor, self.eps
        old, returns, gains = lesson.old.tensor, lesson.target.tensor, lesson.advantages.tensor
        now = self.forward_micro_batch(ids)
{body}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rollout: Rollout, estimates: Estimates) -> None: ...

@hf.function
def estimate(rollout: Rollout, values: Values) -> Estimates:
    returns = rollout.rewards.tensor.flip(1).cumsum(1).flip(1)
    return Estimates(advantages=returns - values.values.tensor, returns=returns)

@hf.function
def smoothed(values: Values) -> Values:
    return Values(values=values.values.tensor.clamp(-1, 1))

@hf.dataflow
def step(rollout: Rollout, critic: Critic, policy: Policy) -> None:
    values = critic.value(rollout)
    estimates = estimate(rollout, values)
    columns = {{"ids": rollout.ids, "response_mask": rollout.response_mask}}
    critic.learn(Lesson(**columns, old={old}, advantages=estimates.advantages, target=estimates.{target}))
    policy.update(rollout, estimates)
"""
HELD = "held = old + (now - old).clamp(-eps, eps)\n"
SQUARES = "plain, clipped = (now - returns) ** 2, (held - returns) ** 2\n"
EXTREMES = {
    "of a change": HELD + SQUARES + "loss = 0.5 * (torch.{extreme}(plain, clipped) * mask).sum() / mask.sum()",
    "between bounds": "held = torch.clamp(now, old - eps, old + eps)\n"
    + SQUARES
    + "loss = token_mean(torch.{extreme}imum(plain, clipped), mask)",
    "by functions": "held = clip_by_value(now, old - self.eps, old + self.eps)\n"
    "vf_losses1, vf_losses2 = (now - returns).pow(2), (held - returns).pow(2)\n"
    "loss = 0.5 * token_mean(torch.{extreme}(vf_losses1, vf_losses2), mask)",
    "an object": "loss = self.value_loss(now, old, returns, action_mask=mask)",
    "errors of torch": HELD + "plain = F.mse_loss(now, returns, reduction='none')\n"
    "clipped = F.mse_loss(held, returns, reduction='none')\n"
    "loss = masked_mean(torch.{extreme}(plain, clipped), mask)",
    "a method": HELD + SQUARES + "loss = (plain.{extreme}(clipped) * mask).sum(-1).mean()",
    "with a coefficient": HELD + "error = returns - now\nplain, clipped = error * error, (returns - held).square()\n"
    "loss = self.eps * token_mean(torch.{extreme}(clipped, plain), mask)",
    "shuffled mini-batches": "loss = 0.0\nfor rows in torch.randperm(len(ids)).split(1):\n"
    "    v, o, t, m = self.forward_micro_batch(ids[rows]), old[rows], returns[rows], mask[rows]\n"
    "    c = o + torch.clamp(v - o, min=-eps, max=eps)\n"
    "    loss = loss + token_mean(torch.{extreme}((v - t) ** 2, (c - t) ** 2), m) / len(ids)",
    "rows that are selected": "loss, rows = 0.0, torch.randperm(len(ids))\n"
    "v, o, t = (self.forward_micro_batch(ids.index_select(0, rows)), old.index_select(0, rows), returns[rows])\n"
    "c = o + torch.clamp(v - o, min=-eps, max=eps)\n"
    "loss = token_mean(torch.{extreme}((v - t) ** 2, (c - t) ** 2), mask[rows])",
    "a dictionary": "loss, columns = 0.0, {'ids': ids, 'old': old, 'returns': returns, 'mask': mask}\n"
    "for rows in torch.randperm(len(ids)).split(1):\n"
    "    part = {name: column[rows] for name, column in columns.items()}\n"
    "    v, o, t = self.forward_micro_batch(part['ids']), part['old'], part['returns']\n"
    "    c = o + torch.clamp(v - o, min=-eps, max=eps)\n"
    "    loss = loss + token_mean(torch.{extreme}((v - t) ** 2, (c - t) ** 2), part['mask']) / len(ids)",
    "mini-batches": "loss = 0.0\nfor v, o, t, m in zip(now.split(1), old.split(1), returns.split(1), mask.split(1)):\n"
    "    c = o + torch.clamp(v - o, min=-eps, max=eps)\n"
    "    loss = loss + token_mean(torch.{extreme}((v - t) ** 2, (c - t) ** 2), m) / len(ids)",
}
RIGHT = {
    "without a clip": "loss = token_mean((now - returns) ** 2, mask)",
    "a negated smaller one": HELD + SQUARES + "loss = -token_mean(torch.min(-plain, -clipped), mask)",
    "errors that are held": HELD + SQUARES + "loss = token_mean(torch.min(plain, torch.ones_like(plain)), mask)",
    "the smaller of two targets": "loss = token_mean(torch.min((now - returns) ** 2, (now - gains - old) ** 2), mask)",
    "a metric": HELD + SQUARES + "loss = token_mean(torch.max(plain, clipped), mask)\n"
    "self.smaller = token_mean(plain.detach().minimum(clipped.detach()), mask)",
    "a metric with a gradient": HELD + SQUARES + "loss = token_mean(torch.max(plain, clipped), mask)\n"
    "self.smaller = torch.min(plain, clipped).mean().item()",
    "two critics": "other = (self.model(ids)[..., 0] - returns) ** 2\n"
    "loss = token_mean(torch.min((now - returns) ** 2, other), mask)",
    "what is left of advantages": "delta = now - old\nloss = token_mean((delta - gains) ** 2, mask)",
    "a huber loss": "loss = token_mean(F.smooth_l1_loss(now, returns, reduction='none'), mask)",
    "advantages and values": "loss = token_mean((now - (gains + old)) ** 2, mask)",
    "advantages that are added": "target = old.clone()\ntarget = target + gains\nloss = F.mse_loss(now, target)",
    "advantages as weights": "loss = token_mean(gains.abs() * (now - returns) ** 2, mask)",
}
ADVANTAGES = {
    "shuffled mini-batches": "loss = 0.0\nfor rows in torch.randperm(len(ids)).split(1):\n"
    "    error = self.forward_micro_batch(ids[rows]) - gains[rows]\n"
    "    loss = loss + token_mean(error**2, mask[rows]) / len(ids)",
    "a square": "loss = token_mean((now - gains) ** 2, mask)",
    "a function": "loss = F.mse_loss(now, gains)",
    "a clip": HELD + "loss = token_mean(torch.max((now - gains).square(), (held - gains).square()), mask)",
    "an object": "loss = self.value_loss(now, old, lesson.advantages.tensor, mask)",
    "a name": "targets = lesson.advantages.tensor\nloss = 0.5 * ((now - targets).pow(2) * mask).sum() / mask.sum()",
    "without a name": "loss = F.huber_loss(self.model(ids)[..., 0], gains, reduction='none').mean()",
}

AROUND_NEW = {
    "a change": "held = now + (old - now).clamp(-eps, eps)\n"
    + SQUARES
    + "loss = token_mean(torch.max(plain, clipped), mask)",
    "a change that is subtracted": "held = now - torch.clamp(now - old, -self.eps, self.eps)\n"
    "loss = token_mean(torch.maximum(F.mse_loss(now, returns, reduction='none'), (held - returns).square()), mask)",
    "the change first": "change = (old - now).clamp(min=-eps, max=eps)\nheld = change + now\n"
    + SQUARES
    + "loss = 0.5 * (plain.max(clipped) * mask).sum() / mask.sum()",
}
AROUND_OLD = {
    "a change": HELD + SQUARES + "loss = token_mean(torch.max(plain, clipped), mask)",
    "a change that is subtracted": "held = old - (old - now).clamp(-eps, eps)\n"
    + SQUARES
    + "loss = token_mean(torch.max(plain, clipped), mask)",
    "the change first": "held = (now - old).clamp(-eps, eps) + old\n"
    + SQUARES
    + "loss = token_mean(torch.max(plain, clipped), mask)",
    "targets near new values": "target = now.detach() + (returns - now).detach().clamp(-eps, eps)\n"
    "loss = token_mean((now - target) ** 2, mask)",
    "errors in a metric": HELD
    + SQUARES
    + "loss = token_mean(torch.max(plain, clipped), mask)\n"
    + "self.moved = (now + (old - now).clamp(-eps, eps)).mean().item()",
}


def program(folder: Path, body: str, extreme: str = "max", target: str = "returns", old: str = "values.values") -> Any:
    text = textwrap.indent(body.replace("{extreme}", extreme), " " * 8)
    return loaded(folder, MODULE.format(body=text, extreme=extreme, target=target, old=old))


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.R: 4})
    return tuple(report.codes)


def learns_beyond_the_clip(module: Any) -> bool:
    """Whether a value learns that has left the old one by more than the clip, away from its return."""
    critic, ids = module.Critic(), torch.tensor([[1, 2]])
    before = critic.model.weight.detach().clone()
    now, ones = critic.forward_micro_batch(ids).detach(), torch.ones(1, 2)
    mask = ones.bool()
    critic.learn(module.Lesson(ids=ids, response_mask=mask, old=now + ones, advantages=-ones, target=now + 2 * ones))
    return not torch.equal(critic.model.weight, before)


@pytest.mark.parametrize("name", EXTREMES)
def test_the_smaller_of_two_errors_is_reported(tmp_path: Path, name: str) -> None:
    right, wrong = program(tmp_path, EXTREMES[name]), program(tmp_path, EXTREMES[name], "min")
    assert learns_beyond_the_clip(right)
    assert not learns_beyond_the_clip(wrong)
    assert codes(right) == ()
    assert codes(wrong) == ("HF946",)


def test_the_greater_one_is_an_edit(tmp_path: Path) -> None:
    module = program(tmp_path, EXTREMES["of a change"], "min")
    [finding] = module.step.check(dims={module.B: 4, module.R: 4}).findings
    [fix] = finding.fixes
    assert "torch.max(plain, clipped)" in apply(Path(module.__file__).read_text("utf-8"), fix.edits)


@pytest.mark.parametrize("name", RIGHT)
def test_other_losses_are_not(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, RIGHT[name])) == ()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_as_targets_are_reported(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, ADVANTAGES[name])) == ("HF351",)


def test_advantages_under_the_name_of_a_target_are_reported(tmp_path: Path) -> None:
    body = "loss = token_mean((now - returns) ** 2, mask)"
    module = program(tmp_path, body, target="advantages")
    [finding] = module.step.check(dims={module.B: 4, module.R: 4}).findings
    assert finding.code == "HF351"
    assert finding.message == (
        "'critic.learn' learns 'advantages' of 'estimate', which are advantages over the values of 'critic.value': "
        "they are 0 on average, and so are the values that it learns"
    )


@pytest.mark.parametrize("name", EXTREMES)
def test_a_clip_around_what_is_learned_is_reported(tmp_path: Path, name: str) -> None:
    for old in ("estimates.returns", "estimates.advantages"):
        assert codes(program(tmp_path, EXTREMES[name], old=old)) == ("HF348",)


def test_old_values_that_a_function_makes_are_meant(tmp_path: Path) -> None:
    assert codes(program(tmp_path, EXTREMES["of a change"], old="smoothed(values).values")) == ()
    assert codes(program(tmp_path, RIGHT["without a clip"], old="estimates.returns")) == ()


@pytest.mark.parametrize("name", AROUND_NEW)
def test_a_clip_around_new_values_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, AROUND_NEW[name])
    [finding] = module.step.check(dims={module.B: 4, module.R: 4}).findings
    assert (finding.code, finding.primary.text) == ("HF348", "a clip around the new values")


@pytest.mark.parametrize("name", AROUND_OLD)
def test_a_clip_around_old_values_is_not(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, AROUND_OLD[name])) == ()
