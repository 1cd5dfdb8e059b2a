"""Rows balanced by their lengths: the same values in the same order, less unequal loads, and no more on its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.plan.payloads import DRIVER_PROCESS
from hfdsl.runtime.running import Running
from tests.runtime import balance_programs as p
from tests.runtime.renamed import renamed

LENGTHS = [1, 1, 1, 2, 8, 8, 7, 2, 8, 1, 1, 1, 8, 8, 8, 2]
ROWS = len(LENGTHS)
OFF = hf.Optimize(balance=False)


def prompts(rows: int = ROWS, hint: bool = False) -> p.Prompts:
    numbers = torch.arange(1, rows + 1)
    return p.Prompts(number=numbers, length=torch.tensor(LENGTHS[:rows]), hint=hf.i64(numbers) if hint else None)


def places(critics: int | None = 2) -> hf.Deployment:
    pool = hf.ResourcePool([4], use_gpu=False, name="train")
    second_pool = pool if critics is None else hf.ResourcePool([critics], use_gpu=False, name="value")
    return hf.Deployment(actor=hf.place(p.Actor, pool=pool), critic=hf.place(p.Critic, pool=second_pool))


def plain(value: Any) -> Any:
    """To the last bit, in order."""
    if isinstance(value, hf.Batch):
        return {name: plain(column) for name, column in value.__hf_columns__.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return [row.tolist() for row in value.rows] if hasattr(value, "rows") else getattr(value, "tolist", lambda: value)()


def stepped(plan: Any, backend: Any, batch: p.Prompts) -> tuple[Any, Any]:
    with plan.launch(backend, seed=5) as running:
        running.step(batch)
        return running.step(batch), running.timeline


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def launched(request: pytest.FixtureRequest) -> Iterator[Running]:
    """A launch for all tests on both backends: processes take long to start. One critic shares those of the actor."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    pool, second_pool = (
        hf.ResourcePool([size], use_gpu=False, name=name) for size, name in ((4, "train"), (2, "value"))
    )
    near, far = hf.place(p.Critic, pool=pool), hf.place(p.Critic, pool=second_pool)
    places = hf.Deployment(actor=hf.place(p.Actor, pool=pool), near=near, far=far)
    with p.given.compile(places, {p.B: ROWS}).launch(request.param, seed=5) as running:
        yield running


@pytest.mark.nightly_cases("ray")
@pytest.mark.parametrize("critic", ["near", "far"])
def test_balanced_rows_have_the_same_values_in_the_same_order(launched: Running, critic: str) -> None:
    dims: dict[type[hf.Dim], int] = {p.B: ROWS, p.R: p.RESPONSE}
    flow = renamed(p.train, f"train_{critic}", critic=critic)
    in_order, before = stepped(flow.compile(launched.plan.deployment, dims, optimize=OFF), "local", prompts())
    running = launched.also(flow.compile(launched.plan.deployment, dims))
    running.step(prompts())
    balanced, after = running.step(prompts()), running.timeline
    *rows, load = in_order
    assert plain(balanced[:3]) == plain(rows)
    assert balanced[1].row.tensor.tolist() == list(range(ROWS))
    assert (load.most.value, load.total.value) == (26, 67)
    assert (balanced[3].most.value, balanced[3].total.value) == (18, 67), "67 tokens on four ranks: the best is 17"
    assert not before.imbalances
    assert after.imbalances["actor.update"] == after.imbalances["actor.sample"] == (26 / (67 / 4), 18 / (67 / 4))


@pytest.mark.nightly_cases("ray")
def test_ragged_rows_weigh_their_lengths(launched: Running) -> None:
    flow = renamed(p.lengths, "lengths", critic="near")
    running = launched.also(flow.compile(launched.plan.deployment, {p.B: ROWS, p.R: 8}))
    for _ in range(2):
        tokens, load = running.step(prompts())
        assert [row.tolist() for row in tokens.ids.rows] == [[3 * (i + 1)] * length for i, length in enumerate(LENGTHS)]
        assert (load.most.value, load.total.value) == (18, 67)


