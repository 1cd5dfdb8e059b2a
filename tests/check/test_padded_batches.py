"""Statistics over padding in mini-batches: reported where wider columns change what is learned, and nowhere else."""

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
from torch.utils.data import DataLoader, TensorDataset
import hfdsl as hf
from hfdsl import bool_, f32, i64
from hfdsl.rl.masked import masked_mean, whitened
from hfdsl.rl.batches import B
{dim}

class Experience(hf.Batch):
    ids: i64[B, R]
    response_mask: bool_[B, R]
    log_probs: f32[B, R]
    advantages: f32[B, R]
    score: f32[B]

def standardized(x, mask=None):
    if mask is None:
        return (x - x.mean()) / (x.std() + 1e-8)
    mean = (x * mask).sum() / mask.sum()
    spread = (((x - mean) ** 2 * mask).sum() / mask.sum()).sqrt()
    return (x - mean) / (spread + 1e-8) * mask

class Config:
    whiten, eps = True, 1e-8

class Policy(hf.Worker):
    def __init__(self, whiten: bool = True, pads: bool = True) -> None:
        self.whiten, self.pads, self.config = whiten, pads, Config()
        torch.manual_seed(1)
        self.model = torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def log_probs(self, ids):
        return self.model(ids).log_softmax(-1).gather(-1, ids[..., None])[..., 0]

    def take(self, ids, old, gain, mask):
        ratio = (self.log_probs(ids) - old).exp()
        loss = -(torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain) * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, experience: Experience) -> None:
        ids, old, score = experience.ids.tensor, experience.log_probs.tensor, experience.score.tensor
        mask, gain = experience.response_mask.tensor, experience.advantages.tensor
{body}

@hf.dataflow
def step(experience: Experience, policy: Policy) -> None:
    policy.update(experience)
