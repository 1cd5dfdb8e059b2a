"""Losses in bodies that return rows: a statistic of all rows, however it is computed, is none of the rows."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

LOSSES = (
    "(x * mask / mask.sum()).sum()",
    "(x * mask).sum() / mask.sum()",
    "(x * mask).sum() / mask.sum().clamp(min=1)",
    "(x * mask / mask.sum().clamp(min=1)).sum()",
    "torch.sum(x * mask / torch.sum(mask))",
    "torch.sum(x * mask) / torch.sum(mask)",
    "((x * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()",
    "((x * mask).sum(-1, keepdim=True) / mask.sum(dim=-1, keepdim=True).clamp(min=1)).mean()",
    "((x * mask).sum(-1) / mask.sum()).sum()",
    "(x * mask / mask.sum()).sum(-1).sum(0)",
    "(x * x / x.sum(0, keepdim=True)).sum()",
    "((x - x.mean()) ** 2).mean().sqrt()",
    "(y - y.max()).exp().sum().log()",
    "(y * y.softmax(0)).sum()",
    "(mask / mask.sum() * x).sum().item()",
    "torch.einsum('bt,bt->', x, mask / mask.sum())",
    "F.mse_loss(y / y.sum(), x.mean(1))",
    "masked_mean(x, mask)",
    "masked_mean(x, mask, axis=-1).mean()",
    "masked_share(x, mask)",
    "y.sum() / len(y)",
    "(y / TWO).sum()",
    "np.mean(y.numpy())",
    "np.sum(y.numpy() * (y.numpy() / y.numpy().sum()))",
)
ROWS = (
    "x.mean(axis=1)",
    "(x - x.mean(axis=1, keepdims=True)).sum(axis=1)",
    "(x - x.mean(1, keepdim=False)[:, None]).sum(1)",
    "x.std(1, False) - x.var(dim=1, unbiased=True)",
    "masked_mean(x, mask, axis=-1)",
    "masked_mean(x, mask, 1)",
    "torch.from_numpy(x.numpy().mean(1))",
    "torch.from_numpy(np.mean(x.numpy(), axis=1) - np.max(x.numpy(), 1))",
    "y + torch.zeros_like(y - y.mean())",
    "y + torch.zeros((y - y.mean()).shape)",
    "(x - y.unsqueeze(-1)).squeeze(1).sum(1)",
    "(y > torch.linspace(-1, 1, 5)[:, None]).float().mean(0)",
    "(torch.tensor([0.5, 0.25])[:, None, None] * x).sum(0).sum(1)",
    "paired(y, len(y) // 2)",
    "x[:, [0, 2]].sum(-1) + x[:, -2:][:, COLUMNS].sum(-1)",
    "(x - x.mean(1, keepdim=TWO == 2)).sum(-1)",
)
MIXED = (
    "(x * mask / mask.sum()).sum(1)",
    "(x * mask).sum(-1) / mask.sum().clamp(min=1)",
    "(x * mask / mask.sum(0, keepdim=True).clamp(min=1)).sum(1)",
    "(x - x.mean(axis=0)).sum(1)",
    "(y - y.mean()) / (y.std() + 1e-8)",
    "y.sub(y.mean()).div(y.std())",
    "y - masked_mean(x, mask)",
    "y.new_full((len(y),), masked_share(x, mask).item())",
    "masked_mean(x, mask).expand(len(y))",
    "torch.from_numpy((y.numpy() - y.numpy().mean()) / y.numpy().std())",
    "torch.tensor((y.numpy() - np.mean(y.numpy())) / np.std(y.numpy()))",
    "torch.from_numpy(np.sort(y.numpy()).copy())",
    "torch.from_numpy(y.numpy()[::-1].copy())",
    "(x[mask] - x[mask].mean()).pow(2).sum() * y",
    "torch.stack([y - y.mean(), y], 1).sum(1)",
    "torch.tensor([float(value) for value in y / y.sum()])",
    "torch.as_tensor(np.array((y - y.mean()).tolist())).float()",
    "((x * mask).sum(1) - y.unsqueeze(1).mean(0)).reshape(len(y))",
)
"""Bodies of a role that give a loss, rows of their own, and rows mixed with a statistic."""

STATEMENTS = {
    "clipped": "gain = y - y.mean()\nif len(y):\n    gain = gain.clamp(-5, 5)",
    "in a list": "shares, gain = y / y.sum(), []\nfor row in range(len(y)):\n    gain.append(shares[row])\n"
    "gain = torch.stack(gain)",
    "by turns": "share, gain = y / y.sum(), []\nfor row, (own, part) in enumerate(zip(y, share)):\n"
    "    gain.append(part + own)\ngain = torch.stack(gain)",
    "in part": "gain = torch.zeros_like(y)\ngain[:] = y - y.mean()",
    "in place": "gain = y.clone()\ngain.sub_(gain.mean()).div_(gain.std() + 1e-6)",
    "step by step": "gain = y.clone()\ngain -= gain.mean()\ngain /= gain.std() + 1e-6",
    "of a list": "gain = torch.tensor([value - 1 for value in y - y.mean()])",
    "by an array": "gain = np.asarray(y)\ngain = torch.tensor((gain - np.mean(gain)) / (np.std(gain) + 1e-8))",
    "selected": "gain = y.clone()\ngain[y > 0] = y[y > 0] / y[y > 0].sum()",
    "in turn": "share = y / y.sum()\nfor turn in range(2):\n    gain = share * turn",
}
"""Statements that set ``gain`` to mixed rows."""

APART = {
    "a loss in turns": "share, loss, gain = y / y.sum(), 0.0, y * 1\nfor row in range(len(y)):\n"
    "    loss = loss + share[row] ** 2",
    "a sum of all ranks": "total = y.sum()\nall_reduce(total)\ngain = y / total",
    "a sum of all ranks in a branch": "total = y.sum()\nif len(y):\n    all_reduce(total)\ngain = y / total",
    "numbers to look at": "share, gain = y / y.sum(), y * 1\nif len(y) > 100:\n    print(share)",
    "beside another": "share, shown, gain = y / y.sum(), [], []\nfor row, (part, own) in enumerate(zip(share, y)):\n"
    "    shown.append(part)\n    gain.append(own + row * 0)\ngain = torch.stack(gain)",
    "the shape": "share = y / y.sum()\ngain = y + torch.zeros(share.shape[0])",
}
"""Statements that set ``gain`` to rows of their own, beside others."""

MODULE = """
from __future__ import annotations
from typing import Literal
import numpy as np
import torch
import torch.nn.functional as F
import hfdsl as hf

