"""Bodies that compute rows from a statistic of all rows: exactly those whose values a cut between rows changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

APART = (
    "y + 1",
    "(x - x.mean(1, keepdim=True)).sum(-1)",
    "(x - x.mean(-1)[:, None]).sum(1)",
    "(x * y[:, None]).sum(1) / x.abs().sum(dim=1)",
    "torch.softmax(x, -1)[:, 0]",
    "x.cumsum(-1)[:, 2] - x.flip(1)[:, 0]",
    "torch.where(y > 0, y, -y)",
    "x.amax(1) - x.max(1).values",
    "x.norm(2, 1) + torch.quantile(x, 0.5, 1)",
    "x.mean(1, True).sum(-1)",
    "y.view(-1, 2).mean(1, keepdim=True).expand(-1, 2).flatten()",
    "(y.view(-1, 2) - y.view(-1, 2).mean(1, keepdim=True)).flatten()",
    "(x.reshape(-1, 2, 2).sum(2) - 1).mean(1)",
    "(y.view(2, -1) * 2).flatten()",
    "y - y.view(-1, 2).mean(1).repeat_interleave(2)",
    "(y.unflatten(0, (-1, 2)) - y.unflatten(0, [-1, 2]).mean(1, keepdim=True)).flatten()",
    "(y.reshape((-1, 2)) - y.view((-1, 2)).mean(1, keepdim=True)).flatten()",
    "(y.view(-1, TWO).softmax(1) + y.view(-1, TWO).amax(-1)[:, None]).reshape(-1)",
    "F.normalize(x, dim=1).sum(1)",
    "centered(x, 1).sum(1)",
    "(y[y.argsort()] * 2)[y.argsort().argsort()]",
    "y - y.view(-1, 1).sum(1).repeat(1)",
    "y - y.view(-1, TWO).mean(1, keepdim=True).expand(-1, TWO).flatten()",
    "in_views(y)",
    "by_pair(y)",
    "in_groups(y, 2)",
    "less_one(*ONES, y)",
    "abs_often(y)",
    "y.flip(0).flip(0)",
    "x @ torch.ones(4) - (x @ torch.ones(4)).clamp(max=0.5)",
)
MIXED = (
    "y - y.mean()",
    "y / y.sum(0)",
    "y - torch.mean(y)",
    "(x - x.mean(0)).sum(1)",
    "(x - x.mean(dim=(0, 1))).sum(-1)",
    "(x - x.mean(-2, keepdim=True)).sum(1)",
    "(y - y.mean()) / (y.std() + 1e-6)",
    "y - float(y.max())",
    "torch.where(y >= y.max(), 1.0, y)",
    "y.clamp(max=y.mean().item())",
    "y.sort().values",
    "y.argsort().float()",
    "torch.cumsum(y, 0)",
    "y * (x.abs().sum() + 1)",
    "y - (x.sum(1) * y).sum() / 3",
    "(y.view(-1, 2) - y.view(-1, 2).mean(0)).flatten()",
    "y - y.reshape(-1, 2).mean()",
    "(y.unflatten(0, (-1, 2)) - y.unflatten(0, (-1, 2)).mean()).flatten()",
    "(y.view((-1, 2)) - y.view((-1, 2)).mean(0)).flatten()",
    "(y.view(2, -1) - y.view(2, -1).mean(0)).flatten()",
    "(y.view(2, -1) - y.reshape(2, -1).mean(1, keepdim=True)).flatten()",
    "y - y.view(-1, 2).mean(1).repeat(2)",
    "y - torch.tile(y.view(-1, 2).sum(1), (2,))",
    "F.normalize(y, dim=0)",
    "torch.nn.functional.softmax(y, 0)",
    "(y - torch.var_mean(y)[1]) / 2",
    "whitened(y)",
    "whitened(values=y * 2)",
    "outer(y)",
    "y[y.argsort()]",
    "y[torch.argsort(x.sum(1))]",
    "y[torch.randperm(len(y))]",
    "y.index_select(0, y.sort().indices)",
    "torch.index_select(y, 0, torch.sort(y)[1].flip(0))",
    "y - y.sort().values[0]",
    "y - y[y > 0].mean()",
    "y - torch.masked_select(x, x > 0).mean()",
    "torch.where(x > 0, (x - x[x > 0].mean()) / x[x > 0].std(), x).sum(1)",
    "y.flip(0) * 2",
    "torch.roll(y, 1, 0)",
    "x @ torch.ones(4) - (x @ torch.ones(4)).mean()",
)
GROUPED = (
    "(y.view(-1, 2) - y.view(-1, 2).mean(1, keepdim=True)).flatten()",
    "(y.view(-1, TWO) - y.view(-1, TWO).mean(dim=1, keepdim=True)).flatten()",
    "y.reshape(-1, len((0, 1))).softmax(-1).flatten()",
    "y - y.view(-1, 2).mean(1).repeat_interleave(2)",
    "torch.sort(y.view(-1, 2), 1).values.flatten()",
)
"""Bodies that compute something of each pair of rows."""

MODULE = """
from __future__ import annotations
import functools
import torch
import torch.nn.functional as F
import hfdsl as hf

