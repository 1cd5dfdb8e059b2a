"""Rows in another order beside rows in the old one: reported if a body certainly moves rows, silent elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
from typing import Literal
import torch
import hfdsl as hf

class B(hf.Dim): ...
class T(hf.Dim): ...

class Tokens(hf.Batch):
    x: hf.f32[B, T]
    y: hf.f32[B]

class Gains(hf.Batch):
    gain: hf.f32[B]

class Both(Tokens, Gains): ...

class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]

class Kept(hf.Batch):
    keep: hf.bool_[B]

def placed(values, order):
    return values[order]

@hf.function(rows=hf.Whole)
def moved(tokens: Tokens) -> Tokens:
    x, y = tokens.x.tensor, tokens.y.tensor
    {statement}
    return Tokens(x={x}, y={y})

@hf.function(rows=hf.Whole)
def renamed(tokens: Tokens) -> Gains:
    return Gains(gain=tokens.y.tensor.flip(0))

@hf.function
def gained(tokens: Tokens) -> Gains:
    return Gains(gain=tokens.y.tensor * 2)

@hf.function(rows=hf.Grouped(4))
def compared(tokens: Tokens) -> Gains:
    groups = tokens.y.tensor.view(-1, 4)
    return Gains(gain=(groups - groups.mean(1, keepdim=True)).flatten())

@hf.function
def high(tokens: Tokens) -> Kept:
    return Kept(keep=tokens.y.tensor > 0)

@hf.function
def learned(tokens: Tokens, gains: Gains) -> Loss: ...

@hf.function
def learned_at_once(both: Both) -> Loss: ...

@hf.function
def contrasted(tokens: Tokens, negatives: Tokens) -> Loss: ...

@hf.dataflow
def step(tokens: Tokens) -> Loss:
    return learned(moved(tokens), gained(tokens))

@hf.dataflow
def of_groups(tokens: Tokens) -> Loss:
    repeated = hf.repeat(tokens, 4)
    return learned(moved(repeated), compared(repeated))

@hf.dataflow
def of_their_own_groups(tokens: Tokens) -> Loss:
    start = hf.repeat(moved(tokens), 4)
    return learned(start, compared(start))

@hf.dataflow
def merged(tokens: Tokens) -> Loss:
    return learned_at_once(hf.merge(Both, moved(tokens), gained(tokens)))

@hf.dataflow
def derived(tokens: Tokens) -> Loss:
    return learned(tokens, gained(moved(tokens)))

@hf.dataflow
def parts(tokens: Tokens) -> Loss:
    return learned(hf.minibatches(moved(tokens), 2)[0], hf.minibatches(gained(tokens), 2)[0])

@hf.dataflow
def filtered(tokens: Tokens) -> Tokens:
    return hf.filter(moved(tokens), high(tokens).keep)

@hf.dataflow
def moved_twice(tokens: Tokens) -> Loss:
    start = moved(tokens)
    return learned(start, gained(moved(start)))

@hf.dataflow
def before(tokens: Tokens) -> Loss:
    start = moved(tokens)
    return learned(start, gained(start))

@hf.dataflow
def other_columns(tokens: Tokens) -> Loss:
    return learned(tokens, renamed(tokens))

@hf.dataflow
def pairs(tokens: Tokens) -> Loss:
    return contrasted(tokens, moved(tokens))

@hf.dataflow
def alone(tokens: Tokens) -> Tokens:
    return moved(tokens)
"""
MOVED = (
    ("order = y.argsort()", "x[order]", "y[order]"),
    ("order = torch.argsort(y, descending=True)", "x[order]", "y[order].contiguous()"),
    ("order = torch.randperm(len(y))", "x.index_select(0, order)", "torch.index_select(y, 0, order)"),
    ("order = x.sum(1).sort().indices", "x[order]", "y[order]"),
    ("values, order = torch.sort(y)", "x[order]", "values"),
    ("order = y.argsort().flip(0).to('cpu')", "x[order]", "y[order]"),
    ("pass", "x.flip(0)", "y.flip(0)"),
    ("pass", "x.roll(1, 0)", "torch.roll(y, 1, 0)"),
    ("order = torch.sort(y)[1]", "x[order]", "placed(y, order)"),
)
"""What a body does before it returns, and its columns."""

