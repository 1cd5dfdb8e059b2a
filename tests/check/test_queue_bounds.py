"""What a report proves of a queue, against a game of tokens that is played until nobody can move."""

from __future__ import annotations

import json
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.queueing import DISCIPLINES, Late
from tests.nightly import examples
from tests.runtime.queue_search import never_stops


class B(hf.Dim): ...


class R(hf.Dim): ...


class Read(hf.Batch):
    ids: hf.i64[B, R]
    loss_mask: hf.f32[B, R]


class Rollout(Read):
    unread: hf.f32[B, R]


class Done(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Engine(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rollout: Rollout) -> Rollout:
        return rollout


class Kept(hf.Batch):
    keep: hf.bool_[B]


class Trainer(Engine):
    @register(Dispatch.DP_PROTO)
    def judge(self, rollout: Rollout) -> Kept:
        return Kept(keep=rollout.ids.tensor[:, 0] > 0)

    @register(Dispatch.DP_PROTO)
    @hf.corrects("policy", lag=100)
    @hf.writes("policy")
    def update(self, rollout: Read) -> Done:
        return Done(loss=0.0)


def report(put_in: int, rows: int | None, group: int, lag: int, late: Late | None) -> hf.Report:
    @hf.dataflow
    def flow(rollout: Rollout, role: Trainer) -> Done:
        return role.update(hf.queue(role.generate(rollout), rows=rows, group=group, lag=lag, late=late))

    place = hf.place(Trainer, pool=hf.ResourcePool([1], use_gpu=False))
    return flow.check(hf.Deployment(role=place), dims={B: put_in, R: 100})


def filtered_report(put_in: int, rows: int | None, group: int, lag: int, late: Late, *, cut: bool = False) -> hf.Report:
    @hf.dataflow
    def flow(rollout: Rollout, role: Trainer) -> Done:
        sampled = role.generate(rollout)
        kept = hf.filter(sampled, role.judge(sampled).keep, group=1 if cut else group)
        return role.update(hf.queue(kept, rows=rows, group=group, lag=lag, late=late))

    place = hf.place(Trainer, pool=hf.ResourcePool([1], use_gpu=False))
    return flow.check(hf.Deployment(role=place), dims={B: put_in, R: 100})


class Counting(Trainer):
    @register(Dispatch.DP_PROTO, rows=hf.Grouped(2))
    @hf.corrects("policy", lag=100)
    @hf.writes("policy")
    def update(self, rollout: Read) -> Done:
        return Done(loss=float(len(rollout)))


@pytest.mark.parametrize("late", DISCIPLINES)
def test_batches_behind_a_filter_are_full_unless_steps_are_taken_in_order(late: Late) -> None:
    @hf.dataflow
    def flow(rollout: Rollout, engine: Trainer, role: Counting) -> Done:
        sampled = engine.generate(rollout)
        kept = hf.filter(sampled, engine.judge(sampled).keep, group=2)
        return role.update(hf.queue(kept, group=2, lag=2, late=late))

    pools = [hf.ResourcePool([2], use_gpu=False, name=name) for name in ("engines", "trained")]
    deployment = hf.Deployment(engine=hf.place(Trainer, pool=pools[0]), role=hf.place(Counting, pool=pools[1]))
    dims = {B: 8, R: 1}
    codes = flow.check(deployment, dims).codes
    if late == "wait":
        assert "HF321" in codes
        return
    assert "HF321" not in codes
    ids = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])[:, None]
    batch = Rollout(ids=ids, loss_mask=torch.ones(8, 1), unread=torch.ones(8, 1))
    with flow.compile(deployment, dims).launch("local") as running:
        assert [done.loss.value for done in running.stream([batch] * 8)] == [4.0] * 6  # 48 rows, 4 on each of 2 ranks


@pytest.mark.parametrize("late", DISCIPLINES)
def test_batches_of_a_dynamic_queue_are_not_what_a_filter_keeps(late: Late) -> None:
    @hf.dataflow
    def flow(rollout: Rollout, role: Trainer) -> Done:
        taken = hf.queue(role.generate(rollout), lag=1, late="drop")
        kept = hf.filter(taken, role.judge(taken).keep)
        return role.update(hf.queue(kept, lag=1, late=late))

    deployment = hf.Deployment(role=hf.place(Trainer, pool=hf.ResourcePool([1], use_gpu=False)))
    checked = flow.check(deployment, {B: 4, R: 1})
    assert checked.codes == (("HF765",) if late == "wait" else ())
    if checked.ok:
        flow.compile(deployment, {B: 4, R: 1})
    else:
        assert "has batches of what a filter keeps of one step" in checked.errors[0].message


def plays_on(put_in: int, rows: int, places: int) -> bool:
    """Whether a producer and a reader of a queue with so many places return to where they began."""
    held = 0
    for _ in range(put_in * rows):
        if held + put_in <= places:
            held += put_in
        elif held >= rows:
            held -= rows
        else:
            return False
    return True


