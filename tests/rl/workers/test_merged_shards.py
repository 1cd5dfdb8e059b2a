"""Weights with an adapter merged are exported shard by shard: the same bits, without a copy of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.protocols.boxes import Box
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ImitationMetrics, Prompts, Rollout, Sequences
from hfdsl.rl.models import adapters as adapters_module
from hfdsl.rl.models.adapters import Adapter, tile_rows
from hfdsl.rl.models.held_weights import HeldWeights
from hfdsl.rl.models.sharding import full_state_dict
from hfdsl.rl.workers import layouts
from hfdsl.runtime.weights import exchange
from hfdsl.runtime.weights.held_parts import ComputedPart
from hfdsl.runtime.weights.messages import MessageBuffers, kept_views
from tests.rl.workers import programs, tiny
from tests.rl.workers.live_bytes import LiveBytes
from tests.rl.workers.test_sharding import NO_GPU

pytest.importorskip("peft")
LORA = w.Lora(rank=4, alpha=12)
MiB = 2**20


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 150),
    st.integers(1, 90),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([2**10, 2**13, 2**25]),
    st.data(),
)
def test_a_part_of_a_shard_has_the_bits_of_the_merged_weight(
    outputs: int, inputs: int, rank: int, transposed: bool, dtype: torch.dtype, tile: int, data: st.DataObject
) -> None:
    draw = torch.Generator().manual_seed(outputs * 1000 + inputs)
    a, b = torch.randn(rank, inputs, generator=draw), torch.randn(outputs, rank, generator=draw)
    weight = torch.randn((inputs, outputs) if transposed else (outputs, inputs), generator=draw).to(dtype)
    adapter = Adapter("a", "b", scaling=3.0, transposed=transposed)
    ends: list[list[int]] = [
        sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True))) for size in weight.shape
    ]
    (first, last), (left, right) = ends
    with mock.patch.object(adapters_module, "TILE_BYTES", tile):
        merged = adapter.merged(weight, a, b)
        part = ComputedPart(
            ((first, last), (left, right)),
            dtype,
            weight.device,
            lambda start, stop: (
                (start + row, rows) for row, rows in adapter.tiles(weight[start:stop], a, b, first=start)
            ),
        )
        assert torch.equal(part.tensor, merged[first:last, left:right])
        assert all(len(rows) <= tile_rows(weight.shape[1]) for _, rows in adapter.tiles(weight, a, b))
    product = b.double() @ a.double() * 3
    exact = (weight.double() + (product.T if transposed else product)).to(dtype)
    torch.testing.assert_close(merged, exact, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)


def learned(config: w.ActorConfig) -> w.Actor:
    actor = w.Actor(config)
    actor.imitate(tiny.demonstrations(programs.ROWS))
    return actor


LARGE: dict[str, Any] = {**tiny.LLAMA, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sender_has_two_messages_and_not_the_model(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sampler on a pool of its own receives has the bits of the full merge."""
    monkeypatch.setattr(adapters_module, "TILE_BYTES", 2**16)
    model = w.ModelConfig(config=LARGE, dtype=dtype)
    training = w.TrainingConfig(w.OptimizerConfig(learning_rate=1e-2))
    config = w.ActorConfig(model, tiny.GENERATION, training, tiny.FIXED, lora=LORA)
    pools = [hf.ResourcePool([1], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, config, pool=pools[0]),
        sampler=hf.place(w.Sampler, w.SamplerConfig(model, tiny.GENERATION, batching=tiny.FIXED), pool=pools[1]),
    )
    plan = synced.compile(deployment, programs.SIZES, optimize=hf.Optimize(bucket_bytes=MiB))
    [sync] = [sync for step in plan.steps for sync in step.parts]
    actor = learned(config)
    merged = full_state_dict(actor.policy)
    size = sum(weight.nbytes for weight in merged.values())
    with LiveBytes(actor.policy.parameters()) as live:
        model_bytes = live.bytes
        [(_, exported), *_] = exchange.exported([sync], 0, actor.held_weights("policy"), "actor.weights")
        assert live.bytes == model_bytes  # nothing is computed yet
    turns = [[message] for bucket in sync.schedule.messages_to(0) for message in bucket]
    with live:
        views, buffers = kept_views(sync, "exports", exported.held, turns), MessageBuffers(turns, "cpu")
        buffers.memory.allocate()
    for (message,) in buffers.turns:
        with live:
            views.pack(message, exported.held)
        assert len(message.parts) == len(message.message.transfers)  # what is computed is in no memory of the role
        for at, part in message.parts.items():
            transfer = message.message.transfers[at]
            box = tuple(slice(*ends) for ends in transfer.box)
            assert torch.equal(part, merged[transfer.parameter.name][box])
    assert live.peak - model_bytes < MiB + 6 * 2**16 < size / 2


@hf.dataflow
def synced(
    prompts: Prompts, sequences: Sequences, actor: w.Actor, sampler: w.Sampler
) -> tuple[Rollout, ImitationMetrics]:
    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts)
    return rollout, actor.imitate(sequences)


def test_a_rank_exports_the_rows_that_it_holds() -> None:
    """As its layout says: the merged weights of one rank are whole."""
    actor = learned(replace(tiny.ACTOR, lora=LORA))
    merged, parts = full_state_dict(actor.policy), HeldWeights(actor.policy).pieces()
    assert parts.keys() == merged.keys()
    boxes: dict[str, Box] = {name: part.box for name, part in parts.items()}
    layout = layouts.training_layout(hf.Mesh(), actor.config)
    assert layout is not None
    for parameter in layouts.state_parameters(actor.config)["policy"]:
        assert (boxes[parameter.name],) == layout.boxes(parameter, hf.Mesh(), 0)
        assert torch.equal(parts[parameter.name].tensor, merged[parameter.name])


@pytest.mark.nightly
def test_merged_shards_reach_a_sampler_on_a_pool_of_its_own(ray_cluster: Any) -> None:
    """Two ranks send shards, and the digests of all weights are compared with the sampler's."""
    training = replace(tiny.TRAINING, sharding="fsdp")
    config = replace(tiny.ACTOR, training=training, lora=LORA)
    pools = [hf.ResourcePool([size], use_gpu=False) for size in (2, 1)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, config, pool=pools[0], mesh=hf.Mesh(dp=2)),
        sampler=hf.place(w.Sampler, w.SamplerConfig(replace(tiny.MODEL, seed=9), tiny.GENERATION), pool=pools[1]),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=pools[0], mesh=hf.Mesh(dp=2)),
    )
    with programs.apart.compile(deployment, programs.SIZES).launch("ray", worker_env=NO_GPU) as running:
        for step in range(3):
            with running.verifying("policy"):
                _, likeliest, own, _ = running.step(tiny.prompts(programs.ROWS, step))
            assert torch.equal(likeliest.ids.tensor, own.ids.tensor)