KEPT = (
    ("pass", "x", "y"),
    ("pass", "x.flip(1)", "y"),
    ("order = y.argsort()", "x[order][order.argsort()]", "y[order][order.argsort()]"),
    ("pass", "x.flip(0).flip(0)", "y.flip(0).flip(0)"),
    ("order = y.argsort()\n    if len(y) > 1:\n        order = torch.arange(len(y))", "x[order]", "y[order]"),
    ("order = torch.arange(len(y))", "x[order]", "y[order]"),
    ("rank = y.argsort().argsort()", "x", "y"),
    ("order = y.argsort()\n    order[:] = torch.arange(len(y))", "x[order]", "y[order]"),
    ("order = y.argsort()\n    order.copy_(torch.arange(len(y)))", "x[order]", "y[order]"),
    ("order = y.argsort()\n    order -= order - torch.arange(len(y))", "x[order]", "y[order]"),
)
OTHER_COLUMNS = (
    ("order = y.argsort()", "x[order]", "y"),
    ("order = y.argsort()", "x[order]", "y * 2"),
    ("order = y.argsort()", "x[order] * 2", "y[order] * 2"),
    ("order = y.argsort()", "x[order]", "y[order[:8]]"),
)
MISTAKES = ("step", "of_groups", "merged", "derived", "parts", "filtered", "moved_twice")
MEANT = ("before", "of_their_own_groups", "other_columns", "pairs", "alone")


def program(folder: Path, statement: str, x: str, y: str) -> Any:
    return loaded(folder, MODULE.format(statement=statement, x=x, y=y))


def moves_rows(module: Any) -> bool:
    torch.manual_seed(1)
    tokens = module.Tokens(x=torch.randn(8, 4), y=torch.randn(8))
    return not torch.equal(module.moved(tokens).y.tensor, tokens.y.tensor)


@pytest.mark.parametrize(("statement", "x", "y"), [*MOVED, *KEPT])
def test_rows_in_another_order_are_reported_beside_those_in_the_old_one(
    tmp_path: Path, statement: str, x: str, y: str
) -> None:
    module = program(tmp_path, statement, x, y)
    is_moved = moves_rows(module)
    assert is_moved is ((statement, x, y) in MOVED)
    codes = {name: getattr(module, name).check(dims={module.B: 8, module.T: 4}).codes for name in (*MISTAKES, *MEANT)}
    assert codes == dict.fromkeys(MISTAKES, ("HF333",) if is_moved else ()) | dict.fromkeys(MEANT, ())


@pytest.mark.parametrize(("statement", "x", "y"), OTHER_COLUMNS)
def test_a_body_that_computes_its_columns_may_mean_the_old_order(
    tmp_path: Path, statement: str, x: str, y: str
) -> None:
    module = program(tmp_path, statement, x, y)
    for name in (*MISTAKES, *MEANT):
        assert getattr(module, name).check(dims={module.B: 8, module.T: 4}).codes == (), name


def test_one_call_that_moves_rows_is_reported_once(tmp_path: Path) -> None:
    source = MODULE.format(statement="order = y.argsort()", x="x[order]", y="y[order]")
    twice = """
@hf.dataflow
def twice(tokens: Tokens) -> Kept:
    start, gains = moved(tokens), gained(tokens)
    first, second = hf.filter(start, high(tokens).keep), hf.merge(Both, start, gains)
    return high(second)
"""
    module = loaded(tmp_path, source + twice)
    report = module.twice.check(dims={module.B: 8, module.T: 4})
    assert report.codes.count("HF333") == 1
