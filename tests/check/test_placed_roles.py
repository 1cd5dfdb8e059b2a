# mypy: disable-error-code="empty-body"
"""Roles with a place that are never called, and what is no such role."""

from __future__ import annotations

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def look(self, rows: Rows) -> Rows: ...


@hf.dataflow
def program(rows: Rows, role: Role, idle: Role) -> Rows:
    return role.look(rows)


@hf.dataflow
def misspelled(rows: Rows, role: Role, idle: Role) -> Rows:
    idle.lok(rows)  # type: ignore[attr-defined]  # the mistake
    return role.look(rows)


def placed(*roles: str, ranks: int = 1, use_gpu: bool = False) -> hf.Deployment:
    pool = hf.ResourcePool([ranks], name="pool", use_gpu=use_gpu)
    return hf.Deployment(**{role: hf.place(Role, pool=pool) for role in roles})


@pytest.mark.parametrize(
    ("ranks", "use_gpu", "where"),
    [(1, True, "1 GPU"), (2, True, "2 GPUs"), (1, False, "1 slot"), (4, False, "4 slots")],
)
def test_an_idle_role_is_reported_with_what_it_takes(ranks: int, use_gpu: bool, where: str) -> None:
    [finding] = program.check(placed("role", "idle", ranks=ranks, use_gpu=use_gpu), {B: 8}).findings
    assert finding.code == "HF509"
    assert finding.message.startswith(
        f"role 'idle' is placed on {where} of pool 'pool', but 'program' never calls it: unless"
    )
    assert [label.text for label in finding.related] == ["takes 'idle: Role'"]


def test_a_role_that_is_called_by_mistake_or_has_no_place_is_not_idle() -> None:
    assert misspelled.check(placed("role", "idle"), {B: 8}).codes == ("HF202",)
    assert "HF509" not in program.check(placed("role"), {B: 8}).codes
    assert program.check(None, {B: 8}).findings == ()
