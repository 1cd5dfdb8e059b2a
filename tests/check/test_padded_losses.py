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

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.model.weight, generator=torch.Generator().manual_seed(1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def all_of(self, experience: Experience) -> torch.Tensor:
        return self.model((experience.ids.tensor + 1) % 8).log_softmax(-1)

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
    assert codes(program(tmp_path, body, mask="chosen_by_a_user")) == ()


@pytest.mark.parametrize("body", LEFT_OUT)
def test_a_loss_without_padding_is_not(tmp_path: Path, body: str) -> None:
    module = program(tmp_path, body)
    assert torch.allclose(weights(module, 0), weights(module, 6))
    assert codes(module) == ()


def test_responses_that_are_full_have_no_padding(tmp_path: Path) -> None:
    text = MODULE.format(body=textwrap.indent(PADDED[0], " " * 8), mask="response_mask")
    sampler = """
class Sampler(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def sample(self, single: Prompts) -> Experience:
        return Experience(response_mask=torch.ones(4, 4, dtype=torch.bool))

class P(hf.Dim): ...
class Prompts(hf.Batch):
    prompt: hf.i64[B, P]

@hf.dataflow
def step(prompts: Prompts, single: Advantages, policy: Policy, sampler: Sampler) -> None:
    policy.update(sampler.sample(prompts), single)
"""
    module = loaded(tmp_path, text[: text.index("@hf.dataflow")] + sampler)
    assert "HF355" not in codes(module)
