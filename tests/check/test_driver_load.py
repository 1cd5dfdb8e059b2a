# mypy: disable-error-code="empty-body"
"""What goes through the driver is counted in whole values, and reported from 1 GiB per step."""

from __future__ import annotations

from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, i64, register
from hfdsl.check.rules.placement.driver_load import LIMIT_BYTES


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, R]
    text: hf.Obj[str, B]


class Values(hf.Batch):
    values: f32[B, R]
    note: hf.Obj[str, B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


def halves(group: Any, *args: Any, **kwargs: Any) -> Any: ...


def joined(group: Any, outputs: Any) -> Any: ...


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def values(self, prompts: Prompts) -> Values: ...

    @register({"dispatch_fn": halves, "collect_fn": joined})
    def by_hand(self, prompts: Prompts, values: Values) -> Values: ...

    @register(Dispatch.DP_PROTO)
    def learn(self, values: Values) -> Loss: ...


@hf.dataflow
def by_hand(prompts: Prompts, critic: Critic) -> Loss:
    return critic.learn(critic.by_hand(prompts, hf.repeat(critic.values(prompts), 1)))


@hf.dataflow
def returned(prompts: Prompts, critic: Critic) -> tuple[Prompts, dict[str, Any]]:
    values = critic.values(prompts)
    return prompts, {"values": values, "again": values.values, "loss": critic.learn(values)}


deployment = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([4])))
ROWS = 1 << 15
ENOUGH = LIMIT_BYTES // ROWS // 4  # the tokens of a row of f32 that make up the limit


def test_reads_of_a_pair_of_functions_are_counted_once() -> None:
    assert by_hand.compile(deployment, {B: ROWS, R: ENOUGH}).report.codes == ()
    [finding] = by_hand.compile(deployment, {B: ROWS, R: ENOUGH + 1}).report.findings
    assert (finding.code, finding.severity.value) == ("HF804", "warning")
    assert finding.message.startswith("'critic.by_hand' reads 1.0 GiB per step through the driver: its protocol is")


def test_results_are_counted_once_and_inputs_are_not() -> None:
    assert returned.compile(deployment, {B: ROWS, R: ENOUGH}).report.codes == ()
    [finding] = returned.compile(deployment, {B: ROWS, R: 2 * ENOUGH}).report.findings
    assert finding.code == "HF804"
    assert finding.message == "'returned' returns 2.0 GiB per step, all of which the driver fetches"


def test_a_number_and_a_loose_column_may_be_returned() -> None:
    class Judge(hf.Worker):
        @register(Dispatch.DP_PROTO)
        def loss(self, prompts: Prompts) -> hf.Metric[float, Literal["mean"]]: ...

        @register(Dispatch.DP_PROTO)
        def scores(self, prompts: Prompts) -> f32[B, R]: ...

    def program(prompts: Any, judge: Any) -> Any:
        return judge.loss(prompts), judge.scores(prompts)

    program.__annotations__ = {"prompts": Prompts, "judge": Judge}
    placed = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([4])))
    flow = hf.dataflow(program)
    assert flow.check(placed, {B: ROWS, R: ENOUGH}).codes == ()
    assert flow.check(placed, {B: ROWS, R: ENOUGH + 1}).codes == ("HF804",)


@pytest.mark.parametrize("dims", [{}, {B: ROWS}, {R: 8 * ENOUGH}])
def test_sizes_that_nobody_gave_are_not_guessed(dims: Any) -> None:
    assert "HF804" not in returned.compile(deployment, dims).report.codes