"""
DIMS = {"ready": "from hfdsl.rl.batches import R", "own": "class R(hf.Dim): ..."}
SPLIT = "for rows in torch.randperm(len(ids)).split(2):\n"
NAMED = "for start in range(0, len(ids), 2):\n    rows = slice(start, start + 2)\n"
TAKE = "\n    self.take(ids[rows], old[rows], g, mask[rows])"
WHITENED = "    g = (g - g.mean()) / (g.std() + 1e-8)"
SUMS = (
    "    count = m.sum()\n    mean = (g * m).sum() / count\n    spread = (((g - mean) ** 2 * m).sum() / count).sqrt()\n"
    "    g = (g - mean) / (spread + 1e-8)"
)
UNMASKED = {
    "shuffled rows": SPLIT + "    g = gain[rows]\n" + WHITENED + TAKE,
    "shuffled rows of an order": "order = torch.randperm(ids.shape[0])\nfor start in range(0, ids.shape[0], 2):\n"
    "    rows = order[start : start + 2]\n    g = gain[rows]\n" + WHITENED + TAKE,
    "shuffled rows in epochs": "for _ in range(2):\n" + textwrap.indent(SPLIT + "    g = gain[rows]", "    ") + "\n"
    "        g = g - g.mean()\n        self.take(ids[rows], old[rows], g, mask[rows])",
    "in steps": SPLIT
    + "    g = gain[rows]\n    mean, std = g.mean(), g.std()\n    g = (g - mean) / (std + 1e-8)"
    + TAKE,
    "both at once": SPLIT
    + "    g = gain[rows]\n    std, mean = torch.std_mean(g)\n    g = (g - mean) / (std + 1e-8)"
    + TAKE,
    "a variance": SPLIT + "    g = gain[rows]\n    g = g / torch.sqrt(g.var() + 1e-8)" + TAKE,
    "in place": SPLIT + "    g = gain[rows]\n    g -= g.mean()\n    g /= g.std() + 1e-8" + TAKE,
    "selected rows": SPLIT + "    g = gain.index_select(0, rows)\n" + WHITENED + TAKE,
    "of each response": SPLIT + "    g = gain[rows]\n    g = g - g.mean(-1, keepdim=True)" + TAKE,
    "slices of rows": "for i in range(0, len(ids), 2):\n    g = gain[i : i + 2]\n"
    + WHITENED
    + "\n    self.take(ids[i : i + 2], old[i : i + 2], g, mask[i : i + 2])",
    "slices by name": NAMED + "    g = gain[rows]\n" + WHITENED + TAKE,
    "parts of a record": "for i in range(0, len(ids), 2):\n    part = experience[i : i + 2]\n"
    "    g = part.advantages.tensor\n"
    + WHITENED
    + "\n    self.take(part.ids.tensor, part.log_probs.tensor, g, part.response_mask.tensor)",
    "a loader": "for i, o, g, m in DataLoader(TensorDataset(ids, old, gain, mask), batch_size=2, shuffle=True):\n"
    + WHITENED
    + "\n    self.take(i, o, g, m)",
    "splits side by side": "for i, o, g, m in zip(ids.split(2), old.split(2), gain.split(2), mask.split(2)):\n"
    + WHITENED
    + "\n    self.take(i, o, g, m)",
    "a list of splits": "for i, o, g, m in list(zip(ids.split(2), old.split(2), gain.split(2), mask.split(2))):\n"
    + WHITENED
    + "\n    self.take(i, o, g, m)",
    "a list of splits by name": "parts = list(zip(ids.split(2), old.split(2), gain.split(2), mask.split(2)))\n"
    "for n, (i, o, g, m) in enumerate(parts):\n" + WHITENED + "\n    self.take(i, o, g, m)",
    "chunks by number": "parts = gain.chunk(2)\nfor k in range(2):\n"
    "    rows = slice(2 * k, 2 * k + 2)\n    g = parts[k]\n" + WHITENED + TAKE,
    "a dictionary": "columns = {'gain': gain, 'mask': mask}\n"
    + SPLIT
    + "    part = {name: column[rows] for name, column in columns.items()}\n    g = part['gain']\n"
    + WHITENED
    + TAKE,
    "an option": SPLIT + "    g = gain[rows]\n    if self.whiten and len(rows) > 1:\n    " + WHITENED + TAKE,
    "an option of a configuration": "config = self.config\n"
    + SPLIT
    + "    g = gain[rows]\n    if config.whiten:\n        g = (g - g.mean()) / (g.std() + config.eps)"
    + TAKE,
    "an option, in an expression": SPLIT + "    g = gain[rows]\n    g = g - g.mean() if self.whiten else g" + TAKE,
    "a function": SPLIT + "    g = standardized(gain[rows])" + TAKE,
    "behind an end": SPLIT + "    if len(rows) < 2:\n        continue\n    g = gain[rows]\n" + WHITENED + TAKE,
    "before the mini-batches": "gain = standardized(gain)\n" + SPLIT + "    g = gain[rows]" + TAKE,
}
ZEROED = {
    "shuffled rows": SPLIT + "    g = gain[rows] * mask[rows]\n" + WHITENED + TAKE,
    "slices by name": NAMED + "    g, m = gain[rows], mask[rows]\n    g = g - (g * m).mean()" + TAKE,
    "before the mini-batches": "gain = gain * mask\n" + SPLIT + "    g = gain[rows]\n" + WHITENED + TAKE,
    "a loader": "for i, o, g, m in DataLoader(TensorDataset(ids, old, gain, mask), batch_size=2):\n    g = g * m\n"
    + WHITENED
    + "\n    self.take(i, o, g, m)",
    "a function": SPLIT + "    g = standardized(gain[rows] * mask[rows])" + TAKE,
}
RIGHT = {
    "a list of splits by name": "parts = list(zip(ids.split(2), old.split(2), gain.split(2), mask.split(2)))\n"
    "for i, o, g, m in parts:\n    g = whitened(g, m)\n    self.take(i, o, g, m)",
    "another list by that name": "parts = list(zip(ids.split(2), old.split(2), gain.split(2), mask.split(2)))\n"
    "parts = [(i, o, whitened(g, m) * m, m) for i, o, g, m in parts]\n"
    "for i, o, g, m in parts:\n    self.take(i, o, g, m)",
    "a formula": SPLIT + "    g = whitened(gain[rows], mask[rows])" + TAKE,
    "less a mean by a formula": SPLIT + "    g = gain[rows] - masked_mean(gain[rows], mask[rows])" + TAKE,
    "sums over counts": SPLIT + "    g, m = gain[rows], mask[rows]\n" + SUMS + TAKE,
    "chosen tokens": SPLIT + "    g, m = gain[rows], mask[rows]\n    kept = g[m]\n"
    "    g = (g - kept.mean()) / (kept.std() + 1e-8)" + TAKE,
    "chosen tokens of a slice": NAMED + "    g = gain[rows]\n    g = g - g[mask[rows]].mean()" + TAKE,
    "masked and selected": SPLIT + "    g = gain[rows] - gain[rows].masked_select(mask[rows]).mean()" + TAKE,
    "a loader": "for i, o, g, m in DataLoader(TensorDataset(ids, old, gain, mask), batch_size=2, shuffle=True):\n"
    + SUMS
    + "\n    self.take(i, o, g, m)",
    "splits side by side": "for i, o, g, m in zip(ids.split(2), old.split(2), gain.split(2), mask.split(2)):\n"
    "    g = whitened(g, m)\n    self.take(i, o, g, m)",
    "a function": SPLIT + "    g = standardized(gain[rows], mask[rows])" + TAKE,
    "a function, before": "gain = standardized(gain, mask=mask)\n" + SPLIT + "    g = gain[rows]" + TAKE,
    "scores": SPLIT + "    s = score[rows]\n    s = (s - s.mean()) / (s.std() + 1e-8)\n"
    "    g = s[:, None] * mask[rows]" + TAKE,
    "sums of responses": SPLIT + "    total = (gain[rows] * mask[rows]).sum(-1)\n"
    "    g = (total - total.mean())[:, None] * mask[rows]" + TAKE,
    "cut to the longest": SPLIT
    + "    width = int(mask[rows].sum(-1).max())\n    g = gain[rows][:, :width]\n"
    + WHITENED
    + "\n    self.take(ids[rows][:, :width], old[rows][:, :width], g, mask[rows][:, :width])",
    "single responses without padding": "for i in range(len(ids)):\n    n = int(mask[i].sum())\n    g = gain[i][:n]\n"
    "    g = g - g.mean()\n    self.take(ids[i][:n], old[i][:n], g, mask[i][:n])",
    "tokens that are no number": SPLIT + "    g = gain[rows].masked_fill(~mask[rows], torch.nan)\n"
    "    g = (g - g.nanmean()).nan_to_num()" + TAKE,
    "a metric": SPLIT + "    g = gain[rows]\n    self.shown = (g.mean().item(), g.std().item())" + TAKE,
    "flat tokens": "at = mask.flatten().nonzero().squeeze(-1)\nflat = gain.flatten()[at]\n"
    "flat = (flat - flat.mean()) / (flat.std() + 1e-8)\n"
    "gain = torch.zeros_like(gain).flatten().index_copy(0, at, flat).view_as(mask)\n"
    + SPLIT
    + "    g = gain[rows]"
    + TAKE,
}
MAY_BE_FULL = {
    "full rows": "full = mask.all(-1)\ng = gain[full]\ng = (g - g.mean()) / (g.std() + 1e-8)\n"
    "self.take(ids[full], old[full], g, mask[full])",
    "rows that are full": "rows = torch.where(mask.all(-1))[0]\ng = gain[rows]\ng = (g - g.mean()) / (g.std() + 1e-8)\n"
    "self.take(ids[rows], old[rows], g, mask[rows])",
    "a mini-batch without padding": SPLIT
    + "    g, m = gain[rows], mask[rows]\n    if m.all():\n    "
    + WHITENED
    + "\n    else:\n        g = whitened(g, m)"
    + TAKE,
    "behind a mini-batch with padding": SPLIT
    + "    g = gain[rows]\n    if not mask[rows].all():\n        continue\n"
    + WHITENED
    + TAKE,
    "an option of padding, of a configuration": "config = self.config\n"
    + SPLIT
    + "    g = gain[rows]\n    if not config.is_padded:\n    "
    + WHITENED
    + TAKE,
    "an option of padding, by name": "plain = not self.pads\nflag = self.pads\n"
    + SPLIT
    + "    g = gain[rows]\n    if not flag:\n    "
    + WHITENED
    + "\n    if plain:\n    "
    + WHITENED
    + TAKE,
    "an option of padding": SPLIT + "    g = gain[rows]\n    if not self.pads:\n    " + WHITENED + TAKE,
    "an expression": SPLIT
    + "    g = gain[rows]\n    g = whitened(g, mask[rows]) if self.pads else g - g.mean()"
    + TAKE,
    "refused before": "if not mask.all():\n    raise ValueError('padding')\n"
    + SPLIT
    + "    g = gain[rows]\n"
    + WHITENED
    + TAKE,
}


def program(folder: Path, body: str, dim: str) -> Any:
    return loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8), dim=DIMS[dim]))


def depends_on_padding(module: Any) -> bool:
    """Whether a policy learns something else from the same responses in wider columns."""
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    gains = torch.tensor([[1.0, 2.5, 0.5], [3.0, -1.0, 0.7], [0.2, 0.1, 0.9], [-0.4, 0.3, 1.1]])
    ids = torch.arange(12).view(4, 3) % 8

    def learned(wider: int) -> torch.Tensor:
        policy = module.Policy()
        wide_ids, wide_mask, wide_gains = (torch.nn.functional.pad(x, (0, wider)) for x in (ids, mask, gains))
        experience = module.Experience(
            ids=wide_ids,
            response_mask=wide_mask,
            log_probs=policy.log_probs(wide_ids).detach(),
            advantages=wide_gains,
            score=torch.tensor([1.0, -0.5, 0.3, 2.0]),
        )
        torch.manual_seed(3)  # the order of rows
        policy.update(experience)
        weights: torch.Tensor = policy.model.weight.detach()
        return weights

    return not torch.allclose(learned(0), learned(4), atol=1e-6)


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4, module.R: 8})
    return tuple(report.codes)


@pytest.mark.parametrize("name", UNMASKED)
def test_a_statistic_over_padding_in_a_mini_batch_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, UNMASKED[name], "ready")
    assert depends_on_padding(module)
    assert codes(module) == ("HF355",)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", ZEROED)
def test_a_statistic_that_counts_padding_as_zeros_is_reported(tmp_path: Path, name: str, dim: str) -> None:
    module = program(tmp_path, ZEROED[name], dim)
    assert depends_on_padding(module)
    assert codes(module) == ("HF355",)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_statistic_of_the_tokens_of_a_mini_batch_is_not(tmp_path: Path, name: str, dim: str) -> None:
    module = program(tmp_path, RIGHT[name], dim)
    assert not depends_on_padding(module)
    assert codes(module) == ()


@pytest.mark.parametrize("name", MAY_BE_FULL)
def test_nothing_is_said_of_rows_that_may_have_no_padding(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, MAY_BE_FULL[name], "ready")) == ()
