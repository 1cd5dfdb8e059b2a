"""What a check says of engines and samplers: their model, their temperature, and the room on their GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.check.findings import Finding
from hfdsl.rl import workers as w
from hfdsl.rl.training.algorithms import Mutual
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import from_config
from hfdsl.rl.training.placement import DeploymentConfig, PlacementConfig, PoolConfig
from tests.rl.training.test_algorithms import grpo

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GIB = 2**30
WEIGHTS = 2 * 32_000 * 2048 + 24 * (3 * 2048**2 + 3 * 2048 * 5632 + 2 * 2048) + 2048
TOKEN = 2 * 24 * 8 * 128 * 2
"""Bytes of a token's keys and values in bfloat16."""


def model(**changes: Any) -> w.ModelConfig:
    return w.ModelConfig(config={**LLAMA, **changes})


def generation(engine: Any = "vllm", **changes: Any) -> w.GenerationConfig:
    return w.GenerationConfig(4, engine=engine, **changes)


def actor(**changes: Any) -> w.ActorConfig:
    values: dict[str, Any] = {"model": model(), "generation": generation("plain")}
    return w.ActorConfig(
        **values | changes, training=w.TrainingConfig(autocast="bfloat16"), batching=w.BatchingConfig(tokens=1024)
    )


def sampler(model_config: w.ModelConfig | None = None, **changes: Any) -> w.SamplerConfig:
    return w.SamplerConfig(model_config or model(), generation(**changes), "bfloat16")


def places(engines: bool = False, **changes: Any) -> DeploymentConfig:
    pools = {"all": PoolConfig((2,)), **({"engines": PoolConfig((2,))} if engines else {})}
    roles = {"sampler": PlacementConfig("engines")} if engines else {}
    return DeploymentConfig(pools, roles, default=PlacementConfig("all", **changes))


def found(config: Any, gib: float = 80, codes: tuple[str, ...] = ("HF712", "HF959", "HF960")) -> list[Finding]:
    cluster = hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=gib, cpus=96))
    reports = ConfigCheck(cluster, elsewhere=True).reports(from_config(config))
    return [finding for report in reports for finding in report if finding.code in codes]


@pytest.mark.parametrize(
    "change", [{"vocab_size": 64}, {"rope_theta": 5e5}, {"eos_token_id": 2}, {"model_type": "mistral"}], ids=str
)
def test_the_model_of_a_sampler_is_the_actors(change: dict[str, Any]) -> None:
    ours = actor(model=model(rope_theta=1e4))
    config = grpo(actor=ours, sampler=sampler(model(rope_theta=1e4)), deployment=places(engines=True))
    assert found(config) == []
    [finding] = found(replace(config, sampler=sampler(model(**{"rope_theta": 1e4, **change}))))
    [(name, value)] = change.items()
    assert finding.code == "HF960"
    assert f"{name} = {value!r}" in finding.message


def test_what_may_differ_is_not_reported() -> None:
    ends = w.ModelConfig(config={**LLAMA, "eos_token_id": 2}, end_tokens=(1, 2))
    for other in (model(eos_token_id=[1]), model(max_position_embeddings=99), ends, replace(model(), seed=5)):
        assert found(grpo(actor=actor(), sampler=sampler(other), deployment=places(engines=True))) == []
    assert found(grpo(actor=actor(), sampler=sampler(w.ModelConfig(path="elsewhere")), deployment=places(True))) == []


def test_temperatures_of_samplers() -> None:
    [finding] = found(grpo(actor=actor(), sampler=sampler(temperature=0.7), deployment=places(engines=True)))
    assert finding.code == "HF712"
    roles: dict[str, Any] = {"left": actor(), "right": actor(generation=generation("plain", temperature=0.7))}
    base = grpo()
    common: dict[str, Any] = {
        name: getattr(base, name) for name in ("roles", "dims", "data", "steps", "output", "reward")
    }
    mutual = Mutual(**common, **roles, deployment=places(), right_sampler=sampler(temperature=0.7), left_sampler=None)
    assert found(mutual) == []
    [finding] = found(replace(mutual, left_sampler=sampler(temperature=0.7)))
    assert (finding.code, "'left_sampler'" in finding.message) == ("HF712", True)


