"""The switches of a plan: a value that none of them has is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import ResourceError, SizeError, WiringError


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Judge(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def judge(self, rows: Rows) -> Rows:
        return rows


@hf.dataflow
def judged(rows: Rows, judge: Judge) -> Rows:
    return judge.judge(rows)


DEPLOYMENT = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([2], use_gpu=False)))


@pytest.mark.parametrize("value", [0, -1, 1.5, "256MiB", None, True, 2**63])
def test_a_bucket_has_a_whole_number_of_bytes(value: Any) -> None:
    with pytest.raises(SizeError, match="HF304: Optimize: bucket_bytes= takes a whole number of at "):
        hf.Optimize(bucket_bytes=value)


@pytest.mark.parametrize("value", [0, 1, "no", [False]])
@pytest.mark.parametrize("switch", ["fusion", "deltas", "relay"])
def test_a_switch_is_on_or_off(switch: str, value: Any) -> None:
    with pytest.raises(WiringError, match=f"HF206: Optimize: {switch}= is True or False, got "):
        hf.Optimize(**{switch: value})


def test_only_the_relay_may_be_chosen_by_the_plan() -> None:
    assert hf.Optimize(relay=None).relay is None
    with pytest.raises(WiringError, match="HF206: Optimize: fusion= is True or False, got None"):
        hf.Optimize(fusion=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimize", [3, "fast", {"fusion": False}, False])
def test_a_plan_takes_nothing_else_for_its_switches(optimize: Any) -> None:
    with pytest.raises(WiringError, match=r"HF206: compile: optimize= takes an hf\.Optimize, got "):
        judged.compile(DEPLOYMENT, {B: 4}, optimize=optimize)


@pytest.mark.parametrize("retries", [3, "node", {"attempts": 3}])
def test_a_launch_takes_nothing_else_for_its_retries(retries: Any) -> None:
    with pytest.raises(ResourceError, match=r"HF841: launch\(retries=\) takes an hf.Retries, got "):
        judged.compile(DEPLOYMENT, {B: 4}).launch("local", retries=retries)
