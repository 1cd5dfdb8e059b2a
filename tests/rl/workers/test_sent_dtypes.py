"""Weights are rounded before they are sent: they are those that the sampler would have rounded, at half the bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import SyncError
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.layouts import Parameter
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Rollout
from hfdsl.rl.models.sharding import full_state_dict
from hfdsl.rl.workers.layouts import state_parameters
from hfdsl.rl.workers.slicing import WithModel
from tests.rl.engines import fake
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES
from tests.rl.workers.test_copies import SYNC, sent
from tests.rl.workers.test_in_flight import grpo_in_flight, placed
from tests.rl.workers.test_precision import both

pytestmark = pytest.mark.usefixtures("forked_engines")

VLLM = replace(tiny.GENERATION, engine="vllm", cache_tokens=4096)
OTHER = replace(tiny.MODEL, seed=9)
NARROW = replace(OTHER, dtype="bfloat16")
ROUNDING = w.SamplerConfig(OTHER, VLLM, autocast="bfloat16")
"""An engine that computes in bfloat16, for an actor that has float32 parameters."""

CONFIGS = {
    "model": w.SamplerConfig(OTHER, tiny.GENERATION),
    "model under autocast": w.SamplerConfig(OTHER, tiny.GENERATION, autocast="bfloat16"),
    "narrow model": w.SamplerConfig(NARROW, tiny.GENERATION),
    "engine": w.SamplerConfig(OTHER, VLLM),
    "rounding engine": ROUNDING,
    "rounding engine, float16": replace(ROUNDING, autocast="float16"),
    "narrow engine": w.SamplerConfig(NARROW, VLLM),
    "engine of a narrow model": w.SamplerConfig(NARROW, VLLM, autocast="float32"),
}


class Wide(w.Sampler):
    """A sampler that states float32, so it receives that, and rounds it where it keeps it."""

    @staticmethod
    def state_parameters(config: WithModel) -> dict[str, tuple[Parameter, ...]]:
        return state_parameters(w.ReferenceConfig(OTHER))


class Understated(w.Sampler):
    """A sampler that states bfloat16, and keeps float32."""

    @staticmethod
    def state_parameters(config: WithModel) -> dict[str, tuple[Parameter, ...]]:
        return state_parameters(w.ReferenceConfig(NARROW))


class Quantized(w.Sampler):
    """A sampler that states int8, to which no sync converts."""

    @staticmethod
    def state_parameters(config: WithModel) -> dict[str, tuple[Parameter, ...]]:
        parameters = state_parameters(w.ReferenceConfig(OTHER))["policy"]
        return {"policy": tuple(replace(parameter, dtype="int8") for parameter in parameters)}


def planned(
    role: type[w.Sampler], sampler: w.SamplerConfig, actor: w.ActorConfig, mesh: hf.Mesh, *, direct: bool = True
) -> CompiledPlan:
    pools = [hf.ResourcePool([size], use_gpu=False) for size in (mesh.world_size, 1)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, actor, pool=pools[0], mesh=mesh), sampler=hf.place(role, sampler, pool=pools[1])
    )
    plan: CompiledPlan = sent.compile(deployment, SIZES, optimize=hf.Optimize(direct=direct))
    return plan


def exported(actor: w.Actor) -> dict[str, torch.Tensor]:
    """The weights of an actor whose adapter, if any, is not zero."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in actor.policy.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return full_state_dict(actor.policy)


