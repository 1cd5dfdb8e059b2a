"""Masks of losses: reported where an update learns prompts, or weighs terms by padding, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfdsl.check.repair.edits import apply
from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset
import hfdsl as hf
from hfdsl.rl.masked import aggregated, masked_mean, masked_sum

PAD = 3

class B(hf.Dim): ...
class P(hf.Dim): ...
class R(hf.Dim): ...
T = hf.Add[P, R]

class Experience(hf.Batch):
    input_ids: hf.i64[B, T]
    labels: hf.i64[B, T]
    response_ids: hf.i64[B, R]
    attention_mask: hf.bool_[B, T]
    loss_mask: hf.bool_[B, T]
    response_mask: hf.bool_[B, R]
    prompt_lengths: hf.i64[B]
    log_probs: hf.f32[B, T]
    ref_log_probs: hf.f32[B, T]
    advantages: hf.f32[B]
    gaes: hf.f32[B, T]

def selected(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]

def average(x, mask, dim=None):
    return (x * mask).sum(dim) / mask.sum(dim).clamp(min=1)

def blank(mask, n):
    mask[:, :n] = False

class Policy(hf.Worker):
    def __init__(self, beta: float = 0.1, horizon: int = 16) -> None:
        self.beta, self.horizon = beta, horizon
        self.model = make_model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def forward(self, ids):
        return self.model(ids).logits[:, :-1]

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, experience: Experience) -> None:
        ids, old, ref = experience.input_ids.tensor, experience.log_probs.tensor, experience.ref_log_probs.tensor
        gain, n = experience.advantages.tensor[:, None], experience.response_mask.tensor.shape[1]
        now = selected(self.forward(ids), ids[:, 1:])
        ratio = (now - old[:, 1:]).exp()
{body}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

@hf.dataflow
def step(experience: Experience, policy: Policy) -> None:
    policy.update(experience)
"""
ATTENTION = "mask = experience.attention_mask.tensor[:, 1:]\n"
RESPONSE = "mask = experience.response_mask.tensor\nnow, old, ref = now[:, -n:], old[:, -n:], ref[:, -n:]\n"
TAKES = "ratio = (now - old).exp()\n"
AVERAGE = "loss = -(ratio * gain * mask).sum() / mask.sum()"
PROMPTS = {
    "a shifted mask": ATTENTION + AVERAGE,
    "numbers of a mask": "mask = experience.attention_mask.tensor[:, 1:].float().contiguous()\n" + AVERAGE,
    "a function": ATTENTION + "loss = average(-torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain), mask)",
    "a formula": ATTENTION + "loss = masked_mean(-ratio * gain, mask)",
    "aggregated": ATTENTION + "loss = aggregated(-ratio * gain, mask)",
    "each sequence": ATTENTION + "loss = -((ratio * gain * mask).sum(-1) / mask.sum(-1)).mean()",
    "over a constant": ATTENTION + "loss = -(ratio * gain * mask).sum(-1).mean() / self.horizon",
    "a policy gradient": ATTENTION + "loss = -(now * mask).sum(-1).mul(experience.advantages.tensor).mean()",
    "tokens that are no padding": "mask = (ids != PAD)[:, 1:]\n" + AVERAGE,
    "tokens that are no padding, as numbers": "mask = ids[:, 1:].ne(PAD).float()\n" + AVERAGE,
    "a comparison": "mask = experience.attention_mask.tensor[:, 1:] == 1\n" + AVERAGE,
    "a mean": ATTENTION + "loss = -(ratio * gain * mask).mean()",
    "mini-batches": "loss = 0.0\nfor start in range(0, len(ids), 1):\n"
    "    part = experience[start : start + 1]\n    ids = part.input_ids.tensor\n"
    "    ratio = (selected(self.forward(ids), ids[:, 1:]) - part.log_probs.tensor[:, 1:]).exp()\n"
    "    mask = part.attention_mask.tensor[:, 1:]\n"
    "    loss = loss - (ratio * part.advantages.tensor[:, None] * mask).sum() / mask.sum()",
    "slices of rows": "loss = 0.0\nfor start in range(0, len(ids), 2):\n    some = ids[start : start + 2]\n"
    "    ratio = (selected(self.forward(some), some[:, 1:]) - old[start : start + 2, 1:]).exp()\n"
    "    mask = experience.attention_mask.tensor[start : start + 2, 1:]\n"
    "    loss = loss - (ratio * gain[start : start + 2] * mask).sum() / mask.sum()",
    "all of it": "mask = experience.attention_mask.tensor[()][:, 1:]\n" + AVERAGE,
    "slices of rows by name": "loss, whole = 0.0, experience.attention_mask.tensor.float()\n"
    "for start in range(0, len(ids), 2):\n    stop = start + 2\n    some = ids[start:stop]\n"
    "    ratio = (selected(self.forward(some), some[:, 1:]) - old[start:stop][:, 1:]).exp()\n"
    "    mask = whole[start:stop][:, 1:]\n"
    "    loss = loss - (ratio * gain[start:stop] * mask).sum() / mask.sum()",
    "zeros at padding": ATTENTION + "loss = (-ratio * gain).masked_fill(~mask, 0.0).sum() / mask.sum()",
    "a KL": ATTENTION
    + "gap = ref[:, 1:] - now\nkl = gap.exp() - gap - 1\n"
    + "gains = experience.gaes.tensor[:, 1:]\n"
    + "loss = (-(ratio * gains * mask).sum() + self.beta * (kl * mask).sum()) / mask.sum()",
    "parts": ATTENTION
    + "parts = []\nfor r, g, m in zip(ratio.split(1), gain.split(1), mask.split(1)):\n"
    + "    parts.append(-(r * g * m).sum() / m.sum())\nloss = torch.stack(parts).mean()",
}
LEARNED = "mask = experience.loss_mask.tensor[:, 1:]\n"
REST = {
    "a difference": LEARNED + "rest = 1 - mask.float()\nloss = -(ratio * gain * rest).sum() / rest.sum()",
    "an operator": LEARNED + "loss = average(-ratio * gain, ~mask)",
    "a comparison": LEARNED + "loss = masked_mean(-ratio * gain, mask == 0)",
    "a function": LEARNED + "loss = -(ratio * gain * mask.logical_not()).sum(-1).mean()",
    "filled where it is": LEARNED + "loss = (-ratio * gain).masked_fill(mask, 0.0).sum() / mask.sum()",
    "filled in place": LEARNED
    + "each = -ratio * gain\neach.masked_fill_(mask.bool(), 0)\nloss = each.sum() / mask.sum()",
    "filled terms": LEARNED
    + "gap = ref[:, 1:] - now\nkl = gap.exp() - gap - 1\n"
    + "loss = (self.beta * kl - ratio * gain).masked_fill(mask == 1, 0.0).sum() / mask.sum()",
    "filled log-probs": LEARNED + "loss = -(now.masked_fill(mask, 0.0).sum(-1) * experience.advantages.tensor).mean()",
    "in the loss": LEARNED + "m = mask.to(ratio.dtype)\nloss = -(ratio * gain * (1.0 - m)).mean()",
}
BOTH = {
    "a complement of a complement": LEARNED
    + "rest = 1 - mask.float()\nloss = -(ratio * gain * (1 - rest)).sum() / mask.sum()",
    "not twice": LEARNED + "rest = ~mask\nloss = average(-ratio * gain, ~rest)",
    "a mask of what is left out": LEARNED
    + "prompt_mask = ~mask\nloss = average(-ratio * gain, 1 - prompt_mask.float())",
    "zeros elsewhere, by a comparison": LEARNED
    + "loss = (-ratio * gain).masked_fill(mask == 0, 0.0).sum() / mask.sum()",
    "zeros elsewhere, by a mask of what is left out": LEARNED
    + "prompt_mask = ~mask\nloss = torch.masked_fill(-ratio * gain, prompt_mask, 0).sum() / mask.sum()",
    "zeros where a term is not shown": LEARNED
    + "each = -ratio * gain\nself.last = each.masked_fill(mask, 0.0).sum().item()\nloss = average(each, mask)",
    "zeros elsewhere": LEARNED + "loss = (-ratio * gain).masked_fill(~mask, 0.0).sum() / mask.sum()",
    "a term of the others for metrics": LEARNED
    + "self.last = average(ratio * gain, ~mask).item()\nloss = average(-ratio * gain, mask)",
}
RIGHT = {
    "responses": RESPONSE + TAKES + AVERAGE,
    "responses, shifted": "mask = experience.loss_mask.tensor[:, 1:]\n" + AVERAGE,
    "the end of the attention mask": "mask = experience.attention_mask.tensor[:, -n:]\nratio = ratio[:, -n:]\n"
    + AVERAGE,
    "the end from where prompts end": "start = ids.shape[1] - n\nmask = experience.attention_mask.tensor[:, start:]\n"
    "ratio = ratio[:, start - 1 :]\n" + AVERAGE,
    "mini-batches": "loss = 0.0\nfor start in range(0, len(ids), 1):\n"
    "    part = experience[start : start + 1]\n    ids = part.input_ids.tensor\n"
    "    ratio = (selected(self.forward(ids), ids[:, 1:]) - part.log_probs.tensor[:, 1:]).exp()\n"
    "    mask = part.loss_mask.tensor[:, 1:]\n"
    "    loss = loss - (ratio * part.advantages.tensor[:, None] * mask).sum() / mask.sum()",
    "slices of rows": "loss = 0.0\nfor start in range(0, len(ids), 2):\n    some = ids[start : start + 2]\n"
    "    ratio = (selected(self.forward(some), some[:, 1:]) - old[start : start + 2, 1:]).exp()\n"
    "    mask = experience.loss_mask.tensor[start : start + 2, 1:]\n"
    "    loss = loss - (ratio * gain[start : start + 2] * mask).sum() / mask.sum()",
    "slices of rows, and of their responses": "loss = 0.0\nfor start in range(0, len(ids), 2):\n"
    "    some = ids[start : start + 2]\n    now = selected(self.forward(some), some[:, 1:])[:, -n:]\n"
    "    ratio = (now - old[start : start + 2, -n:]).exp()\n"
    "    mask = experience.attention_mask.tensor[start : start + 2, -n:]\n"
    "    loss = loss - (ratio * gain[start : start + 2] * mask).sum() / mask.sum()",
    "slices of one row": "loss = 0.0\nfor row, g, mask, start in zip(ratio, gain, experience.attention_mask.tensor, "
    "experience.prompt_lengths.tensor):\n    mask = mask[1:].float()\n    some = mask[start - 1 :]\n"
    "    loss = loss - (row[start - 1 :] * g * some).sum() / some.sum()",
    "slices of a row by number": "loss = 0.0\nfor i in range(len(ids)):\n"
    "    start = experience.prompt_lengths.tensor[i]\n"
    "    mask = experience.attention_mask.tensor[i][1:][start - 1 :]\n"
    "    loss = loss - (ratio[i][start - 1 :] * gain[i] * mask).sum() / mask.sum()",
    "slices of tokens of a turned mask": "mask, start = experience.attention_mask.tensor.T, ids.shape[1] - n\n"
    "mask = mask[start:].T\nratio = ratio[:, -n:]\n" + AVERAGE,
    "weights that are masked": ATTENTION
    + "weight = (ratio * experience.loss_mask.tensor[:, 1:]).detach()\n"
    + "loss = -(weight * now * gain * mask).sum() / mask.sum()",
    "the sizes of masked advantages": ATTENTION
    + "size = (gain * experience.loss_mask.tensor[:, 1:]).abs()\n"
    + "loss = -(ratio * gain.sign() * size * mask).sum() / mask.sum()",
    "both masks": "mask = experience.attention_mask.tensor[:, 1:] & experience.loss_mask.tensor[:, 1:]\n" + AVERAGE,
    "a product of masks": "mask = (experience.attention_mask.tensor * experience.loss_mask.tensor)[:, 1:]\n" + AVERAGE,
    "written into": "mask = experience.attention_mask.tensor.clone()\nmask[:, : ids.shape[1] - n] = False\n"
    "mask = mask[:, 1:]\n" + AVERAGE,
    "written into by rows": "mask = experience.attention_mask.tensor.clone()\nfor row in mask:\n"
    "    row[: len(row) - n] = False\nmask = mask[:, 1:]\n" + AVERAGE,
    "written into by rows and lengths": "mask = experience.attention_mask.tensor.clone()\n"
    "for row, length in zip(mask, experience.prompt_lengths.tensor):\n    row[:length].zero_()\n"
    "mask = mask[:, 1:]\n" + AVERAGE,
    "written into by a view": "mask = experience.attention_mask.tensor.clone()\nview = mask[:, : ids.shape[1] - n]\n"
    "view[...] = False\nmask = mask[:, 1:]\n" + AVERAGE,
    "written into by a function": "mask = experience.attention_mask.tensor.clone()\nblank(mask, ids.shape[1] - n)\n"
    "mask = mask[:, 1:]\n" + AVERAGE,
    "responses that are no padding": RESPONSE + "mask = experience.response_ids.tensor != PAD\n" + TAKES + AVERAGE,
    "zeroed in place": "mask = experience.attention_mask.tensor.float()\nmask[:, : ids.shape[1] - n].zero_()\n"
    "mask = mask[:, 1:]\n" + AVERAGE,
    "filled in place": "at = torch.arange(ids.shape[1])\nprompt = at < experience.prompt_lengths.tensor[:, None]\n"
    "mask = experience.attention_mask.tensor.clone()\nmask.masked_fill_(prompt, False)\nmask = mask[:, 1:]\n" + AVERAGE,
    "multiplied in place": ATTENTION + "mask = mask.float()\nmask.mul_(experience.loss_mask.tensor[:, 1:])\n" + AVERAGE,
    "filled": "at = torch.arange(ids.shape[1])\nprompt = at < experience.prompt_lengths.tensor[:, None]\n"
    "mask = experience.attention_mask.tensor.masked_fill(prompt, False)[:, 1:]\n" + AVERAGE,
    "positions": "at = torch.arange(ids.shape[1])\nmask = experience.attention_mask.tensor * "
    "(at >= experience.prompt_lengths.tensor[:, None])\nmask = mask[:, 1:].float()\n" + AVERAGE,
    "labels": "mask = experience.labels.tensor[:, 1:] != -100\n" + AVERAGE,
    "labels of a cross entropy": "labels = experience.labels.tensor[:, 1:]\n"
    "now = -F.cross_entropy(self.forward(ids).transpose(1, 2), labels, reduction='none')\n"
    "mask = experience.attention_mask.tensor[:, 1:]\nloss = -(now * gain * mask).sum() / mask.sum()",
    "advantages of tokens": ATTENTION
    + "gains = experience.gaes.tensor[:, 1:]\nloss = -(ratio * gains * mask).sum() / mask.sum()",
    "advantages that are masked": ATTENTION
    + "gain = gain * experience.loss_mask.tensor[:, 1:]\nloss = -(ratio * gain * mask).sum() / mask.sum()",
    "a split": "_, mask = experience.attention_mask.tensor.split([ids.shape[1] - n, n], dim=1)\n"
    "ratio = ratio[:, -n:]\n" + AVERAGE,
    "a part of a split": "mask = experience.attention_mask.tensor.split([3, 4], 1)[1]\nratio = ratio[:, -n:]\n"
    + AVERAGE,
    "rows": "loss = 0.0\nfor row, g, mask, start in zip(ratio, gain, experience.attention_mask.tensor, "
    "experience.prompt_lengths.tensor):\n    mask = mask[1:]\n"
    "    loss = loss - (row[start - 1 :] * g * mask[start - 1 :]).sum() / mask[start - 1 :].sum()",
    "selected": "mask = experience.loss_mask.tensor[:, 1:]\nloss = -(ratio * gain)[mask].mean()",
    "a condition": "mask = experience.loss_mask.tensor[:, 1:]\n"
    "loss = -torch.where(mask, ratio * gain, torch.zeros_like(ratio)).sum() / mask.sum()",
    "a formula": RESPONSE + TAKES + "loss = masked_mean(-ratio * gain, mask)",
    "sums of a formula": RESPONSE + TAKES + "loss = masked_sum(-ratio * gain, mask) / mask.sum()",
    "a ratio of sequences": RESPONSE
    + "gap = ((now - old) * mask).sum(-1) / mask.sum(-1)\nloss = -(gap.exp() * experience.advantages.tensor).mean()",
    "Dr. GRPO": RESPONSE + TAKES + "loss = -((ratio * gain * mask).sum(-1) / self.horizon).mean()",
    "of an attention mask by zeros": "zeros = torch.zeros(len(ids), ids.shape[1] - n, dtype=torch.bool)\n"
    "mask = torch.cat([zeros, experience.attention_mask.tensor[:, -n:]], 1)[:, 1:]\n" + AVERAGE,
    "of a response, padded": "zeros = torch.zeros(len(ids), ids.shape[1] - n, dtype=torch.bool)\n"
    "mask = F.pad(experience.response_mask.tensor, (ids.shape[1] - n, 0))[:, 1:]\n" + AVERAGE,
    "a KL of responses": RESPONSE
    + TAKES
    + "gap = ref - now\nkl = gap.exp() - gap - 1\n"
    + "loss = average(-ratio * gain, mask) + self.beta * average(kl, mask)",
    "two masks by turns": "mask = experience.attention_mask.tensor if gain is None else experience.loss_mask.tensor\n"
    "mask = mask[:, 1:]\n" + AVERAGE,
    "the longest": RESPONSE + TAKES + "m = int(mask.sum(-1).max())\nmask = mask[:, :m]\n"
    "loss = -(ratio[:, :m] * gain * mask).sum() / mask.sum()",
}


