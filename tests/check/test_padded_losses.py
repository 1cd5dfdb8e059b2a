"""Padding in losses of the user's: reported where an update depends on it, and nowhere else."""

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
import torch.nn.functional as F
from types import SimpleNamespace
import hfdsl as hf
from hfdsl.rl.masked import aggregated, masked_mean

class B(hf.Dim): ...
class R(hf.Dim): ...

class Experience(hf.Batch):
    ids: hf.i64[B, R]
    {mask}: hf.bool_[B, R]
    log_probs: hf.f32[B, R]
    ref_log_probs: hf.f32[B, R]
    advantage: hf.f32[B]
    token_lengths: hf.i64[B]
class Advantages(hf.Batch):
    advantages: hf.f32[B, R]

def token_mean(x, mask):
    return (x * mask).sum() / mask.sum().clamp(min=1)

def optional_mean(x, mask=None):
    return x.mean() if mask is None else token_mean(x, mask)

def aggregate(loss_mat, loss_mask, mode):
    if mode == "token-mean":
        return token_mean(loss_mat, loss_mask)
    if mode == "seq-mean-token-sum":
        return (loss_mat * loss_mask).sum(-1).mean()
    raise ValueError(mode)

def without_padding(x, mask):
    return x[mask]

def gathered(logits, labels):
    return logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]

def gathered_less_sum(logits, labels):
    return torch.gather(logits, -1, labels[..., None])[..., 0] - torch.logsumexp(logits, -1)

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.mode, self.metrics = "token-mean", {{}}
        self.model = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.model.weight, generator=torch.Generator().manual_seed(1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def all_of(self, experience: Experience) -> torch.Tensor:
        return self.model((experience.ids.tensor + 1) % 8).log_softmax(-1)

    def logits_of(self, ids, attention_mask):
        return self.model((ids + 1) % 8)

    def chosen(self, experience: Experience) -> torch.Tensor:
        return self.all_of(experience).gather(-1, experience.ids.tensor[..., None])[..., 0]

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, experience: Experience, single: Advantages) -> None:
        old, ref = experience.log_probs.tensor, experience.ref_log_probs.tensor
        gain, gains = experience.advantage.tensor[:, None], single.advantages.tensor
        now = self.chosen(experience)
        ratio = (now - old).exp()
{body}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

@hf.dataflow
def step(experience: Experience, single: Advantages, policy: Policy) -> None:
    policy.update(experience, single)
