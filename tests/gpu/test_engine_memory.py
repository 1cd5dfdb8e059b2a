"""Weights that arrive in vLLM's memory on a GPU, beside those that go through the host: tokens and digests.

The whole path runs on a CPU in ``tests/rl/engines/test_shared_weights.py``, and with vLLM in ``test_vllm_places.py``.
Here are CUDA IPC, the copy on a stream of its own, what is left of a dead engine's memory, and NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R
from hfdsl.runtime.digests import Digests, digests
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights.held_parts import HeldPart
from tests.gpu.engine_programs import Changing, ThroughHost, Watched, killed, synced
from tests.rl.engines.syncs import Syncs, random_weights
from tests.rl.workers import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.timeout(900),
]
GPUS = torch.cuda.device_count()
ROWS, WIDTH, RESPONSE = 8, 64, 16
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: WIDTH, R: RESPONSE}

LLAMA = {
    **tiny.LLAMA,
    "vocab_size": 8192,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 512,
}
"""About 0.8 GB in bfloat16, of weights that travel by themselves; a copy to the host takes some 20 ms."""

MODEL = w.ModelConfig(config=LLAMA, dtype="bfloat16", end_tokens=(tiny.END,))
GENERATION = w.GenerationConfig(RESPONSE, engine="vllm", cache_tokens=4096, engine_deadline=600)
SAMPLER = w.SamplerConfig(MODEL, GENERATION)
PARAMETERS = w.Sampler.state_parameters(SAMPLER)["policy"]


def prompts() -> Prompts:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, LLAMA["vocab_size"], (ROWS, WIDTH), generator=draw)
    return Prompts(ids=ids, mask=torch.ones_like(ids, dtype=torch.bool), task=[{}] * ROWS)


def weights_of(version: int) -> dict[str, torch.Tensor]:
    weights = random_weights(PARAMETERS, version, scale=0.03)
    return {name: weight.bfloat16().cuda() for name, weight in weights.items()}


def digests_of(weights: dict[str, torch.Tensor]) -> set[Any]:
    return set(digests((name, HeldPart(weight)) for name, weight in weights.items()))


# -- on one GPU, in this process


@pytest.fixture(scope="module")
def syncs() -> Iterator[Syncs]:
    syncs = Syncs(w.Sampler(SAMPLER), PARAMETERS, bucket_bytes=64 * 2**20)
    yield syncs
    syncs.copy.engine.process.close()


def ready(syncs: Syncs) -> None:
    """Have the engine load whole weights, so that the next sync may write its memory."""
    syncs.sync(weights_of(1))
    syncs.rollout(prompts())


def test_tokens_and_digests_are_those_of_weights_that_go_through_the_host(syncs: Syncs) -> None:
    """Bit for bit, also with prompts whose keys and values the engine had kept."""
    ready(syncs)
    for version in (2, 3):
        weights = weights_of(version)
        taken: Digests | None = syncs.sync(weights)
        assert syncs.is_direct
        assert all(part.tensor.is_cuda for part in (syncs.copy.shared.newest or {}).values())
        assert set(taken or ()) == digests_of(weights)
        direct = syncs.rollout(prompts())
        assert all(torch.equal(syncs.sampler.state()[name], weight.cpu()) for name, weight in weights.items())
        syncs.sampler.load_state({name: weight.cpu() for name, weight in weights.items()})
        assert not syncs.is_direct
        loaded = syncs.rollout(prompts())
        assert torch.equal(direct.ids.tensor, loaded.ids.tensor)
        assert torch.equal(direct.log_probs.tensor, loaded.log_probs.tensor)


def test_a_sync_waits_for_the_copy_of_the_one_before(syncs: Syncs) -> None:
    """Two without anything in between; the host has each of them whole, and none of the next."""
    ready(syncs)
    for version in (4, 5, 6):
        syncs.sync(weights_of(version))
        assert syncs.is_direct
    finish = syncs.copy.shared._finish_copy
    assert finish is not None
    finish()
    host = {name: weight.cuda() for name, weight in syncs.copy.weights.items()}
    assert digests_of(host) == digests_of(weights_of(6))


def test_what_a_killed_engine_had_is_saved_and_its_memory_is_freed(syncs: Syncs) -> None:
    """It is killed while its weights are on their way to the host; the next engine needs the room."""
    ready(syncs)
    for version in (7, 8):
        weights = weights_of(version)
        size = sum(weight.nbytes for weight in weights.values())
        syncs.sync(weights)
        assert syncs.is_direct
        syncs.kill()
        free = torch.cuda.mem_get_info()[0]
        state = {name: weight.cuda() for name, weight in syncs.sampler.state().items()}
        assert syncs.copy.shared._memory is None
        assert digests_of(state) == digests_of(weights)
        del state
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info()[0] - free > size / 2
        killed_then = syncs.rollout(prompts())
        syncs.sampler.load_state({name: weight.cpu() for name, weight in weights.items()})
        assert torch.equal(killed_then.ids.tensor, syncs.rollout(prompts()).ids.tensor)


def test_an_offloaded_engine_frees_the_gpu(syncs: Syncs) -> None:
    """The first time it ends, since it cannot sleep; the next one sleeps, and its weights go through the host."""
    ready(syncs)
    syncs.sync(weights_of(9))
    expected, process = syncs.rollout(prompts()), syncs.copy.engine.process
    free = torch.cuda.mem_get_info()[0]
    syncs.sampler.offload("weights")
    assert not process.alive
    assert torch.cuda.mem_get_info()[0] - free > sum(weight.nbytes for weight in weights_of(9).values())
    assert torch.equal(syncs.rollout(prompts()).ids.tensor, expected.ids.tensor)
    process = syncs.copy.engine.process
    syncs.sync(weights_of(10))
    assert not syncs.is_direct
    syncs.sampler.offload("weights")
    assert process.alive
    syncs.rollout(prompts())
    assert syncs.copy.engine.process is process


# -- on two GPUs, over NCCL


def steps(dataflow: Any, role: type[Watched], count: int) -> tuple[list[torch.Tensor], list[bool]]:
    """Verified steps: the tokens of each, and whether its weights had arrived in the engine's memory alone."""
    actor = w.ActorConfig(MODEL, replace(GENERATION, engine="plain"), tiny.TRAINING)
    deployment = hf.Deployment(
        actor=hf.place(Changing, actor, pool=hf.ResourcePool([1])),
        sampler=hf.place(role, SAMPLER, pool=hf.ResourcePool([1])),
    )
    tokens, direct = list[torch.Tensor](), list[bool]()
    with dataflow.compile(deployment, SIZES).launch("ray", timeout=600, deadline=600) as running:
        for _ in range(count):
            with running.verifying("policy"):
                rollout, is_direct, wrong, _ = running.step(prompts())
            assert list(wrong) == [0]
            tokens.append(rollout.ids.tensor.cpu())
            direct += is_direct
        # The actor has changed since: what is compared is the export of the last sync.
        assert running.verify("policy").compared == (VerifiedSync("policy", "actor", "sampler"),)
    return tokens, direct


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_syncs_between_two_gpus_sample_as_those_through_the_host(gpu_cluster: Any) -> None:
    host, through_host = steps(synced, ThroughHost, 3)
    tokens, direct = steps(synced, Watched, 3)
    assert (through_host, direct) == ([False] * 3, [False, True, True])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(tokens, host, strict=True))
    assert not torch.equal(tokens[1], tokens[2])


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_an_engine_killed_after_a_sync_between_two_gpus_loses_nothing(gpu_cluster: Any) -> None:
    """The first step's weights were on the host; those of the second had arrived in the memory of the engine alone."""
    host, _ = steps(synced, ThroughHost, 2)
    tokens, alone = steps(killed, Watched, 2)
    assert alone == [False, True]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(tokens, host, strict=True))