class Logits(torch.nn.Module):
    """A model whose logits at a token depend on that token alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.table.weight, generator=torch.Generator().manual_seed(1))

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table(ids))


def program(folder: Path, body: str, edit: tuple[str, str] = ("", "")) -> Any:
    module = loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8)).replace(*edit))
    module.make_model = Logits
    return module


def updated(module: Any, padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The change of a model by an update on prompts 0, 1, 2 and responses of other tokens, and what it was."""
    policy = module.Policy()
    before = policy.model.table.weight.detach().clone()
    prompt, lengths = torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.tensor([[2], [3]])
    response_mask = torch.arange(4 + padding) < lengths
    response = torch.where(response_mask, torch.tensor([[4], [6]]) + torch.arange(4 + padding) % 2, 3)
    ids, attention = torch.cat([prompt, response], 1), torch.cat([torch.ones(2, 3, dtype=torch.bool), response_mask], 1)
    loss_mask = torch.cat([torch.zeros(2, 3, dtype=torch.bool), response_mask], 1)
    gains = torch.tensor([1.0, -0.5])
    rows = module.Experience(
        input_ids=ids,
        labels=torch.where(loss_mask, ids, -100),
        response_ids=response,
        attention_mask=attention,
        loss_mask=loss_mask,
        response_mask=response_mask,
        prompt_lengths=torch.tensor([3, 3]),
        log_probs=torch.zeros(ids.shape) - 2.0,
        ref_log_probs=torch.zeros(ids.shape) - 3.0,
        advantages=gains,
        gaes=loss_mask * gains[:, None],
    )
    module.step(rows, policy)
    return policy.model.table.weight.detach() - before, before