def test_an_engine_beside_its_trainer_has_to_fit() -> None:
    """The actor keeps 12 bytes of a weight, the reference 4, and the engine has 2, and its cache."""
    config = grpo(actor=actor(generation=generation()), reference=w.ReferenceConfig(model()), deployment=places())
    needed = (WEIGHTS * 18 + (131_072 + 512) * TOKEN) / GIB
    assert found(config, needed + 0.1) == []
    [finding] = found(config, needed - 0.1)
    weights, cache = WEIGHTS * 2 / GIB, (131_072 + 512) * TOKEN / GIB
    assert finding.code == "HF959"
    assert f"{weights:.1f} GiB for its weights and {cache:.1f} GiB for its cache" in finding.message
    assert f"{WEIGHTS * 12 / GIB:.1f} GiB of 'actor', {WEIGHTS * 4 / GIB:.1f} GiB of 'reference'" in finding.message
    tokens = int(finding.notes[-1].split()[2].replace(",", ""))
    smaller = replace(config, actor=actor(generation=generation(cache_tokens=tokens)))
    assert found(smaller, needed - 0.1) == []
    larger = replace(config, actor=actor(generation=generation(cache_tokens=tokens + 2048)))
    assert [finding.code for finding in found(larger, needed - 0.1)] == ["HF959"]


def test_models_that_do_not_fit_without_the_engine_are_one_mistake() -> None:
    """The actor has 16 bytes of a weight while it learns, the reference 4."""
    config = grpo(actor=actor(generation=generation()), reference=w.ReferenceConfig(model()), deployment=places())
    for gib, code in ((WEIGHTS * 20 / GIB + 0.1, "HF959"), (WEIGHTS * 15.9 / GIB, "HF504")):
        assert [finding.code for finding in found(config, gib, ("HF504", "HF959"))] == [code]


def test_what_is_offloaded_or_elsewhere_needs_no_room() -> None:
    colocated = grpo(actor=actor(generation=generation()), reference=w.ReferenceConfig(model()), deployment=places())
    least = (WEIGHTS * 6 + (131_072 + 512) * TOKEN) / GIB
    assert len(found(colocated, least + 0.1)) == 1
    assert found(replace(colocated, deployment=places(offload=True)), least + 0.1) == []
    assert len(found(replace(colocated, deployment=places(offload=True)), least - 0.1)) == 1
    alone = grpo(actor=actor(), sampler=sampler(), deployment=places(engines=True))
    least = (WEIGHTS * 2 + (131_072 + 512) * TOKEN) / GIB
    assert found(alone, least + 0.1) == []
    assert "for its cache, and a GPU of pool 'engines' has" in found(alone, least - 0.1)[0].message
    assert "no cache fits" in found(alone, WEIGHTS * 2 / GIB - 0.1)[0].notes[-1]
    assert found(replace(alone, sampler=sampler(w.ModelConfig(path="elsewhere"))), 1) == []


def test_a_plan_shows_the_largest_phase_and_not_the_sum() -> None:
    config = grpo(actor=actor(generation=generation()), reference=w.ReferenceConfig(model()), deployment=places())
    [line] = [line for line in str(from_config(config).experiment().compile()).splitlines() if "each GPU at" in line]
    assert "at actor.generate" in line
    assert "engine's cache 12.0 GiB" in line
    assert "activations" not in line
    apart = grpo(actor=actor(), sampler=sampler(), deployment=places(engines=True))
    lines = [line for line in str(from_config(apart).experiment().compile()).splitlines() if "each GPU at" in line]
    assert ["activations" in line for line in lines] == [True, False]
    assert ["engine's cache" in line for line in lines] == [False, True]