def test_inputs_are_weighed_before_the_first_call() -> None:
    deployment = hf.Deployment(actor=hf.place(p.Actor, pool=hf.ResourcePool([1, 1, 1, 1], use_gpu=False)))
    plan = p.given.compile(deployment, {p.B: ROWS})
    output, timeline = stepped(plan, "local", prompts(hint=True))
    assert output.number.tensor.tolist() == [2 * (n + 1) for n in range(1, ROWS + 1)]
    sent = [transfer.bytes for transfer in timeline.transfers if transfer.source == DRIVER_PROCESS]
    assert sent == [4 * 3 * 8] * 4, "each rank, on a node of its own, is sent the four rows of its chunk"
    assert (
        next(interval.name for interval in timeline.intervals if interval.process == DRIVER_PROCESS)
        == "reads what rows weigh"
    )
    assert set(timeline.imbalances) == {"actor.early", "actor.hinted"}


def test_without_the_column_rows_stay_in_their_order() -> None:
    deployment = hf.Deployment(actor=hf.place(p.Actor, pool=hf.ResourcePool([4], use_gpu=False)))
    output, timeline = stepped(p.given.compile(deployment, {p.B: ROWS}), "local", prompts())
    assert output.number.tensor.tolist() == [2 * (n + 1) for n in range(1, ROWS + 1)]
    assert set(timeline.imbalances) == {"actor.early"}


def test_rows_behind_a_filter_are_balanced() -> None:
    dims: dict[type[hf.Dim], int] = {p.B: ROWS, p.R: p.RESPONSE}
    in_order, _ = stepped(p.kept.compile(places(), dims, optimize=OFF), "local", prompts())
    balanced, timeline = stepped(p.kept.compile(places(), dims), "local", prompts())
    assert plain(balanced) == plain(in_order)
    assert set(timeline.imbalances) == {"actor.sample", "critic.evaluate"}


def test_calls_with_the_same_weights_are_one_call_and_read_in_place() -> None:
    plan = p.wired.compile(places(None), {p.B: ROWS, p.R: p.RESPONSE})
    _, timeline = stepped(plan, "local", prompts())
    fused = {interval.name for interval in timeline.intervals if interval.kind == "fused"}
    assert fused == {"actor.sample + critic.evaluate + doubled + actor.update"}
    moved = [transfer for transfer in timeline.transfers if DRIVER_PROCESS not in (transfer.source, transfer.target)]
    assert {transfer.name for transfer in moved} == {"actor.generate (ids, mask, noise)"}


def test_the_driver_receives_one_number_per_row() -> None:
    plan = p.train.compile(places(), {p.B: ROWS, p.R: p.RESPONSE})
    with plan.launch() as running:
        running.step(prompts())
        record = running._runner.record
    assert record is not None
    asked = [keys for keys in record.routes.query_payloads.values() if keys]
    payloads = {q.key: q for by in record.routes.tasks.values() for task in by.values() for q in task.sends}
    columns = {cut.column for keys in asked for key in keys for cut in payloads[key].slices}
    assert columns == {"weight of mask"}


def test_a_plan_says_by_what_rows_are_balanced() -> None:
    text = str(p.train.compile(places(), {p.B: ROWS, p.R: p.RESPONSE}))
    assert "3D_PROTO, 4 chunks by rollout.mask" in text
    assert "by" not in str(p.train.compile(places(), {p.B: ROWS, p.R: p.RESPONSE}, optimize=OFF)).split("overlap")[0]


def test_eagerly_it_has_no_effect() -> None:
    tokens, load = p.lengths(prompts(), p.Critic())
    assert [len(row) for row in tokens.ids.rows] == LENGTHS
    assert load.most.value == sum(LENGTHS)
