"""Tensors of rows in bodies: those whose rows meet another dim are exactly those that torch aligns so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

ALIGNED = (
    "groups - groups.mean(1, keepdim=True)",
    "(groups - groups.mean(1)[:, None]) / (groups.std(1).unsqueeze(-1) + 1)",
    "(groups - groups.mean(-1, True)) / (groups.std(dim=1, keepdim=True) + 1)",
    "y - groups.mean(1).repeat_interleave(4)",
    "y[:, None] * x",
    "y.unsqueeze(1) * x / x.abs().sum(-1, keepdim=True)",
    "x * y.view(-1, 1)",
    "(x * mask).sum(1) / mask.sum(1).clamp(min=1) - y",
    "x.masked_fill(~mask, 0.0).sum(-1) * y * 2.0 * FACTOR",
    "y[:, None] - y",
    "(y[:, None] > x.sum(1)).float().sum(1)",
    "column - y",
    "torch.lt(column, x.sum(1)).float().mean(1)",
    "y[:, None] - y[None, :]",
    "groups[:, :, None] - groups[:, None, :]",
    "x[:, 0] - y",
    "x[:, COLUMNS].sum(1) - y",
    "x.squeeze(-1).sum(1) - y",
    "y[:, None].squeeze(1) - y * 2",
    "x.amax(1, keepdim=KEEPS).sum() + y",
    "matrix - y",
    "matrix * x.sum(1)",
    "(matrix - y).sum(0) - y",
    "x.numpy().mean(axis=1) - y.numpy()",
    "torch.where(y[:, None] > 0, x, -x)",
    "scaled(x, y[:, None])",
    "(x @ torch.ones(4)) - y",
    "y.view(-1, 4).T.mean(0) + groups.mean(1)",
    "torch.quantile(x, torch.tensor([0.1, 0.9]), 1).sum(0) - y",
    "x.sum((0, 1)) - y",
)
MISALIGNED = (
    "groups - groups.mean(1)",
    "(groups - groups.mean(1, keepdim=True)) / (groups.std(1) + 1)",
    "groups - groups.mean(dim=1, keepdim=False)",
    "groups / torch.amax(groups, -1)",
    "groups * (groups.sum(1) > 0)",
    "y * x",
    "x / x.abs().sum(1)",
    "x.masked_fill(y > 0, 0.0)",
    "torch.where(y > 0, x, -x)",
    "x * y * 2.0 * FACTOR",
    "x - float(y[0]) * y",
    "y[:, None] - x.sum(1)",
    "column - groups.mean(1).repeat_interleave(4)",
    "x.sum(1, keepdim=True) - y",
    "x.view(-1, 4, 1) * x",
    "torch.mul(y, x)",
    "x.numpy() - x.numpy().mean(axis=1)",
    "np.subtract(x.numpy(), np.mean(x.numpy(), axis=1))",
    "scaled(x, y)",
    "shifted(x)",
    "y.view(-1, 1) * x.mean(1)",
)
"""Expressions of 4 rows with 4 tokens, so that torch refuses none of them."""

MODULE = """
from __future__ import annotations
import numpy as np
import torch
import hfdsl as hf

FACTOR, KEEPS, COLUMNS = 2.0, False, [1, 0]

def scaled(values, by, eps=1e-6):
    return values * (by + eps)

def shifted(values):
    means = values.mean(1)
    return values - means

class B(hf.Dim): ...
class R(hf.Dim): ...

class Tokens(hf.Batch):
    x: hf.f32[B, R]
    mask: hf.bool_[B, R]
    y: hf.f32[B]

class Total(hf.Batch):
    total: hf.f32[B]

class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO, rows=hf.Grouped(4))
    def judged(self, tokens: Tokens) -> Total:
        return Total(total=value(tokens)[:len(tokens.y.tensor)].detach())

def value(tokens):
    x, y, mask = tokens.x.tensor, tokens.y.tensor, tokens.mask.tensor
    groups, column, matrix = y.view(-1, 4), y[:, None], torch.ones(3, len(y))
    return {expression}

@hf.function(rows=hf.Whole)
def computed(tokens: Tokens) -> Total:
    x = tokens.x.tensor
    y = tokens.y.tensor
    mask = tokens.mask.tensor
    groups = y.view(-1, 4)
    column = y[:, None]
    matrix = torch.ones(3, len(y))
    z = {expression}
    return Total(total=y + z.sum() * 0)

