# mypy: disable-error-code="empty-body"
"""What rows are balanced by, where an argument is a column itself."""

from __future__ import annotations

from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]
    count: hf.i64[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO, balance="x")
    def by_x(self, x: hf.f32[B]) -> hf.f32[B]: ...

    @register(Dispatch.DP_PROTO, balance="count")
    def by_count(self, x: hf.f32[B], count: hf.i64[B]) -> hf.f32[B]: ...


def check(body: Any) -> hf.Report:
    place = hf.place(Role, pool=hf.ResourcePool([2], use_gpu=False))
    report: hf.Report = hf.dataflow(body).check(hf.Deployment(role=place), {B: 8})
    return report


def test_a_column_weighs_rows_as_an_argument() -> None:
    def by_count(rows: Rows, role: Role) -> hf.f32[B]:
        return role.by_count(rows.x, rows.count)

    assert check(by_count).ok


def test_a_column_that_cannot_be_a_weight_is_reported_as_that_argument() -> None:
    def by_x(rows: Rows, role: Role) -> tuple[hf.f32[B], hf.f32[B]]:
        return role.by_x(rows.x), role.by_x(rows.x)

    [finding] = check(by_x).findings
    assert (finding.code, finding.message) == (
        "HF425", "'role.by_x' is balanced by argument 'x', and f32[B] does not weigh a row"
    )  # fmt: skip  # one pair
