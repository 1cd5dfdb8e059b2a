"""Divisions by a deviation: those that give NaN for a group of equal scores, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import torch
from torch import where
import hfdsl as hf

class B(hf.Dim): ...

class Scores(hf.Batch):
    y: hf.f32[B]

class Kept(hf.Batch):
    keep: hf.bool_[B]

@hf.function(rows=hf.Grouped(4))
def spread(scores: Scores) -> Kept:
    y = scores.y.tensor
    return Kept(keep=(y.view(-1, 4).std(1) > 0).repeat_interleave(4))

@hf.function(rows=hf.Grouped(4))
def normalized(scores: Scores) -> Scores:
    groups = scores.y.tensor.view(-1, 4)
    gained = groups - groups.mean(1, keepdim=True)
    {statements}
    return Scores(y=({expression}).flatten())

@hf.dataflow
def step(scores: Scores) -> Scores:
    return normalized(scores)

@hf.dataflow
def filtered(scores: Scores) -> Scores:
    return normalized(hf.filter(scores, spread(scores).keep, group=4))
"""
NOT_A_NUMBER = (
    ("pass", "gained / groups.std(1, keepdim=True)"),
    ("pass", "gained / groups.std(dim=-1, keepdim=True).float()"),
    ("pass", "gained / torch.std(groups, 1)[:, None]"),
    ("pass", "gained.div(groups.std(1).unsqueeze(1))"),
    ("deviation = groups.std(1)", "gained.flatten() / deviation.repeat_interleave(4)"),
    ("gained /= groups.std(1, keepdim=True)", "gained"),
)
NUMBERS = (
    ("pass", "gained / (groups.std(1, keepdim=True) + 1e-6)"),
    ("pass", "gained / groups.std(1, keepdim=True).clamp(min=1e-6)"),
    ("pass", "(gained / groups.std(1, keepdim=True)).nan_to_num()"),
    ("s = groups.std(1, keepdim=True)", "torch.where(s > 0, gained / s, 0)"),
    ("s = groups.std(1, keepdim=True)\n    s = s + 1e-4", "gained / s"),
    ("s = groups.std(1, keepdim=True)\n    s += 1e-4", "gained / s"),
    ("pass", "gained * groups.std(1, keepdim=True)"),
    ("pass", "gained / 4"),
    ("s = groups.std(1, keepdim=True)\n    s[s == 0] = 1.0", "gained / s"),
    ("s = groups.std(1, keepdim=True)\n    s.clamp_(min=1e-6)", "gained / s"),
    ("s = groups.std(1, keepdim=True)\n    if bool((s == 0).any()):\n        s = s + 1e-4", "gained / s"),
    ("s = groups.std(1, keepdim=True)", "gained / s if bool((s > 0).all()) else gained"),
    ("s = groups.std(1, keepdim=True)\n    z = gained / s\n    z[s.expand(-1, 4) == 0] = 0.0", "z"),
    ("s = groups.std(1, keepdim=True)", "where(s > 0, gained / s, 0)"),
)


def program(folder: Path, statements: str, expression: str) -> Any:
    return loaded(folder, MODULE.format(statements=statements, expression=expression))


@pytest.mark.parametrize(("statements", "expression"), [*NOT_A_NUMBER, *NUMBERS])
def test_a_division_is_reported_if_equal_scores_make_it_no_number(
    tmp_path: Path, statements: str, expression: str
) -> None:
    module = program(tmp_path, statements, expression)
    scores = module.Scores(y=torch.tensor([1.0, 0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0]))
    is_number = bool(module.step(scores).y.tensor.isfinite().all())
    assert is_number is ((statements, expression) in NUMBERS)
    assert module.step.check(dims={module.B: 8}).codes == (() if is_number else ("HF357",))


@pytest.mark.parametrize(("statements", "expression"), NOT_A_NUMBER)
def test_rows_that_a_filter_has_selected_may_all_differ(tmp_path: Path, statements: str, expression: str) -> None:
    module = program(tmp_path, statements, expression)
    assert module.filtered.check(dims={module.B: 8}).codes == ()