@hf.dataflow
def program(tokens: Tokens) -> Total:
    return computed(tokens)
"""


def refuses_other_sizes(module: Any) -> bool:
    """Whether torch refuses an expression of 8 rows with 4 tokens, or makes pairs of rows."""
    tokens = module.Tokens(x=torch.randn(8, 4), mask=torch.rand(8, 4) < 0.7, y=torch.randn(8))
    try:
        return list(module.value(tokens).shape) == [8, 8]
    except (RuntimeError, ValueError):
        return True


@pytest.mark.parametrize("expression", [*ALIGNED, *MISALIGNED])
def test_rows_that_meet_another_dim_are_reported(tmp_path: Path, expression: str) -> None:
    module = loaded(tmp_path, MODULE.format(expression=expression))
    is_wrong = expression in MISALIGNED
    assert not is_wrong or refuses_other_sizes(module)
    assert module.program.check(dims={module.B: 4}).codes == (("HF367",) if is_wrong else ())


STATEMENTS = {
    "a mean in place": ("groups -= groups.mean(1)\n    z = groups", True),
    "an in-place method": ("groups.sub_(groups.mean(1))\n    z = groups", True),
    "a mean in place with its dim": ("groups -= groups.mean(1, keepdim=True)\n    z = groups", False),
    "another tensor by then": ("column = column * x\n    z = column - y[:, None]", False),
    "a column that was squeezed": ("column = column.squeeze(1)\n    z = column - x.sum(1)", False),
    "a branch": ("if len(y) > 1:\n        column = y\n    z = column - x.sum(1)", False),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_dims_are_followed_through_statements(tmp_path: Path, name: str) -> None:
    statements, is_wrong = STATEMENTS[name]
    text = MODULE.replace("z = {expression}", statements).replace("{expression}", "x")
    module = loaded(tmp_path, text)
    assert module.program.check(dims={module.B: 4}).codes == (("HF367",) if is_wrong else ())


OF_A_ROLE = """
from __future__ import annotations
from typing import Literal
import torch
import hfdsl as hf

class B(hf.Dim): ...
class R(hf.Dim): ...

class Tokens(hf.Batch):
    ids: hf.i64[B, R]
    log_probs: hf.f32[B, R]
    mask: hf.bool_[B, R]
    gain: hf.f32[B]
    column: hf.f32[B, Literal[1]]

class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]

class Actor(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, tokens: Tokens) -> Loss:
        mask = tokens.mask.tensor
        ratio = (self.log_probs(tokens.ids.tensor) - tokens.log_probs.tensor).exp()
        sums = ((self.log_probs(tokens.ids.tensor) - tokens.log_probs.tensor) * mask).sum(1)
        loss = {expression}
        return Loss(loss=float(loss))

@hf.dataflow
def program(tokens: Tokens, actor: Actor) -> Loss:
    return actor.update(tokens)
"""


@pytest.mark.parametrize(
    ("expression", "is_wrong"),
    [
        ("-(ratio * tokens.gain.tensor * mask).sum()", True),
        ("-(ratio * tokens.gain.tensor[:, None] * mask).sum()", False),
        ("-(sums.exp() * tokens.column.tensor).mean()", True),
        ("-(sums.exp() * tokens.column.tensor.squeeze(1)).mean()", False),
        ("-(sums.exp().unsqueeze(1) * tokens.column.tensor).mean()", False),
        ("-(self.scores(tokens.ids.tensor) * tokens.gain.tensor).mean()", False),
        ("-((self.scores(tokens.ids.tensor) - tokens.gain.tensor)[:, None] * tokens.log_probs.tensor).mean()", False),
        ("((self.scores(tokens.ids.tensor) - tokens.gain.tensor) * tokens.log_probs.tensor).mean()", False),
    ],
)
def test_what_a_model_gives_has_the_dims_of_the_tokens_that_it_meets(
    tmp_path: Path, expression: str, is_wrong: bool
) -> None:
    module = loaded(tmp_path, OF_A_ROLE.format(expression=expression))
    assert module.program.check(dims={module.B: 4}).codes == (("HF367",) if is_wrong else ())