def learns_prompts(module: Any) -> bool:
    """Whether an update changes what the model says after the first tokens of a prompt."""
    return bool((updated(module)[0][:2] != 0).any())


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.P: 3, module.R: 4})
    return tuple(report.codes)


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_in_a_loss_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, PROMPTS[name])
    assert learns_prompts(module)
    assert codes(module) == ("HF364",)


@pytest.mark.parametrize("name", REST)
def test_a_loss_of_all_but_the_responses_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, REST[name])
    assert learns_prompts(module)
    assert codes(module) == ("HF364",)


@pytest.mark.parametrize("name", BOTH)
def test_complements_that_are_undone_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, BOTH[name])
    assert not learns_prompts(module)
    assert codes(module) == ()


@pytest.mark.parametrize("name", ["a shifted mask", "each sequence", "a policy gradient", "parts"])
def test_the_other_mask_of_these_tokens_is_a_fix(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, PROMPTS[name])
    [finding] = module.step.check(dims={module.B: 4, module.P: 3, module.R: 4}).findings
    [fix] = finding.fixes
    mended = loaded(tmp_path, apply(Path(module.__file__).read_text("utf-8"), fix.edits))
    mended.make_model = Logits
    assert not learns_prompts(mended)
    assert codes(mended) == ()


def test_a_mask_that_is_read_twice_remains(tmp_path: Path) -> None:
    body = "count = experience.attention_mask.tensor.sum()\n" + PROMPTS["a shifted mask"]
    module = program(tmp_path, body)
    [finding] = module.step.check(dims={module.B: 4, module.P: 3, module.R: 4}).findings
    assert finding.fixes == ()
    assert "experience.loss_mask.tensor" in finding.notes[0]


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_of_responses_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert not learns_prompts(module)
    assert codes(module) == ()