TWO = 2
COLUMNS = [1, 0]

def all_reduce(total):
    total.fill_(1.0)  # any number, the same on every rank

def masked_mean(values, mask, axis=None):
    if axis is not None:
        return (values * mask).sum(axis) / (mask.sum(axis=axis) + 1e-8)
    return (values * mask).sum() / (mask.sum() + 1e-8)

def masked_share(values, mask, weights=None):
    mask = mask if weights is None else weights
    return (values * (mask / mask.sum())).sum()

def paired(values, groups):
    return (values.view(groups, -1) - values.view(groups, -1).mean(1, keepdim=True)).flatten()

class B(hf.Dim): ...
class T(hf.Dim): ...

class Tokens(hf.Batch):
    x: hf.f32[B, T]
    mask: hf.bool_[B, T]
    y: hf.f32[B]

class Learned(hf.Batch):
    value: hf.f32[B]
    loss: hf.Metric[float, Literal["mean"]]

class Learner(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO, rows=hf.Grouped(TWO))
    def learn(self, tokens: Tokens) -> Learned:
        x = tokens.x.tensor
        y = tokens.y.tensor
        mask = tokens.mask.tensor
{body}

@hf.dataflow
def program(tokens: Tokens, learner: Learner) -> Learned:
    return learner.learn(tokens)
