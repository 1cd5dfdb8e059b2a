"""Roles whose bodies return what they do not declare, or numbers that are not finite."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, i64, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B, R]


class Texts(hf.Batch):
    texts: hf.Obj[str, B]
    numbers: hf.Obj[list[int], B]
    either: hf.Obj[str | None, B] | None = None
    scores: hf.Obj[dict[str, float], B] | None = None


class Checked(Rows):
    score: Annotated[f32[B], hf.finite]
    values: Annotated[f32[B, hf.Ragged[R]], hf.finite] | None = None


class Role(hf.Worker):
    """Returns what it was built with."""

    def __init__(self, result: Any = None) -> None:
        self.result = result

    @register(Dispatch.DP_PROTO)
    def texts(self, rows: Rows) -> Texts:
        return Texts(**{name: values[: len(rows)] for name, values in self.result.items()})

    @register(Dispatch.DP_PROTO)
    def names(self, rows: Rows) -> hf.Obj[str, B]:
        return hf.Obj(self.result[: len(rows)])

    @register(Dispatch.DP_PROTO)
    def loose(self, rows: Rows) -> f32[B]:
        return f32(self.result(rows.x.tensor))

    @register(Dispatch.DP_PROTO)
    def three(self, rows: Rows) -> f32[B, Literal[3]]:
        return f32(torch.zeros(len(rows), self.result))

    @register(Dispatch.DP_PROTO)
    def record(self, rows: Rows) -> Rows:
        return Rows(x=self.result(rows.x.tensor))

    @register(Dispatch.DP_PROTO)
    def scores(self, rows: Rows) -> Checked:
        x = rows.x.tensor
        ratios = [row[row > 0].log() / row[row > 0].log() for row in x]  # 0 / 0 where one is 1
        return Checked(x=x, score=1 / x[:, 0], values=f32(ratios))

    @register(Dispatch.DP_PROTO)
    def loose_finite(self, rows: Rows) -> Annotated[f32[B], hf.finite]:
        return f32(rows.x.tensor[:, 0])

    @register(Dispatch.DP_PROTO)
    def take(self, score: Annotated[f32[B], hf.finite]) -> f32[B]:
        return score

    @register(Dispatch.DP_PROTO)
    def take_optional(self, score: Annotated[f32[B], hf.finite] | None = None) -> f32[B]:
        assert score is not None
        return score

    @register(Dispatch.DP_PROTO)
    def divided(self, rows: Rows) -> f32[B]:
        return f32(1 / rows.x.tensor[:, 0])

    @register(Dispatch.DP_PROTO)
    def flags(self, rows: Rows) -> Annotated[bool_[B], hf.finite]:
        return bool_(rows.x.tensor[:, 0] > 0)

    @register(Dispatch.DP_PROTO)
    def counts(self, rows: Rows) -> Annotated[i64[B], hf.finite]:
        return i64(rows.x.tensor[:, 0].long())


@hf.dataflow
def texts(rows: Rows, role: Role) -> Texts:
    return role.texts(rows)


@hf.dataflow
def names(rows: Rows, role: Role) -> hf.Obj[str, B]:
    return role.names(rows)


@hf.dataflow
def loose(rows: Rows, role: Role) -> f32[B]:
    return role.loose(rows)


@hf.dataflow
def three(rows: Rows, role: Role) -> f32[B, Literal[3]]:
    return role.three(rows)


@hf.dataflow
def record(rows: Rows, role: Role) -> Rows:
    return role.record(rows)


@hf.dataflow
def scores(rows: Rows, role: Role) -> Checked:
    return role.scores(rows)


@hf.dataflow
def loose_finite(rows: Rows, role: Role) -> f32[B]:
    return role.loose_finite(rows)


@hf.dataflow
def taken(rows: Rows, role: Role) -> f32[B]:
    return role.take(role.divided(rows))


@hf.dataflow
def taken_optional(rows: Rows, role: Role) -> f32[B]:
    return role.take_optional(role.divided(rows))


@hf.dataflow
def whole_numbers(rows: Rows, role: Role) -> tuple[bool_[B], i64[B]]:
    return role.flags(rows), role.counts(rows)