TWO = 2

def whitened(values):
    spread, mean = torch.std_mean(values)
    return (values - mean) / (spread + 1e-6)

def in_views(values):
    if values.ndim == 1:
        values = values.view(-1, 2)
    return (values - values.mean(-1, keepdim=True)).flatten()

def each_pair(function):
    @functools.wraps(function)
    def pairs(values):
        return torch.cat([function(pair) for pair in values.view(-1, 2)])
    return pairs

@each_pair
def by_pair(values):
    return values - values.mean()

n = 3

def in_groups(values, n):
    groups = values.view(-1, n)
    return (groups - groups.mean(1, keepdim=True)).flatten()

ONES = (1.0, torch.ones(3))

def less_one(first, ones, values):
    return values - ones.mean()

def abs_often(values):
    return values.abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs().abs()

def outer(values):
    return whitened(values + 1)

def centered(values, dim):
    return values - values.mean(1, keepdim=True)

class B(hf.Dim): ...
class T(hf.Dim): ...

class Tokens(hf.Batch):
    x: hf.f32[B, T]
    y: hf.f32[B]

class Result(hf.Batch):
    value: hf.f32[B]

class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO, rows=hf.Grouped(2))
    def judged(self, tokens: Tokens) -> Result:
        x = tokens.x.tensor
        y = tokens.y.tensor
        return Result(value={expression})

@hf.function(rows={rows})
def computed(tokens: Tokens) -> Result:
    x = tokens.x.tensor
    y = tokens.y.tensor
    return Result(value={expression})

@hf.dataflow
def by_function(tokens: Tokens) -> Result:
    return computed(tokens)

@hf.dataflow
def by_role(tokens: Tokens, judge: Judge) -> Result:
    return judge.judged(tokens)
"""


def program(folder: Path, expression: str, rows: str = "hf.Grouped(2)") -> Any:
    return loaded(folder, MODULE.format(expression=expression, rows=rows))


def cut_changes_values(module: Any) -> bool:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    whole = module.Tokens(x=torch.randn(8, 4, generator=draw), y=torch.randn(8, generator=draw))
    parts = [module.by_function(whole[start : start + 4]).value.tensor for start in (0, 4)]
    return not torch.allclose(module.by_function(whole).value.tensor, torch.cat(parts))


@pytest.mark.parametrize("expression", [*APART, *MIXED])
def test_a_statistic_is_reported_if_a_cut_changes_what_the_body_computes(tmp_path: Path, expression: str) -> None:
    module = program(tmp_path, expression)
    assert cut_changes_values(module) is (expression in MIXED)
    expected = ("HF338",) if expression in MIXED else ()
    assert module.by_function.check(dims={module.B: 8}).codes == expected
    assert module.by_role.check(dims={module.B: 8}).codes == expected


@pytest.mark.parametrize("expression", [code for code in MIXED if ".repeat(" not in code and "tile" not in code])
def test_a_function_that_gets_all_rows_may_compute_anything_of_them(tmp_path: Path, expression: str) -> None:
    module = program(tmp_path, expression, "hf.Whole")
    assert module.by_function.check(dims={module.B: 8}).codes == ()


@pytest.mark.parametrize("expression", GROUPED)
def test_groups_are_declared(tmp_path: Path, expression: str) -> None:
    for rows, is_whole in (("hf.Independent", False), ("hf.Grouped(3)", False), ("hf.Grouped(4)", True)):
        module = program(tmp_path, expression, rows)
        whole = module.Tokens(x=torch.randn(12, 4), y=torch.randn(12))
        computed = module.by_function(whole).value.tensor
        with pytest.raises(RuntimeError, match="invalid for"):  # nothing else is wrong with an odd number of rows
            module.by_function(whole[:3])
        assert torch.equal(module.by_function(whole[:4]).value.tensor, computed[:4])
        is_known = "len(" not in expression
        report = module.by_function.check(dims={module.B: 12})
        assert report.codes == (() if is_whole or not is_known else ("HF338",))


def test_groups_in_turn_are_wrong_of_all_rows_too(tmp_path: Path) -> None:
    for expression, codes in (
        ("y - y.view(-1, 2).mean(1).repeat(2)", ("HF338",)),
        ("y - y.view(-1, 2).mean(1).repeat_interleave(2)", ()),
    ):
        module = program(tmp_path, expression, "hf.Whole")
        assert module.by_function.check(dims={module.B: 8}).codes == codes


SPLIT = (
    "y - y.view(TWO, -1).mean(0).repeat(2)",
    "(y.view(2, -1) - y.view(2, -1).amax(0)).flatten()",
    "(y.reshape(n, -1) / (torch.std(y.reshape(n, -1), dim=-2) + 1)).flatten()",
    "(y.view(n, -1) - 2 * y.view(n, -1).max(0, keepdim=True).values).flatten()",
    "less_the_mean(y.view(n, -1)).flatten()",
)
KEPT = (
    "(y.view(-1, n) - y.view(-1, TWO).mean(1, keepdim=True)).flatten()",
    "(y.view(n, -1) * 2).flatten()",
    "y - y.view(-1, n).amax(1).repeat_interleave(n)",
    "less_row_means(y, len(y) // n)",
)
OF_ALL = (
    "(y.view(3, -1) - y.view(3, -1).mean(0)).flatten()",
    "(y.view(2, -1) - y.view(2, -1).mean(1, keepdim=True)).flatten()",
    "y - y.mean()",
)
"""Bodies that compute something of each group, other than by rows of different ones, and of all rows."""

REPEATED = """
from __future__ import annotations
import torch
import hfdsl as hf