"""


def program(folder: Path, body: str) -> Any:
    return loaded(folder, MODULE.format(body=indent(body, " " * 8)))


def cut_changes_rows(module: Any) -> bool:
    draw = torch.Generator().manual_seed(0)
    x, mask = torch.randn(8, 4, generator=draw), torch.rand(8, 4, generator=draw) < 0.8
    whole = module.Tokens(x=x, mask=mask, y=torch.randn(8, generator=draw))
    parts = [module.Learner().learn(whole[start : start + 4]).value.tensor for start in (0, 4)]
    return not torch.allclose(module.Learner().learn(whole).value.tensor, torch.cat(parts), atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_no_row(tmp_path: Path, loss: str) -> None:
    for body in (
        f"loss = {loss}\nreturn Learned(value=y * 2, loss=float(loss))",
        f"return Learned(value=y * 2, loss=float({loss}))",
        f"learned = Learned(value=y * 2, loss=float({loss}))\nreturn learned",
    ):
        module = program(tmp_path, body)
        assert not cut_changes_rows(module)
        assert module.program.check(dims={module.B: 8}).codes == ()


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if "item" not in loss and "np." not in loss])
def test_rows_less_a_loss_depend_on_others(tmp_path: Path, loss: str) -> None:
    module = program(tmp_path, f"loss = {loss}\nreturn Learned(value=y - loss, loss=0.0)")
    assert cut_changes_rows(module)
    assert module.program.check(dims={module.B: 8}).codes == ("HF338",)


@pytest.mark.parametrize("expression", [*ROWS, *MIXED])
def test_rows_are_reported_if_a_cut_changes_them(tmp_path: Path, expression: str) -> None:
    for body in (
        f"return Learned(value={expression}, loss=float(y.mean()))",
        f"value = {expression}\nloss = value.mean()\nreturn Learned(value=value, loss=loss.item())",
    ):
        module = program(tmp_path, body)
        assert cut_changes_rows(module) is (expression in MIXED)
        assert module.program.check(dims={module.B: 8}).codes == (("HF338",) if expression in MIXED else ())


@pytest.mark.parametrize("name", [*STATEMENTS, *APART])
def test_mixed_rows_are_followed_through_statements(tmp_path: Path, name: str) -> None:
    for end in ("return Learned(value=gain, loss=0.0)", "learned = Learned(loss=0.0, value=gain)\nreturn learned"):
        module = program(tmp_path, f"{(STATEMENTS | APART)[name]}\n{end}")
        assert cut_changes_rows(module) is (name in STATEMENTS)
        assert module.program.check(dims={module.B: 8}).codes == (("HF338",) if name in STATEMENTS else ())


BRANCHES = """
from __future__ import annotations
import hfdsl as hf

class B(hf.Dim): ...

class Gains(hf.Batch):
    y: hf.f32[B]

@hf.function
def gains(rows: Gains, *, by: str = "none", least: int = 2) -> Gains:
    y = rows.y.tensor
    if by == "batch" and least:
        y = y - y.mean()
    return Gains(y=y - y.mean() if least > 4 else y)

@hf.dataflow
def program(rows: Gains, *, by: str = "none", least: int = 2) -> Gains:
    return gains(gains(rows), by=by, least=least)
"""


def test_constants_of_a_call_decide_branches(tmp_path: Path) -> None:
    module = loaded(tmp_path, BRANCHES)
    for settings, codes in (
        ({}, ()),
        ({"by": "none", "least": 8}, ("HF338",)),
        ({"by": "batch", "least": 2}, ("HF338",)),
        ({"by": "batch", "least": 0}, ()),
        ({"by": "none", "least": 4}, ()),
    ):
        assert module.program.given(**settings).check(dims={module.B: 8}).codes == codes, settings


JUDGE = """
from __future__ import annotations
import torch
import hfdsl as hf

class B(hf.Dim): ...
class T(hf.Dim): ...

class Tokens(hf.Batch):
    ids: hf.i64[B, T]
    lengths: hf.i64[B]

class Scores(hf.Batch):
    score: hf.f32[B]

