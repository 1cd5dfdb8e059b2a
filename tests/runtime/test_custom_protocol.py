"""Custom protocols: what their functions return has the entries and the rows that its readers count on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.errors import WiringError


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Total(hf.Batch):
    sum: hf.Metric[float, Literal["sum"]]


ROWS = 6
COLLECTED = ROWS
"""How many rows the collect function returns; tests change it."""


def to_all(group: Any, rows: Rows) -> tuple[tuple[list[Rows]], dict[str, Any]]:
    return ([rows] * group.world_size,), {}


def cut(group: Any, outputs: Sequence[Rows]) -> Rows:
    rows = torch.cat([output.x.tensor for output in outputs])
    return Rows(x=rows[:COLLECTED])


class Scores(hf.Worker):
    @register({"dispatch_fn": to_all, "collect_fn": cut})
    def score(self, rows: Rows) -> Rows:
        return rows

    @register({"dispatch_fn": to_all, "collect_fn": lambda group, outputs: outputs[0]})
    def total(self, rows: Rows) -> Total:
        return Total(sum=float(rows.x.tensor.sum()))


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def total(self, rows: Rows) -> Total:
        return Total(sum=float(rows.x.tensor.sum()))


@hf.dataflow
def returned(rows: Rows, scores: Scores) -> Rows:
    return scores.score(rows)


@hf.dataflow
def read(rows: Rows, scores: Scores, reader: Reader) -> Total:
    return reader.total(scores.score(rows))


@hf.dataflow
def totals(rows: Rows, scores: Scores) -> Total:
    return scores.total(rows)


def step(flow: Any, **roles: type[hf.Worker]) -> Any:
    pool = hf.ResourcePool([2], use_gpu=False)
    placed = hf.Deployment(**{name: hf.place(role, pool=pool) for name, role in roles.items()})
    with flow.compile(placed, {B: ROWS}).launch() as running:
        return running.step(Rows(x=torch.ones(ROWS)))


@given(st.integers(0, 2 * ROWS))
def test_a_collected_value_has_the_declared_rows_or_is_refused(rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.COLLECTED", rows)
        if rows == ROWS:
            assert step(returned, scores=Scores).x.tensor.tolist() == [1.0] * ROWS
            assert step(read, scores=Scores, reader=Reader).sum.value == float(ROWS)
            return
        shown = "1 row" if rows == 1 else f"{rows} rows"
        for flow, roles in ((returned, {"scores": Scores}), (read, {"scores": Scores, "reader": Reader})):
            with pytest.raises(WiringError) as refused:
                step(flow, **roles)
            assert str(refused.value).startswith(
                f"HF805: the collect function of 'scores.score' returned {shown} of Rows, where the program has {ROWS}"
            )


def test_a_metric_has_no_rows() -> None:
    assert step(totals, scores=Scores).sum.value == float(ROWS)