TWO = 2

def less_the_mean(values):
    return values - values.mean(0)

def less_row_means(values, n):
    return (values.view(n, -1) - values.view(n, -1).mean(1, keepdim=True)).flatten()

class B(hf.Dim): ...

class Result(hf.Batch):
    y: hf.f32[B]

class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def judged(self, result: Result) -> Result:
        raise NotImplementedError

@hf.function(rows={rows})
def computed(result: Result, *, n: int) -> Result:
    y = result.y.tensor
    return Result(y={expression})

@hf.dataflow
def directly(result: Result) -> Result:
    return computed(result, n=2)

@hf.dataflow
def repeated(result: Result, judge: Judge, *, times: int = 2) -> Result:
    return computed(judge.judged(hf.repeat(result, times)), n=2)
"""


def splits_groups(module: Any) -> bool:
    """Whether another order of the groups is more than another order of their results."""
    rows, order = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 2, 5, 4, 3])
    values, ordered = (module.directly(module.Result(y=y.flatten())).y.tensor for y in (rows, rows[order]))
    return not torch.allclose(values.view(6, 2)[order].flatten(), ordered)


@pytest.mark.parametrize("rows", ["hf.Whole", "hf.Grouped(TWO)", 'hf.GroupedBy("n")'])
@pytest.mark.parametrize("expression", [*SPLIT, *KEPT])
def test_rows_of_different_groups_are_no_group(tmp_path: Path, expression: str, rows: str) -> None:
    module = loaded(tmp_path, REPEATED.format(expression=expression, rows=rows))
    assert splits_groups(module) is (expression in SPLIT)
    [*findings] = module.repeated.check(dims={module.B: 6}).findings
    assert [finding.code for finding in findings] == ["HF338"] * (expression in SPLIT)
    assert all("rows of different groups" in finding.message for finding in findings)


@pytest.mark.parametrize("expression", [*SPLIT, *OF_ALL])
def test_groups_of_a_function_of_all_rows_are_known_where_they_are_repeated(tmp_path: Path, expression: str) -> None:
    module = loaded(tmp_path, REPEATED.format(expression=expression, rows="hf.Whole"))
    assert module.repeated.check(dims={module.B: 6}).codes == (("HF338",) if expression in SPLIT else ())
    assert module.repeated.given(times=1).check(dims={module.B: 6}).codes == ()
    assert module.repeated.given(times=4).check(dims={module.B: 6}).codes == ()
    assert module.directly.check(dims={module.B: 6}).codes == ()


ACROSS = (
    "(y.view(-1, n) - y.view(-1, n).mean(0)).flatten()",
    "(y.view(-1, TWO) / (y.view(-1, TWO).std(0, keepdim=True) + 1)).flatten()",
    "(y.view(-1, 2) - 2 * torch.amax(y.view(-1, 2), -2)[None]).flatten()",
    "less_the_mean(y.view(-1, n)).flatten()",
)
WITHIN = (
    "(y.view(-1, n) - y.view(-1, n).mean(0).mean()).flatten()",
    "(y.view(-1, n) - y.view(-1, n).mean(1, keepdim=True)).flatten()",
    "y - y.view(-1, n).sum(0).sum()",
    "y / y.std() - y.view(-1, n).mean(1).repeat_interleave(n)",
)
"""Bodies that compute something of the first rows of all groups, of the second ones and so on, and others."""


def knows_places(module: Any) -> bool:
    """Whether another order of the rows of one group is more than another order of their results."""
    rows = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    swapped = torch.cat([rows[:1].flip(1), rows[1:]])
    values, of_swapped = (module.directly(module.Result(y=y.flatten())).y.tensor for y in (rows, swapped))
    return not torch.allclose(torch.cat([values[:2].flip(0), values[2:]]), of_swapped, atol=1e-6)


@pytest.mark.parametrize("expression", [*ACROSS, *WITHIN])
def test_only_rows_of_one_group_are_compared(tmp_path: Path, expression: str) -> None:
    module = loaded(tmp_path, REPEATED.format(expression=expression, rows="hf.Whole"))
    assert knows_places(module) is (expression in ACROSS)
    [*findings] = module.repeated.check(dims={module.B: 6}).findings
    assert [finding.code for finding in findings] == ["HF338"] * (expression in ACROSS)
    assert all("only the rows of one group" in finding.message for finding in findings)
    assert module.directly.check(dims={module.B: 6}).codes == ()


SPLIT_TOKENS = (
    "z - z.view(n, -1, 3).mean(0).repeat(n, 1)",
    "(z.view(TWO, -1, z.shape[1]) - z.view(TWO, -1, z.shape[1]).mean(dim=-3)).view(-1, 3)",
    "(z.reshape(n, -1, 3) / (torch.std(z.reshape(n, -1, 3), dim=0) + 1)).view(-1, 3)",
    "z - (z.view(n, -1, 3).mean(-1) - z.view(n, -1, 3).mean(2).mean(0)).view(-1, 1)",
)
KEPT_TOKENS = (
    "z - z.view(-1, n, 3).mean(1).repeat_interleave(n, 0)",
    "(z.view(n, -1, 3) * 2).view(-1, 3)",
    "(z.view(n, -1, 3) - z.view(n, -1, 3).mean(-1, keepdim=True)).view(-1, 3)",
    "(z.view(n, -1, 3) / z.view(n, -1, 3).norm(2, dim=2, keepdim=True)).view(-1, 3)",
    "z - z.mean(1, keepdim=True)",
)
"""Bodies that compute tokens of each group by rows of different ones, and others."""


@pytest.mark.parametrize("rows", ["hf.Whole", "hf.Grouped(TWO)", 'hf.GroupedBy("n")'])
@pytest.mark.parametrize("expression", [*SPLIT_TOKENS, *KEPT_TOKENS])
def test_tokens_of_different_groups_are_no_group(tmp_path: Path, expression: str, rows: str) -> None:
    text = REPEATED.format(expression=expression, rows=rows).replace("y: hf.f32[B]", "z: hf.f32[B, R]")
    text = text.replace("y = result.y", "z = result.z").replace("Result(y=", "Result(z=")
    module = loaded(tmp_path, text.replace("class B(hf.Dim): ...", "class B(hf.Dim): ...\nclass R(hf.Dim): ..."))
    values, order = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 2, 5, 4, 3])
    made, ordered = (module.directly(module.Result(z=z.flatten(0, 1))).z.tensor for z in (values, values[order]))
    is_split = not torch.allclose(made.view(6, 2, 3)[order].flatten(0, 1), ordered)
    assert is_split is (expression in SPLIT_TOKENS)
    assert module.repeated.check(dims={module.B: 6}).codes == (("HF338",) if is_split else ())


def test_what_is_not_followed_is_not_reported(tmp_path: Path) -> None:
    for expression in ("y - len(tokens)", "y - sum(y)", "y - y[0]", "y.view(-1, 0).sum(1)"):
        module = program(tmp_path, expression)
        assert module.by_function.check(dims={module.B: 8}).codes == ()