KL = RESPONSE + TAKES + "gap = ref - now\nkl = gap.exp() - gap - 1\n"
ENTROPY = (
    RESPONSE + TAKES + "every = self.forward(ids)[:, -n:].log_softmax(-1)\nentropy = -(every.exp() * every).sum(-1)\n"
)
SEQUENCES = RESPONSE + "log_ratio = now - old\n"
GSPO = "\nloss = -(ratio * experience.advantages.tensor).mean()"
OTHER_COUNTS = {
    "masks over their sums": KL + "weight = mask / mask.sum()\n"
    "loss = -(ratio * gain * weight).sum() + self.beta * (kl * mask).mean()",
    "a KL": KL + "loss = masked_mean(-ratio * gain, mask) + self.beta * (kl * mask).mean()",
    "a KL by torch": KL + "loss = average(-ratio * gain, mask) + self.beta * torch.mean(kl * mask)",
    "a KL of sequences": KL
    + "loss = ((-ratio * gain * mask).sum(-1) / mask.sum(-1)).mean() + self.beta * (kl * mask).mean(-1).mean()",
    "a surrogate": KL + "loss = -(ratio * gain * mask).mean() + self.beta * (kl * mask).sum() / mask.sum()",
    "an entropy": ENTROPY + "loss = average(-ratio * gain, mask) - 0.1 * (entropy * mask).mean()",
    "an entropy, named": ENTROPY
    + "bonus = (entropy * mask).mean(dim=1).mean()\npolicy_loss = masked_mean(-ratio * gain, mask)\n"
    + "loss = policy_loss - 0.1 * bonus",
    "a ratio of sequences": SEQUENCES + "ratio = (log_ratio * mask).mean(-1).exp()" + GSPO,
    "a ratio of sequences by torch": SEQUENCES + "ratio = torch.exp(torch.mean(log_ratio * mask, dim=-1))" + GSPO,
    "a ratio of sequences without a mask": SEQUENCES
    + "ratio = log_ratio.mean(-1, keepdim=True).exp()\nloss = average(-ratio * gain, mask)",
    "a ratio of sequences without a mask, each": SEQUENCES
    + "ratio = torch.exp(torch.mean(log_ratio, dim=1)).unsqueeze(-1)\n"
    + "each = -torch.min(ratio * gain, ratio.clamp(0.5, 2.0) * gain)\n"
    + "loss = ((each * mask).sum(-1) / mask.sum(-1)).mean()",
    "a clipped ratio of sequences": SEQUENCES
    + "ratio = (log_ratio * mask).mean(dim=1).exp()\ngains = experience.advantages.tensor\n"
    + "loss = -torch.min(ratio * gains, ratio.clamp(0.5, 2.0) * gains).mean()",
}
ONE_COUNT = {
    "tokens": KL + "loss = masked_mean(-ratio * gain, mask) + self.beta * masked_mean(kl, mask)",
    "tokens and padding": KL + "loss = -(ratio * gain * mask).mean() + self.beta * (kl * mask).mean()",
    "one mean": KL + "loss = ((self.beta * kl - ratio * gain) * mask).mean()",
    "one sum": KL + "loss = ((self.beta * kl - ratio * gain) * mask).sum() / mask.sum()",
    "each sequence": KL + "loss = (((self.beta * kl - ratio * gain) * mask).sum(-1) / mask.sum(-1)).mean()",
    "a constant": KL + "loss = ((self.beta * kl - ratio * gain) * mask).sum(-1).mean() / self.horizon",
    "two constants": KL
    + "policy_loss = -(ratio * gain * mask).sum(-1).mean() / self.horizon\n"
    + "loss = policy_loss + self.beta * (kl * mask).sum() / (len(ids) * self.horizon)",
    "normalized masks": KL + "weight = mask.float() / mask.float().mean()\n"
    "loss = -(ratio * gain * weight).mean() + self.beta * average(kl, mask)",
    "masks over their sums": KL + "weight = mask / mask.sum()\n"
    "loss = -(ratio * gain * weight).sum() + self.beta * average(kl, mask)",
    "a mean, and one that is a weight": KL + "scale = average(ratio.detach(), mask).clamp(max=1.0)\n"
    "loss = -(scale * ratio * gain * mask).mean() + self.beta * (kl * mask).mean()",
    "a quotient of means": KL
    + "loss = average(-ratio * gain, mask) + self.beta * (kl * mask).mean() / mask.float().mean()",
    "a quotient of means of torch": KL
    + "kl = torch.mean(kl * mask) / torch.mean(mask.float())\nloss = masked_mean(-ratio * gain, mask) + self.beta * kl",
    "a mean in one branch": KL
    + "penalty = (kl * mask).mean() if self.beta > 1 else masked_mean(kl, mask)\n"
    + "loss = masked_mean(-ratio * gain, mask) + self.beta * penalty",
    "selected": KL + "loss = masked_mean(-ratio * gain, mask) + self.beta * kl[mask].mean()",
    "selected by a function": KL + "loss = average(-ratio * gain, mask) + self.beta * kl.masked_select(mask).mean()",
    "a KL that is logged": KL + "self.kl = (kl * mask).mean().detach()\nloss = masked_mean(-ratio * gain, mask)",
    "an entropy": ENTROPY + "loss = average(-ratio * gain, mask) - 0.1 * average(entropy, mask)",
    "sequences of tokens": KL
    + "loss = average(-ratio * gain, mask, -1).mean() + self.beta * average(kl, mask, -1).mean()",
    "a ratio of sequences": SEQUENCES + "ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1)).exp()" + GSPO,
    "a ratio of a formula": SEQUENCES + "ratio = masked_mean(log_ratio, mask, -1).exp()" + GSPO,
    "a ratio of a quotient": SEQUENCES + "ratio = ((log_ratio * mask).mean(-1) / mask.float().mean(-1)).exp()" + GSPO,
    "selected after a product": KL + "loss = masked_mean(-ratio * gain, mask) + self.beta * (kl * mask)[mask].mean()",
    "a ratio of sequences, and a KL": KL
    + "ratio = (((now - old) * mask).sum(-1) / mask.sum(-1)).exp()\n"
    + "loss = -(ratio * experience.advantages.tensor).mean() + self.beta * masked_mean(kl, mask)",
    "sums of log-probs, and a KL": KL
    + "score = (now * mask).sum(-1)\n"
    + "loss = -(score * experience.advantages.tensor).mean() / self.horizon + self.beta * masked_mean(kl, mask)",
    "a metric": KL
    + "self.drift = ((now - old) * mask).mean(-1).exp().detach()\nloss = masked_mean(-ratio * gain, mask)",
    "a metric without a mask": KL
    + "self.drift = (now - old).mean(-1).exp().mean().item()\nloss = masked_mean(-ratio * gain, mask)",
    "a metric with a gradient": KL
    + "self.drift = ((now - old) * mask).mean(-1).exp().mean()\nloss = masked_mean(-ratio * gain, mask)",
    "masked log-probs of sequences": SEQUENCES
    + "ratio = (log_ratio[mask.bool()].sum() / mask.sum()).exp()\nloss = average(-ratio * gain, mask)",
    "a ratio of a product": SEQUENCES + "ratio = (log_ratio * mask).sum(-1).exp()" + GSPO,
}