def run(plan: CompiledPlan) -> tuple[Rollout, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The responses of a verified step, the weights that the sampler then holds, and those of the actor."""
    torch.set_num_threads(1)
    with plan.launch("local") as running:
        backend: Any = running._processes.backend
        weights = backend.of_workers("actor", exported)[0]
        with running.verifying("policy"):
            rollout: Rollout = running.step(tiny.prompts(ROWS))
        assert running.verify("policy").compared == (SYNC,)
        [held] = backend.of_workers("sampler", lambda worker: worker.held_weights("policy"))
        return rollout, {name: part.tensor.clone() for name, part in held.items()}, weights


def same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == weight.dtype and torch.equal(left[name], weight) for name, weight in right.items()
    )


@pytest.mark.parametrize("role", [w.Sampler, w.InFlightSampler])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_sampler_states_what_it_keeps(config: w.SamplerConfig, role: type[w.Sampler]) -> None:
    with fake.installed():
        held = role(config).held_weights("policy")
    stated = {each.name: (each.shape, getattr(torch, each.dtype)) for each in role.state_parameters(config)["policy"]}
    assert {name: (tuple(part.tensor.shape), part.tensor.dtype) for name, part in held.items()} == stated


@pytest.mark.nightly_besides("tp=2-exchange", "dp=2-store", "merged-exchange", "one rank-store")
@pytest.mark.parametrize("direct", [True, False], ids=["exchange", "store"])
@pytest.mark.parametrize(
    ("mesh", "lora"),
    [(hf.Mesh(), None), (hf.Mesh(dp=2), None), (hf.Mesh(tp=2), None), (hf.Mesh(), w.Lora(rank=4, alpha=12))],
    ids=["one rank", "dp=2", "tp=2", "merged"],
)
def test_an_engine_that_rounds_samples_the_same_tokens(mesh: hf.Mesh, lora: w.Lora | None, direct: bool) -> None:
    """Each weight is rounded once, to the nearest, before or after it is sent."""
    if lora is not None:
        pytest.importorskip("peft")
    actor = replace(tiny.ACTOR, lora=lora)
    with fake.installed(engine=fake.Reading):
        narrow, wide = (planned(role, ROUNDING, actor, mesh, direct=direct) for role in (w.Sampler, Wide))
        assert (
            2 * narrow.syncs[0].moved
            == wide.syncs[0].moved
            == sum(each.bytes for each in state_parameters(w.ReferenceConfig(OTHER))["policy"])
        )
        assert (2 * narrow.syncs[0].needed, 2 * narrow.syncs[0].peak) == (wide.syncs[0].needed, wide.syncs[0].peak)
        (rollout, held, weights), (expected, rounded, _) = run(narrow), run(wide)
    assert same_bits(held, rounded)
    assert same_bits(held, {name: weight.bfloat16() for name, weight in weights.items()})
    assert not any(torch.equal(held[name].float(), weight) for name, weight in weights.items() if weight.ndim > 1)
    for name in ("ids", "response_mask", "log_probs"):
        assert torch.equal(getattr(rollout, name).tensor, getattr(expected, name).tensor)


@pytest.mark.parametrize("name", ["model", "model under autocast", "engine", "engine of a narrow model"])
def test_what_is_kept_in_float32_arrives_with_all_bits(name: str) -> None:
    with fake.installed():
        _, held, weights = run(planned(w.Sampler, CONFIGS[name], tiny.ACTOR, hf.Mesh(tp=2)))
    assert same_bits(held, weights)


def test_weights_in_flight_are_rounded_before_they_are_sent() -> None:
    narrow, wide = (
        grpo_in_flight.compile(placed(w.SamplerConfig(OTHER, VLLM, autocast)), SIZES).syncs[0]
        for autocast in ("bfloat16", None)
    )
    assert 2 * narrow.moved == wide.moved


def test_a_sampler_that_states_another_dtype_than_it_keeps_is_found() -> None:
    with pytest.raises(SyncError, match="HF771: 'sampler' holds other values of"):
        run(planned(Understated, CONFIGS["model"], tiny.ACTOR, hf.Mesh()))


@pytest.mark.parametrize(
    ("role", "autocast", "codes"),
    [
        (w.Sampler, "bfloat16", ()),
        (w.Sampler, None, ("HF942",)),  # the actor computes in float32
        (Quantized, "bfloat16", ("HF733",)),
    ],
    ids=["rounded", "other log-probs", "quantized"],
)
def test_a_rounding_is_a_finding_only_where_it_is_a_mistake(
    role: type[w.Sampler], autocast: Any, codes: tuple[str, ...]
) -> None:
    actor = replace(tiny.ACTOR, training=replace(tiny.TRAINING, autocast=autocast))
    pools = [hf.ResourcePool([1], use_gpu=False) for _ in range(2)]
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, actor, pool=pools[0]),
        sampler=hf.place(role, ROUNDING, pool=pools[1]),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=pools[0]),
    )
    assert both.check(deployment, SIZES).codes == codes
