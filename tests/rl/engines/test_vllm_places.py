"""Weights written into vLLM's model, beside those that it loads itself and beside the plain engine.

The CPU's own kernels read copies of weights, so the engine that is written has none of these (``UnpackedEngine``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.engines import handle as handles
from hfdsl.rl.engines import process
from hfdsl.runtime.digests import digests
from hfdsl.runtime.weights.held_parts import HeldPart
from tests.rl.engines import test_vllm as vllm
from tests.rl.engines.syncs import Syncs, random_weights
from tests.rl.workers import programs, tiny

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make vllm installs it"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("forked_vllm_engines"),
]


@contextmanager
def engine_class(name: str) -> Iterator[None]:
    """Within this, ``"vllm"`` is a class of ``unpacked``, which reads weights in the trainer's memory if it copies."""
    engines = {"vllm": f"tests.rl.engines.unpacked:{name}"}
    with mock.patch.object(handles, "ENGINES", engines), mock.patch.object(process, "LENT_FROM", {"cpu"}):
        yield


def copies(policy: w.Actor) -> bool:
    handle = policy.sampling.external
    assert handle is not None
    return handle.process._copies


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
        {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    ],
    ids=["llama-biases", "qwen2-tied", "qwen3", "mistral"],
)
def test_written_weights_sample_as_loaded_ones_and_as_the_policy(change: dict[str, Any]) -> None:
    """Versions 1 and 3 are written, 2 is loaded by vLLM, and 4 is written over it, from the same weights."""
    model = replace(vllm.MODEL, config={**vllm.LLAMA, **change})
    with engine_class("UnpackedEngine"):
        ours, theirs = vllm.actor("vllm", model), vllm.actor("plain", model)
        assert copies(ours)
        handle = ours.sampling.external
        assert handle is not None
        results = []
        for seed, reloads in ((1, False), (2, True), (3, False), (2, False)):
            vllm.strengthened(ours, seed)
            vllm.strengthened(theirs, seed)
            handle.process._call("reload", reloads)
            results.append(vllm.rollout(ours, greedy=True))
            assert torch.equal(results[-1].ids.tensor, vllm.rollout(theirs, greedy=True).ids.tensor)
            assert vllm.differences(results[-1]).max() < vllm.TOLERANCE
        _, loaded, changed, written = results
    for column in ("ids", "engine_log_probs"):
        assert torch.equal(getattr(loaded, column).tensor, getattr(written, column).tensor)
    assert not torch.equal(changed.ids.tensor, written.ids.tensor)


def test_an_update_of_lent_weights_reaches_the_engine_with_its_version() -> None:
    """The trainer writes them in place, frees them in an offload, and has them elsewhere after it."""
    with engine_class("UnpackedEngine"):
        role = vllm.actor("vllm")
        for _ in range(2):
            result = vllm.rollout(role)
            assert vllm.differences(result).max() < vllm.TOLERANCE
            role.update(vllm.experience_of(result), loss=programs.ALONE)
        handle = role.sampling.external
        assert handle is not None
        assert handle.process._lent
        role.offload("weights")
        assert not handle.process._lent
        role.onload("weights")
        assert vllm.differences(vllm.rollout(role)).max() < vllm.TOLERANCE


@vllm.needs_peft
def test_base_weights_below_an_adapter_are_written() -> None:
    with engine_class("UnpackedEngine"):
        role = vllm.adapted("apart", vllm.WHOLE)
        assert copies(role)
        for _ in range(2):
            role.update(vllm.experience_of(vllm.rollout(role)), loss=programs.ALONE)
            with torch.no_grad():
                for parameter in role.policy.parameters():
                    if not parameter.requires_grad:
                        parameter.mul_(1.1)
            assert vllm.differences(vllm.rollout(role)).max() < vllm.TOLERANCE


def test_the_parts_of_an_engine_are_written_with_key_heads_that_they_share() -> None:
    """One key-value head on two parts, and a vocabulary whose padding is all in the second."""
    config = {**vllm.LLAMA, "num_key_value_heads": 1, "attention_bias": True}
    model = replace(vllm.MODEL, config=config)
    results = []
    for engine, mesh in (("plain", hf.Mesh()), ("vllm", hf.Mesh(tp=2))):
        with engine_class("UnpackedEngine"):
            place = hf.place(
                w.Sampler,
                w.SamplerConfig(model, vllm.generation(engine)),
                pool=hf.ResourcePool([mesh.world_size], use_gpu=False),
                mesh=mesh,
            )
            with vllm.sampled.compile(hf.Deployment(sampler=place), vllm.SIZES).launch("local") as running:
                results.append(running.step(tiny.prompts(8))[1])  # greedy: the two draw differently
    theirs, ours = results
    assert torch.equal(ours.ids.tensor, theirs.ids.tensor)
    assert (ours.log_probs.tensor - theirs.log_probs.tensor).abs().max() < vllm.TOLERANCE


@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_arrive_in_its_memory_are_what_it_samples_with(tied: bool) -> None:
    """Beside a sampler with the plain engine that loads the same ones; the prompts are those in its prefix cache."""
    model = replace(vllm.MODEL, config={**vllm.LLAMA, "tie_word_embeddings": tied})
    configs = [w.SamplerConfig(model, vllm.generation(engine), batching=tiny.FIXED) for engine in ("vllm", "plain")]
    with engine_class("UnpackedEngine"):
        sampler, plain = (w.Sampler(config) for config in configs)
        parameters = w.Sampler.state_parameters(configs[0])["policy"]
        syncs = Syncs(sampler, parameters)
        for version in (1, 2, 3, 4):
            weights = random_weights(parameters, version, scale=0.2)
            if tied:
                weights["model.lm_head.weight"] = weights["model.model.embed_tokens.weight"]
            taken = syncs.sync(weights)
            assert syncs.is_direct == (version > 1)
            assert set(taken or ()) == set(digests((name, HeldPart(weight)) for name, weight in weights.items()))
            if version == 4:
                syncs.kill()
            plain.load(weights)
            ours, theirs = (Syncs(each, parameters).rollout(vllm.prompts()) for each in (sampler, plain))
            assert torch.equal(ours.ids.tensor, theirs.ids.tensor)
            assert (ours.log_probs.tensor - theirs.log_probs.tensor).abs().max() < vllm.TOLERANCE


@pytest.mark.parametrize("name", ["VllmEngine", "KeptEngine"])
def test_kernels_that_read_copies_are_found(name: str) -> None:
    """Also where every parameter is there with the right shape; vLLM then loads weights itself."""
    with engine_class(name):
        role, plain = vllm.actor("vllm"), vllm.actor("plain")
        assert not copies(role)
        for version in (1, 2):
            vllm.strengthened(role, version)
            vllm.strengthened(plain, version)
            assert torch.equal(vllm.rollout(role, greedy=True).ids.tensor, vllm.rollout(plain, greedy=True).ids.tensor)