def keeps_its_direction(module: Any) -> bool:
    """Whether an update is in the same direction with more padding."""
    less, more = (updated(module, padding)[0].double().flatten() for padding in (0, 24))
    return float(torch.cosine_similarity(less, more, dim=0)) > 1 - 1e-6


@pytest.mark.parametrize("name", OTHER_COUNTS)
def test_terms_that_padding_weighs_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, OTHER_COUNTS[name])
    assert not keeps_its_direction(module)
    assert codes(module) == ("HF355",)


@pytest.mark.parametrize("name", ONE_COUNT)
def test_terms_over_one_count_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, ONE_COUNT[name])
    assert keeps_its_direction(module) or "constant" in name or "sums" in name
    assert codes(module) == ()


CUT = {
    "ids[:, -n:]": "now = selected(self.model(ids).logits[:, -n - 1 : -1], ids[:, -n:])\nold = old[:, -n:]\n",
    "ids[:, start:]": "start = ids.shape[1] - n\n"
    "now = selected(self.model(ids).logits[:, start - 1 : -1, :], ids[:, start:])\nold = old[:, start:]\n",
}
RESPONSES_IN_A_ROW = "n = int(experience.response_mask.tensor.sum())\nm = int(experience.attention_mask.tensor.sum())\n"


@pytest.mark.parametrize("cut", CUT)
def test_responses_that_are_cut_out_have_their_padding(tmp_path: Path, cut: str) -> None:
    mean = "loss = -((now - old).exp() * gain).mean()\nself.size = experience.response_mask.tensor.sum()"
    assert codes(program(tmp_path, CUT[cut] + mean)) == ("HF355",)
    masked = "mask = experience.response_mask.tensor\nloss = -((now - old).exp() * gain * mask).sum() / mask.sum()"
    assert codes(program(tmp_path, CUT[cut] + masked)) == ()


