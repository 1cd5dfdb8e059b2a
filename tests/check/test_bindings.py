# mypy: disable-error-code="empty-body"
"""Combinations of sizes: what is left out shows nothing new, and what is cut off is said."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check import context
from hfdsl.check.sizes.bindings import components


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class S(hf.Dim): ...


class Rows(hf.Batch):
    left: hf.i64[B, P]
    right: hf.i64[B, R]
    other: hf.i64[B, S]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("P + R <= 9")
    def near(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("R % S == 0", "S != 3 or P > 2")
    def far(self, rows: Rows) -> None: ...


@hf.dataflow
def near(rows: Rows, role: Role) -> Rows:
    return role.near(rows)


@hf.dataflow
def far(rows: Rows, role: Role) -> Rows:
    for part in hf.minibatches(rows, 2):
        role.far(part)
    return role.near(hf.repeat(rows, 2))


deployment = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([4], use_gpu=False)))
some = st.lists(st.integers(1, 12), min_size=1, max_size=2, unique=True).map(tuple)
sizes = st.fixed_dictionaries({B: some, P: some, R: some, S: some})


@settings(max_examples=25)
@given(st.sampled_from([near, far]), sizes)
def test_sizes_work_where_every_combination_does(program: Any, dims: dict[type[hf.Dim], tuple[int, ...]]) -> None:
    every = [dict(zip(dims, numbers, strict=True)) for numbers in product(*dims.values())]
    assert program.check(deployment, dims).ok is all(program.check(deployment, sizes).ok for sizes in every)


def test_dims_that_are_not_read_together_are_not_combined() -> None:
    parts = components({B: (1, 2), P: (1, 2, 3), R: (4, 5), S: (6, 7)}, [{P, R}, {B}, {R, hf.Dim}], 100)
    assert [(part.dims, len(part.bindings)) for part in parts] == [((B,), 2), ((P, R), 6), ((S,), 2)]
    assert list(parts[1].bindings) == [{P: p, R: r} for p, r in product((1, 2, 3), (4, 5))]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 60))
def test_a_part_of_the_combinations_has_each_size(lengths: list[int], limit: int) -> None:
    dims = {dim: tuple(range(length)) for dim, length in zip((B, P, R), lengths, strict=False)}
    [part] = components(dims, [set(dims)], limit)
    total = len(list(product(*dims.values())))
    assert part.combinations == total
    assert len({tuple(binding.values()) for binding in part.bindings}) == len(part.bindings)
    assert part.bindings[0] == dict.fromkeys(dims, 0)
    if total <= limit:
        assert len(part.bindings) == total
    elif limit > sum(lengths):
        assert all({binding[dim] for binding in part.bindings} == set(numbers) for dim, numbers in dims.items())


def test_a_report_counts_the_combinations_that_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    dims: dict[Any, Any] = {B: 4, P: tuple(range(1, 9)), R: (1,), S: 1}
    assert "combinations" not in near.check(deployment, dims).facts
    monkeypatch.setattr(context, "MAX_COST", 1)
    monkeypatch.setattr(context, "MIN_COMBINATIONS", 4)
    report = near.check(deployment, dims)
    assert "of 8 combinations of sizes" in report.facts


def test_an_exhausted_budget_is_said() -> None:
    budget = context.Budget(evaluations=3)
    assert budget.spend("evaluations", 3)
    assert not budget.exhausted
    assert not budget.spend("evaluations", 1)
    assert budget.exhausted
    assert "cut off" not in near.check(deployment, {B: 4, P: 4, R: 4, S: 1}).facts


def test_many_sizes_of_many_dims_are_checked_in_bounded_work() -> None:
    numbers = tuple(range(1, 33))
    report = far.check(deployment, {B: numbers, P: numbers, R: numbers, S: numbers})
    assert {"HF310", "HF322"} <= set(report.codes)
    assert "of 32,800 combinations of sizes" in report.facts