class Judge(hf.Worker):
    def head(self, ids):
        return torch.stack([ids * 0.5, ids * 0.25], dim=-1)

    def number(self, ids):
        return torch.tensor([[2.0, 1.0]])

    @hf.register(hf.Dispatch.DP_PROTO)
    def score(self, tokens: Tokens) -> Scores:
        ids = tokens.ids.tensor
        {statements}
        return Scores(score=score)

@hf.dataflow
def program(tokens: Tokens, judge: Judge) -> Scores:
    return judge.score(tokens)
"""
SCORES = {
    "score = self.head(ids)[:, -1, 0]": False,
    "score = self.head(ids).float()[:, -1].mean(1)": False,
    "score = self.head(ids)[:, -1, 0] / self.number(ids)[0, 0]": False,
    "score = self.head(ids)[:, -1, 0]\n        score = (score - 1.5) / 2.0": False,
    "score = self.head(ids)[:, -1].softmax(-1)[:, 1]": False,
    "order = tokens.lengths.tensor.argsort()\n"
    "        back = order.argsort()\n"
    "        score = self.head(ids[order])[:, -1, 0][back]": False,
    "order = tokens.lengths.tensor.argsort()\n"
    "        values = self.head(ids[order])[:, -1, 0]\n"
    "        score = torch.zeros(len(ids))\n        score[order] = values": False,
    "score = torch.stack([ids[:, 0], ids[:, 1]], -1).float().mean(1)": False,
    "score = torch.cat([ids.float(), ids * 0.5], dim=1).mean(1)": False,
    "score = torch.cat([ids[:2].float().sum(1), ids[2:].float().sum(1)], -1)": False,
    "order = tokens.lengths.tensor.argsort()\n"
    "        both = torch.cat([ids[order], self.head(ids[order])[..., 0]], 1)\n"
    "        score = both.mean(1)[order.argsort()]": False,
    "score = torch.stack([ids[:, 0] * 1.0, ids[:, 1] / ids[:, 1].sum()], dim=1).sum(1)": True,
    "order = tokens.lengths.tensor.argsort()\n"
    "        score = torch.cat([ids[order], ids[order]], 1).float().mean(1)": True,
    "order = tokens.lengths.tensor.argsort()\n"
    "        score = torch.cat([ids[order], ids], dim=-1).float().mean(1)": True,
    "order = tokens.lengths.tensor.argsort()\n"
    "        values = self.head(ids[order]) * 0.5\n"
    "        score = values[:, 0, 0]": True,
    "score = self.head(ids)[:, -1, 0]\n        score = score - score.mean()": True,
    "values = self.head(ids)\n        score = values[:, -1, 0] / values[:, -1, 0].abs().max()": True,
    "score = self.head(ids).squeeze(-1)[:, -1, 0]\n        score -= score.mean()": True,
    "order = tokens.lengths.tensor.argsort()\n        score = self.head(ids[order])[:, -1, 0]": True,
}
"""What a role computes of the output of its model, and whether a cut changes it."""


@pytest.mark.parametrize("statements", SCORES)
def test_the_output_of_a_model_has_the_rows_that_it_gets(tmp_path: Path, statements: str) -> None:
    module = loaded(tmp_path, JUDGE.format(statements=statements))
    draw = torch.Generator().manual_seed(0)
    ids, lengths = (torch.randint(1, 50, shape, generator=draw) for shape in ((8, 3), (8,)))
    whole = module.Tokens(ids=ids, lengths=lengths)
    parts = [module.Judge().score(whole[start : start + 4]).score.tensor for start in (0, 4)]
    is_changed = not torch.allclose(module.Judge().score(whole).score.tensor, torch.cat(parts))
    assert is_changed is SCORES[statements]
    assert module.program.check(dims={module.B: 8}).codes == (("HF338",) if is_changed else ())


def test_what_is_mixed_first_is_reported(tmp_path: Path) -> None:
    module = program(tmp_path, "gain = (y - y.mean()) / (y.std() + 1)\nreturn Learned(value=gain * 2, loss=0.0)")
    [finding] = module.program.check(dims={module.B: 8}).findings
    assert "'y - y.mean()'" in finding.message