def test_a_response_that_is_cut_to_its_length_has_none(tmp_path: Path) -> None:
    body = (
        RESPONSES_IN_A_ROW
        + "now = selected(self.model(ids).logits[:, m - n - 1 : m - 1], ids[:, m - n : m])\n"
        + "loss = -((now - old[:, m - n : m]).exp() * gain).mean()"
    )
    assert codes(program(tmp_path, body)) == ()


LIBRARIES = {
    "PPO with a dual clip, each token": RESPONSE
    + "negative_kl = torch.clamp(now - old, min=-20.0, max=20.0)\nratio = torch.exp(negative_kl)\n"
    + "first, second = -gain * ratio, -gain * torch.clamp(ratio, 1 - 0.2, 1 + 0.28)\n"
    + "held = torch.maximum(first, second)\nlower = torch.min(-gain * 3.0, held)\n"
    + "losses = torch.where(gain < 0, lower, held)\n"
    + "loss = (losses * mask).sum() / (mask.sum() + 1e-8)",
    "the sum of each sequence, and the mean of all": RESPONSE
    + TAKES
    + "losses = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)\n"
    + "seq_losses = torch.sum(losses * mask, dim=-1)\nloss = torch.mean(seq_losses) / mask.shape[-1]",
    "the mean of each sequence": RESPONSE
    + TAKES
    + "losses = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)\n"
    + "seq_mask = torch.sum(mask, dim=-1)\nseq_losses = torch.sum(losses * mask, dim=-1) / (seq_mask + 1e-8)\n"
    + "loss = torch.mean(seq_losses)",
    "a KL per token in the loss": RESPONSE
    + "per_token_kl = torch.exp(ref - now) - (ref - now) - 1\n"
    + "coef_1 = torch.exp(now - old)\ncoef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.2)\n"
    + "per_token_loss = -torch.min(coef_1 * gain, coef_2 * gain) + self.beta * per_token_kl\n"
    + "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()\n"
    + "self.mean_kl = ((per_token_kl * mask).sum() / mask.sum()).item()",
    "a KL per token over the longest": RESPONSE
    + TAKES
    + "per_token_loss = -(ratio * gain - self.beta * ((ref - now).exp() - (ref - now) - 1))\n"
    + "loss = (per_token_loss * mask).sum() / (per_token_loss.size(0) * self.horizon)",
    "sequence importance weights": RESPONSE
    + "log_importance = ((now - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)\n"
    + "coef_1 = torch.exp(log_importance.unsqueeze(-1))\n"
    + "per_token_loss = -torch.min(coef_1 * gain, coef_1.clamp(0.9, 1.1) * gain)\n"
    + "loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1)).mean()",
    "a sequence ratio with the gradient of tokens": RESPONSE
    + "seq_lengths = torch.sum(mask, dim=-1).clamp(min=1)\n"
    + "seq_kl = torch.sum((now - old) * mask, dim=-1) / seq_lengths\n"
    + "log_ratio = now - now.detach() + seq_kl.detach().unsqueeze(-1)\n"
    + "ratio = torch.exp(torch.clamp(log_ratio, max=10.0))\nloss = masked_mean(-ratio * gain, mask)",
    "actions of the end of the sequence": "num_actions = experience.response_mask.tensor.size(1)\n"
    "action_log_probs, action_mask = now[:, -num_actions:], experience.attention_mask.tensor[:, -num_actions:]\n"
    "ratio = (action_log_probs - old[:, -num_actions:]).exp()\n"
    "losses = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)\n"
    "loss = (losses * action_mask).sum(dim=-1).div(action_mask.sum(dim=-1)).mean()",
    "token and sample masks": "token_mask = experience.loss_mask.tensor[:, 1:]\n"
    "sample_mask = torch.ones(len(ids))\nmask = token_mask * sample_mask.unsqueeze(-1)\n"
    "clip_loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2))\n"
    "loss = torch.sum(clip_loss * mask) / torch.sum(mask)",
    "a global count of tokens": "mask = experience.loss_mask.tensor[:, 1:]\n"
    "global_valid_toks = float(mask.sum())\nloss = torch.sum(-ratio * gain * mask) / (global_valid_toks + 1e-8)",
    "a mean of samples by their masks": "masks, total = experience.loss_mask.tensor[:, 1:], 0.0\n"
    "for x, m in zip(-ratio * gain, masks):\n"
    "    total = total + (x * m).sum() / torch.clamp_min(m.sum(), 1)\nloss = total / len(ids)",
    "responses cut by their lengths": "total = []\n"
    "for row, gain_of, tokens, mask in zip(ratio, gain, ids, experience.loss_mask.tensor):\n"
    "    kept = mask[1:].bool()\n    total.append((-row * gain_of)[kept].mean())\nloss = torch.stack(total).mean()",
    "labels for a shifted model": "labels = experience.labels.tensor[:, 1:]\nmask = labels != -100\n"
    "picked = selected(self.forward(ids), labels.clamp(min=0))\n"
    "loss = -(picked * gain * mask).sum(-1).div(mask.sum(-1)).mean()",
    "an entropy bonus by the same aggregate": ENTROPY
    + "policy_loss = average(-ratio * gain, mask, -1).mean()\nentropy_loss = average(entropy, mask, -1).mean()\n"
    + "loss = policy_loss - 0.01 * entropy_loss",
    "truncated importance sampling": RESPONSE
    + "weight = torch.clamp((old - ref).exp(), max=2.0).detach()\n"
    + TAKES
    + "loss = (-torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain) * weight * mask).sum() / mask.sum()",
    "off-policy sequences left out": "mask = experience.loss_mask.tensor[:, 1:]\n"
    "gap = ((old[:, 1:] - now.detach()) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)\n"
    "mask = mask * ~((gap > 5.0) & (gain < 0))\nloss = -(ratio * gain * mask).sum() / mask.sum()",
    "a metric of padding beside it": RESPONSE
    + TAKES
    + "share = mask.float().mean()\nself.share = share.item()\nloss = masked_mean(-ratio * gain, mask)",
    "half of an objective over the vocabulary": ENTROPY + "loss = masked_mean(-ratio * gain - 0.01 * entropy, mask)",
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_losses_as_other_libraries_write_them_are_right(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, LIBRARIES[name])
    assert not learns_prompts(module)
    assert codes(module) == ()