@settings(max_examples=examples(400), deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 6), st.sampled_from(["wait", "mask"]))
def test_a_queue_is_refused_where_its_stages_get_stuck(put_in: int, rows: int, lag: int, late: Late) -> None:
    checked = report(put_in, rows, 1, lag, late)
    lives = plays_on(put_in, rows, (lag + 1) * rows)
    assert checked.codes == (() if lives else ("HF745",))
    if lives:
        [queue] = checked.queues
        assert queue.places == (lag + 1) * rows
        least = next(places for places in range(1, put_in + rows + 1) if plays_on(put_in, rows, places))
        assert queue.least_places == least


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.sampled_from(["drop", "refill"]))
def test_a_queue_is_refused_where_groups_that_leave_stop_it(
    put_in: int, batch: int, group: int, lag: int, late: Late
) -> None:
    """One group at a time leaves, wherever it is late; the number of rows of a group changes nothing."""
    checked = report(put_in * group, batch * group, group, lag, late)
    assert checked.codes == (() if never_stops(lag, batch, put_in) else ("HF745",))


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.sampled_from(["drop", "refill"]))
def test_a_queue_is_refused_where_a_filter_stops_it(put_in: int, batch: int, group: int, lag: int, late: Late) -> None:
    """A batch without a size of its own has as many groups as a step puts in."""
    batch = batch if late == "refill" else put_in
    checked = filtered_report(put_in * group, batch * group if late == "refill" else None, group, lag, late)
    assert checked.codes == (() if never_stops(lag, batch, put_in, loses=True) else ("HF745",))
    if checked.ok:
        [queue] = checked.queues
        assert (queue.places, queue.least_places) == ((lag + 1) * batch * group, (put_in + batch - 1) * group)


def test_a_filter_must_not_cut_groups() -> None:
    text = "a step dispatches kept1 rows, which are not whole groups of 4: no batch can be filled"
    assert text in str(filtered_report(16, 8, 4, 2, "refill", cut=True))


@pytest.mark.parametrize("late", DISCIPLINES)
def test_the_report_has_bounds_and_memory(late: Late) -> None:
    checked = report(512, None, 8, 4, late)
    [queue] = checked.queues
    assert (queue.lag, queue.worst, queue.late, queue.group) == (4, 4, late, 8)
    assert queue.states == (("role.policy", 4),)
    assert (queue.places, queue.least_places) == (5 * 512, 512)
    assert queue.bytes == 5 * 512 * 100 * (8 + 4)  # ids and the mask; nobody reads the other column
    summary = json.loads(checked.json().splitlines()[-1])["summary"]
    assert summary["queues"][0]["places"] == 2560
    assert str(queue) == (
        f"lag=4 {late}, groups of 8: at most 4 updates late; 2560 rows in flight, 2.9 MiB; at least 512 needed"
    )


def test_queues_in_a_row_are_as_late_as_their_sum() -> None:
    @hf.dataflow
    def flow(rollout: Rollout, role: Trainer) -> Done:
        first = hf.queue(role.generate(rollout), lag=1, late="refill")
        return role.update(hf.queue(first, lag=2, late="wait"))

    place = hf.place(Trainer, pool=hf.ResourcePool([1], use_gpu=False))
    first, second = flow.check(hf.Deployment(role=place), dims={B: 8, R: 4}).queues
    assert (first.worst, second.worst) == (1, 3)
    assert (first.states, second.states) == ((("role.policy", 1),), (("role.policy", 3),))
    assert str(first).startswith("lag=1 refill: at most 1 update late; ")
    assert str(second).startswith("lag=2 wait: at most 3 updates late; ")


def test_queues_in_a_row_have_the_same_groups() -> None:
    @hf.dataflow
    def flow(rollout: Rollout, role: Trainer) -> Done:
        first = hf.queue(role.generate(rollout), group=4, lag=1, late="refill")
        return role.update(hf.queue(first, group=2, lag=2, late="wait"))

    place = hf.place(Trainer, pool=hf.ResourcePool([1], use_gpu=False))
    [finding] = flow.check(hf.Deployment(role=place), dims={B: 8, R: 4}).errors
    assert finding.code == "HF765"
    assert "gets 4 groups from a stage that takes 2 from the queue in front of it" in finding.message


def test_a_program_without_queues_has_no_summary() -> None:
    @hf.dataflow
    def flow(rollout: Rollout, role: Trainer) -> Done:
        return role.update(role.generate(rollout))

    place = hf.place(Trainer, pool=hf.ResourcePool([1], use_gpu=False))
    checked = flow.check(hf.Deployment(role=place), dims={B: 8, R: 4})
    assert (checked.codes, checked.queues, checked.json()) == ((), (), "")