"""
MASK = "mask = experience.response_mask.tensor\n"
PADDED = (
    "loss = -(now * gain).mean()",
    "loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()",
    "loss = -(now.sum(-1) * experience.advantage.tensor).mean()",
    "loss = -(ratio * gain).mean(-1).mean()",
    "loss = -(ratio * gains).mean() + 0.1 * ((now - ref) ** 2).mean()",
    "gap = ref - now\nloss = (0.1 * (gap.exp() - gap - 1) - ratio * gains).mean()",
    "every = self.all_of(experience)\nloss = -(ratio * gains).mean() + 0.1 * (every.exp() * every).sum(-1).mean()",
    "scaled = (gain - gain.mean()) / (gain.std() + 1e-6)\nloss = -(now * scaled).sum() / len(now)",
    # a mask that reaches metrics, the model or another term
    MASK + "loss = -(ratio * gain).mean()\nself.metrics['ratio'] = token_mean(ratio.detach(), mask).item()",
    MASK + "loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()\n"
    "with torch.no_grad():\n    clipped = ((ratio - 1).abs() > 0.2)[mask].float().mean()",
    MASK + "ids = experience.ids.tensor\nnow = gathered(self.logits_of(ids, attention_mask=mask), ids)\n"
    "loss = -((now - old).exp() * gain).sum(-1).mean()",
    MASK + "ids = experience.ids.tensor\nnow = gathered_less_sum(self.logits_of(ids, mask), ids)\n"
    "loss = -(now * gain).mean()",
    MASK + "pg_losses = torch.max(-ratio * gain, -ratio.clamp(0.8, 1.2) * gain)\n"
    "kl = ((ref - now).exp() - (ref - now) - 1) * mask\nloss = pg_losses.mean() + 0.1 * kl.sum() / mask.sum()",
    MASK + "kl = (ref - now).exp() - (ref - now) - 1\n"
    "loss = -(ratio * gain * mask).sum() / (ratio * mask).detach().sum() + 0.1 * kl.mean()",
    (
        "mean_length = experience.token_lengths.tensor.float().mean()\nself.metrics['length'] = mean_length.item()\n"
        "loss = -(ratio * gain).mean()"
    ),
    MASK + "loss = -(ratio * gain).mean()\nloss_mask_sum = mask.sum()\nprint(loss_mask_sum)",
    MASK + "data = {'mask': mask, 'gain': gain, 'old': old}\nloss = -((now - data['old']).exp() * data['gain']).mean()",
    MASK + "every = self.all_of(experience)\nentropy = -(every.exp() * every).sum(-1)\n"
    "self.metrics['entropy'] = token_mean(entropy.detach(), mask).item()\n"
    "loss = token_mean(-ratio * gain, mask) - 0.1 * entropy.mean()",
    MASK + "loss = -(ratio * gain)[:, 1:].mean()\nweight = mask.float()",
    MASK + "clipped = torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.2))\n"
    "losses = torch.where(gain < 0, torch.min(-gain * 3.0, clipped), clipped)\n"
    "loss = losses.mean()\nself.metrics['losses'] = token_mean(losses.detach(), mask).item()",
    MASK + "losses = []\nfor r, g, m in zip(ratio.split(1), gain.split(1), mask.split(1)):\n"
    "    losses.append(-(r * g).mean())\n    self.metrics['tokens'] = int(m.sum())\n"
    "loss = torch.stack(losses).mean()",
)
LEFT_OUT = (
    MASK + "loss = -(now * gain * mask).sum() / mask.sum()",
    MASK + "loss = -masked_mean(ratio * gain, mask)",
    MASK + "loss = aggregated(-ratio * gain, mask)",
    MASK + "loss = -(now * gain)[mask].mean()",
    MASK + "loss = -(now.masked_fill(~mask, 0.0).sum(-1) * experience.advantage.tensor).mean()",
    MASK + "loss = torch.where(mask, -ratio * gain, torch.zeros_like(ratio)).mean()",
    "loss = -(ratio * gains).mean()",
    "loss = -(now * gains).sum()",
    (
        "at = torch.arange(now.shape[1])\nreal = at < experience.token_lengths.tensor[:, None]\n"
        "loss = -(now * gain * real).sum() / real.sum()"
    ),
    (
        "loss = 0.0\nfor row, count, weight in zip(now, experience.token_lengths.tensor, gain):\n"
        "    loss = loss - (row[:count] * weight).mean()"
    ),
    (
        "labels = experience.ids.tensor.masked_fill(~experience.response_mask.tensor, -100)\n"
        "nll = F.cross_entropy(self.all_of(experience).flatten(0, 1), labels.flatten(), reduction='none')\n"
        "loss = (nll.view_as(old) * gain).mean()"
    ),
    # a mask that reaches the mean by way of something else
    MASK + "loss = optional_mean(-ratio * gain, mask)",
    MASK + "loss = aggregate(loss_mat=-ratio * gain, loss_mask=mask, mode=self.mode)",
    MASK + "loss = aggregate(-ratio * gain, mask, 'seq-mean-token-sum') / mask.shape[1]",
    MASK + "kl = (((now - ref) * mask) ** 2).sum(-1).mean()\nloss = token_mean(-ratio * gain, mask) + 0.1 * kl",
    MASK + "loss = -without_padding(ratio * gain, mask).mean()",
    MASK + "losses = -ratio * gain\nlosses[~mask] = 0.0\nloss = losses.sum() / mask.sum()",
    MASK + "losses = -ratio * gain\nlosses.masked_fill_(~mask, 0.0)\nloss = losses.mean()",
    MASK + "ratio = torch.exp(torch.where(mask, now - old, torch.zeros_like(old)))\nloss = -(ratio * gain).mean()",
    MASK + "ratio = ((now - old) * mask).exp()\nloss = -(ratio * gain).mean()",
    MASK + "gain = gain * mask\nloss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum() / mask.sum()",
    MASK + "loss = (-ratio * gain).flatten() @ mask.flatten().float() / mask.sum()",
    MASK + "loss = torch.einsum('bt,bt->', -ratio * gain, mask.float()) / mask.sum()",
    MASK + "weights = mask / mask.sum(-1, keepdim=True)\nloss = -(ratio * gain * weights).sum(-1).mean()",
    MASK + "logits = self.logits_of(experience.ids.tensor, mask)[mask]\nids = experience.ids.tensor[mask]\n"
    "every = logits.log_softmax(-1)\nentropy = -(every.exp() * every).sum(-1)\n"
    "now = every.gather(-1, ids[:, None])[:, 0]\ngain = gain.expand(-1, 4)[mask]\n"
    "loss = -((now - old[mask]).exp() * gain).mean() - 0.1 * entropy.mean()",
    MASK + "ids = experience.ids.tensor.masked_select(mask)\nevery = self.logits_of(ids, None).log_softmax(-1)\n"
    "now = every.gather(-1, ids[:, None])[:, 0]\nentropy = -(every.exp() * every).sum(-1)\n"
    "loss = -((now - old[mask]).exp() * single.advantages.tensor[mask]).mean() - 0.1 * entropy.mean()",
    MASK + "every = self.all_of(experience)[mask]\nentropy = torch.distributions.Categorical(logits=every).entropy()\n"
    "loss = token_mean(-ratio * gain, mask) - 0.1 * entropy.mean()",
    MASK + "now = now * mask\nkl = (now - ref * mask).square().sum(-1)\n"
    "loss = token_mean(-ratio * gain, mask) + 0.1 * kl.mean()",
    MASK + "kl = F.kl_div(now * mask, ref * mask, log_target=True)\nloss = token_mean(-ratio * gain, mask) + 0.1 * kl",
    MASK + "loss = -(ratio * gain)\nif self.mode == 'token-mean':\n    loss = loss[mask]\nloss = loss.mean()",
    MASK + "if self.mode == 'mean':\n    loss = -(ratio * gain).mean()\n"
    "else:\n    loss = torch.dot((-ratio * gain).flatten(), mask.flatten().float()) / mask.sum()",
    (
        "loss = 0.0\nfor row in range(len(now)):\n    n = int(experience.token_lengths.tensor[row])\n"
        "    ids = experience.ids.tensor[row : row + 1, :n]\n    every = self.model((ids + 1) % 8).log_softmax(-1)\n"
        "    now = every.gather(-1, ids[..., None])[..., 0]\n"
        "    loss = loss - (now * experience.advantage.tensor[row]).sum()"
    ),
    MASK + "ends = (experience.ids.tensor == 7).cumsum(1)\nkeep = torch.logical_and(ends == 0, mask)\n"
    "loss = -(ratio * gain * keep).sum() / keep.sum()",
    MASK + "clipped = torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.2))\n"
    "losses = torch.where(gain < 0, torch.min(-gain * 3.0, clipped), clipped)\n"
    "loss = token_mean(losses, mask)",
    MASK + "gains = gain.expand_as(old).clone()\ngains[~mask] = 0\nloss = -(ratio * gains).mean()",
    MASK + "drift = ((now - old) * mask).sum(-1) / mask.sum(-1)\n"
    "ratio = (now - now.detach() + drift.detach()[:, None]).exp()\nloss = token_mean(-ratio * gain, mask)",
    # padding that the update has cut away
    MASK + "size = int(mask.sum(1).max())\nrows = mask[:, size - 1]\nlosses = (-ratio * gain)[:, :size]\n"
    "loss = (losses * mask[:, :size]).sum() / mask.sum() + 0.0 * rows.sum()",
    MASK + "at = mask.flatten().nonzero()[:, 0]\nids = experience.ids.tensor.flatten()[at]\n"
    "now = gathered(self.logits_of(ids, None), ids)\nfull = torch.zeros(mask.numel()).scatter(0, at, now)\n"
    "loss = -(full.view_as(old) * gain).sum() / mask.sum()",
    # numbers that weigh padding by 0
    MASK + "batch = {'loss_weights': mask / mask.sum(), 'gain': gain}\n"
    "loss = -(ratio * batch['gain'] * batch['loss_weights']).sum()",
    MASK + "batch = SimpleNamespace(loss_weights=mask / mask.sum())\nloss = -(ratio * gain * batch.loss_weights).sum()",
    MASK + "weights = torch.nan_to_num(mask / mask.sum(-1, keepdim=True)).abs()\n"
    "loss = -(ratio * gain * weights).sum(-1).mean()",
    MASK + "pad = 1.0 - mask.float()\nloss = -(ratio * gain * (1.0 - pad)).sum() / (1.0 - pad).sum()",
)


def program(folder: Path, body: str, mask: str = "response_mask") -> Any:
    return loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8), mask=mask))


def weights(module: Any, padding: int) -> torch.Tensor:
    """The model after an update on responses whose padding has some token."""
    policy, mask = module.Policy(), torch.tensor([[True, True, False, False], [True, True, True, False]])
    ids = torch.where(mask, torch.tensor([[1, 2, 3, 4], [2, 3, 1, 4]]), torch.tensor(padding))
    rows = module.Experience(
        ids=ids,
        response_mask=mask,
        log_probs=torch.zeros(2, 4) - 2.0,
        ref_log_probs=torch.zeros(2, 4) - 3.0,
        advantage=torch.tensor([1.0, -0.5]),
        token_lengths=mask.sum(-1),
    )
    gains = module.Advantages(advantages=mask * torch.tensor([[1.0], [-0.5]]))
    module.step(rows, gains, policy)
    after: torch.Tensor = policy.model.weight.detach()
    return after


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.R: 4})
    return tuple(report.codes)


@pytest.mark.parametrize("body", PADDED)
def test_padding_in_a_loss_is_reported(tmp_path: Path, body: str) -> None:
    module = program(tmp_path, body)
    assert not torch.equal(weights(module, 0), weights(module, 6))
    assert codes(module) == ("HF355",)
    renamed = body.replace("response_mask", "chosen_by_a_user")
    assert codes(program(tmp_path, renamed, mask="chosen_by_a_user")) == ()


@pytest.mark.parametrize("body", LEFT_OUT)
def test_a_loss_without_padding_is_not(tmp_path: Path, body: str) -> None:
    module = program(tmp_path, body)
    assert torch.allclose(weights(module, 0), weights(module, 6))
    assert codes(module) == ()


FULL = ["torch.ones(4, 4, dtype=torch.bool)", "torch.cat([torch.ones(4, 4), torch.ones(4, 1)], 1)[:, 1:].bool()"]
CUT = [
    f"torch.cat([{first}, ends[:, :-1] == 0], 1)"
    for first in (
        "torch.ones_like(ends[:, :1]).bool()",
        "ends.new_ones(len(ends), 1).bool()",
        "torch.ones((4, 1)).bool()",
    )
]


@pytest.mark.parametrize("mask", [*FULL, *CUT])
def test_responses_that_are_full_have_no_padding(tmp_path: Path, mask: str) -> None:
    text = MODULE.format(body=textwrap.indent(PADDED[0], " " * 8), mask="response_mask")
    sampler = """
class Sampler(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def sample(self, single: Prompts) -> Experience:
        ends = (single.prompt.tensor == 2).long().cumsum(1)
        return Experience(response_mask=MASK)

class P(hf.Dim): ...
class Prompts(hf.Batch):
    prompt: hf.i64[B, P]

@hf.dataflow
def step(prompts: Prompts, single: Advantages, policy: Policy, sampler: Sampler) -> None:
    policy.update(sampler.sample(prompts), single)
"""
    module = loaded(tmp_path, text[: text.index("@hf.dataflow")] + sampler.replace("MASK", mask))
    assert ("HF355" in codes(module)) is (mask in CUT)
