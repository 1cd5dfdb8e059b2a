"""Exchanges that send what has changed: always the bits of all elements, and fewer bytes where few have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.plan.delta_memory import BLOCK_WORDS
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.resharding import compile_schedule
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Parameter, Replicas
from hfdsl.runtime.weights import changed_words
from tests.runtime import resharding_programs as p
from tests.runtime import test_exchange as exchanges

Mesh = hf.Mesh
Ranks = list[dict[str, torch.Tensor]]


# -- a message


@given(st.data())
def test_what_was_sent_turns_the_old_words_into_the_new_ones(data: st.DataObject) -> None:
    size = BLOCK_WORDS * data.draw(st.integers(1, 5))
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    last = draw.integers(-(2**15), 2**15, size, dtype=np.int16)
    share = data.draw(st.sampled_from([0.0, 1e-5, 0.01, 0.3, 1.0]))
    now = np.where(draw.random(size) < share, ~last, last)
    differs, content = now != last, torch.from_numpy(last.copy())
    with mock.patch.object(changed_words, "WINDOW_WORDS", data.draw(st.sampled_from([1, 2, 256])) * BLOCK_WORDS):
        by_block = changed_words.changed_by_block(torch.from_numpy(now), content)
        assert by_block.tolist() == differs.reshape(-1, BLOCK_WORDS).sum(1).tolist()
        sent = changed_words.changed_words(torch.from_numpy(now), content, int(differs.sum()))
    assert sent.nbytes == 4 * differs.sum()
    changed_words.write_changed(by_block, sent, content)
    assert np.array_equal(content.numpy(), now)


# -- exchanges


def changed(rank: Mapping[str, torch.Tensor], draw: np.random.Generator, share: float) -> dict[str, torch.Tensor]:
    """Weights of which a share of the elements is another one."""
    return {
        name: torch.where(torch.from_numpy(draw.random(part.shape) < share), part + 1, part).to(part.dtype)
        for name, part in rank.items()
    }


@given(st.data())
def test_every_rank_has_all_elements_after_every_sync(data: st.DataObject) -> None:
    """Whatever happened to either side in between: a restart, a checkpoint, or a copy that is lost."""
    drawn = data.draw(exchanges.drawn_syncs())
    sync, full = replace(drawn.sync, deltas=True), drawn.full
    draw = np.random.default_rng(data.draw(st.integers(0, 99)))
    got = [{name: torch.full_like(part, -1) for name, part in rank.items()} for rank in drawn.needed(full)]
    for _ in range(data.draw(st.integers(1, 4))):
        full = changed(full, draw, data.draw(st.sampled_from([0.0, 0.05, 0.5])))
        event = data.draw(st.sampled_from(["none", "restart", "element", "lost copy", "older copy"]))
        disturb(event, got, sync, draw)
        _, errors = exchanges.exchanged(sync, drawn.held(full), got)
        assert errors == []
        for rank, expected in enumerate(drawn.needed(full)):
            assert all(torch.equal(got[rank][name], part) for name, part in expected.items())


def disturb(event: str, got: Ranks, sync: ScheduledSync, draw: np.random.Generator) -> None:
    """Do to either side what may happen between two syncs."""
    rank = got[draw.integers(len(got))]
    sent: list[Any] = [kept for key, kept in sync.kept.items() if key[0] == "sent parts"]
    for part in rank.values():
        if event == "restart":
            part.fill_(-1)
        if event == "element" and part.numel():
            part.view(-1)[draw.integers(part.numel())] += 1
    if event == "lost copy" and sent:
        sync.kept.pop(next(key for key in sync.kept if key[0] == "sent parts"))
    if event == "older copy" and sent:
        for part in sent[draw.integers(len(sent))]._parts.values():
            part.add_(1)


@pytest.mark.parametrize("broadcast", [True, False])
def test_few_changes_take_few_bytes(broadcast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    receive = exchanges.Communicator.recv

    def counted(self: exchanges.Communicator, tensors: Sequence[torch.Tensor], rank: int, tag: int) -> Any:
        sizes.append(sum(tensor.nbytes for tensor in tensors))
        return receive(self, list(tensors), rank, tag)

    monkeypatch.setattr(exchanges.Communicator, "recv", counted)
    weights = [Parameter("w", (64, 256), "bfloat16"), Parameter("v", (256,), "float32")]
    schedule = compile_schedule(weights, Replicas(), Mesh(), Replicas(), Mesh(dp=2), bucket_bytes=16 * 2**10)
    sync = replace(exchanges.scheduled(schedule, Replicas(), Replicas(), broadcast=broadcast), deltas=True)
    full = exchanges.whole(weights)
    got = [{name: torch.zeros_like(part) for name, part in full.items()} for _ in range(2)]
    carried_bytes = []
    for place in (None, 5, None):
        if place is not None:
            full["w"].view(-1)[place] += 1
        _, errors = exchanges.exchanged(sync, [full], got)
        assert errors == []
        assert all(torch.equal(rank[name], part) for rank in got for name, part in full.items())
        carried_bytes.append(sum(sizes))
        sizes.clear()
    everything = 2 * sum(parameter.bytes for parameter in weights)
    assert carried_bytes[0] >= everything
    one_change, none = carried_bytes[1:]
    assert none < everything / 50  # a digest, a header and the counts of blocks for each message and reader
    assert one_change == none + 2 * 4  # a place and a value for both readers


@pytest.mark.parametrize("broadcast", [False, True])
def test_a_sender_that_dies_before_any_message_leaves_no_mixture_in_use(broadcast: bool) -> None:
    """And the next exchange is right, whatever had left."""
    weights = [Parameter("w", (8, 16), "float32"), Parameter("v", (24,), "float32")]
    schedule = compile_schedule(weights, Replicas(), Mesh(), Replicas(), Mesh(dp=2), bucket_bytes=256)
    first = exchanges.whole(weights)
    new = {name: part.clone() for name, part in first.items()}
    new["w"][3, 3], new["v"][20] = -5.0, -6.0
    for last in range(1, 4 * sum(map(len, schedule.messages_from(0)))):
        sync = replace(exchanges.scheduled(schedule, Replicas(), Replicas(), broadcast=broadcast), deltas=True)
        got = [{name: torch.zeros_like(part) for name, part in first.items()} for _ in range(2)]
        _, errors = exchanges.exchanged(sync, [first], got)
        assert errors == []
        _, errors, keepers = exchanges.kept(sync, [new], got, last)
        if not errors:
            assert all(torch.equal(rank[name], part) for rank in got for name, part in new.items())
            return
        for keeper in filter(exchanges.usable, keepers):
            assert all(torch.equal(keeper.weights[name], part) for name, part in new.items())
        _, errors = exchanges.exchanged(sync, [new], got)
        assert errors == []
        assert all(torch.equal(rank[name], part) for rank in got for name, part in new.items())
    pytest.fail("the last exchange had not ended before its sender was to die")


# -- runs


@pytest.mark.nightly
@pytest.mark.parametrize("engine", [p.Engine, p.InPlace])
def test_the_bits_of_a_run_are_the_same(ray_cluster: Any, engine: type[p.Engine]) -> None:
    train, roll = hf.ResourcePool([4], use_gpu=False), hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(
        actor=hf.place(p.Trainer, p.SHARDED, pool=train, mesh=Mesh(dp=2, tp=2)),
        engine=hf.place(engine, p.TENSOR, -1, pool=roll, mesh=Mesh(tp=2)),
    )
    plan = p.synced.compile(deployment, optimize=Optimize(deltas=True, bucket_bytes=64))
    with plan.launch("ray") as running:
        for _ in range(4):
            assert all(running.step())
