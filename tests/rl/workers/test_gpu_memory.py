"""The predicted parts of a role's GPU memory that a CPU can count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.training.models import llama
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl import workers as w
from hfdsl.rl.workers.gpu_memory import ENGINE_WORKING, engine_bytes, gpu_bytes
from hfdsl.rl.workers.state_bytes import state_bytes
from tests.rl.workers import tiny

LORA = w.Lora(rank=5, targets=("q_proj", "down_proj"))
ENGINE = replace(tiny.GENERATION, engine="vllm")


@pytest.mark.parametrize("lora", [None, LORA, replace(LORA, exports="adapter")], ids=["whole", "merged", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_needs_a_copy_of_what_it_sends(lora: w.Lora | None, dtype: Any) -> None:
    if lora is not None:
        pytest.importorskip("peft")
    config = replace(tiny.ACTOR, lora=lora, model=replace(tiny.MODEL, dtype=dtype))
    sent = sum(weight.nbytes for weight in w.Actor(config).weights().values())
    assert gpu_bytes(Mesh(), config)["weights"]["exported copy"] == state_bytes(config)["policy"] == sent


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("is_saved", [False, True])
def test_a_critic_has_no_output_layer(is_tied: bool, is_saved: bool, tmp_path: Path) -> None:
    sizes = {**tiny.LLAMA, "tie_word_embeddings": is_tied}
    model = w.ModelConfig(config=sizes, end_tokens=tiny.MODEL.end_tokens)
    if is_saved:
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes)).save_pretrained(tmp_path)
        model = w.ModelConfig(path=str(tmp_path))
    for module, config, learns in (
        (w.Critic(w.CriticConfig(model)).critic, w.CriticConfig(model), True),
        (w.RewardModel(w.RewardConfig(model)).model, w.RewardConfig(model), False),
    ):
        weights = sum(parameter.nbytes for parameter in module.parameters())
        learned = {"moments": 2 * weights, "gradients": weights} if learns else {}
        assert gpu_bytes(Mesh(), config)[""] == {"weights": weights, **learned}


@pytest.mark.parametrize("parts", [1, 2])
def test_an_engine_has_room_for_its_adapter(parts: int) -> None:
    """vLLM allocates rank 8 of q, k, v and down, of two layers: by outputs the rows of B, else the columns of A."""
    mesh, wide, narrow, inner = Mesh(tp=parts), 32, 16, 64
    config = w.SamplerConfig(tiny.MODEL, ENGINE)
    adapted = replace(config, lora=LORA)
    whole, more = (gpu_bytes(mesh, role_config)["generate"]["engine's weights"] for role_config in (config, adapted))
    sides = 3 * wide + (wide + 2 * narrow) // parts + inner // parts + wide
    assert more - whole == 4 * 8 * 2 * sides
    merged = replace(adapted, generation=replace(ENGINE, adapter="merged"))
    assert gpu_bytes(mesh, merged)["generate"]["engine's weights"] == whole


@pytest.mark.parametrize(("tokens", "is_engine_larger"), [(64, True), (10**7, False)])
def test_generation_needs_the_engine_or_the_log_probs_whichever_is_larger(tokens: int, is_engine_larger: bool) -> None:
    """After an engine sleeps, the actor computes its own log-probs; gradients are freed by then."""
    config = replace(tiny.ACTOR, generation=ENGINE, batching=w.BatchingConfig(tokens=tokens))
    phases = gpu_bytes(Mesh(), config)
    resident = {name: size for name, size in phases[""].items() if name != "gradients"}
    passes = {name: phases["log_probs"][name] for name in ("activations", "fragmentation")}
    awake = engine_bytes(Mesh(), config) | {"engine's working memory": ENGINE_WORKING}
    assert sum(phases["generate"].values()) == sum(resident.values()) + max(sum(passes.values()), sum(awake.values()))
    assert ("engine's cache" in phases["generate"]) == is_engine_larger


@pytest.mark.parametrize(
    ("width", "inner", "layers", "checkpointing", "allocated"),
    [(2048, None, 24, True, 13.45), (4096, 11008, 12, True, 25.71), (2048, None, 12, False, 23.79)],
)
def test_an_update_with_fsdp2_takes_what_two_gpus_allocated(
    width: int, inner: int | None, layers: int, checkpointing: bool, allocated: float
) -> None:
    """GiB of the backward pass on two H200s, by ``benchmarks.training.sharded_memory``; predicted within 1.5 %."""
    config = w.ActorConfig(
        model=w.ModelConfig(config=llama(width, layers, 32_000, 2048, inner)),
        generation=tiny.GENERATION,
        training=w.TrainingConfig(
            w.OptimizerConfig(), autocast="bfloat16", checkpointing=checkpointing, sharding="fsdp"
        ),
        batching=w.BatchingConfig(tokens=16_384),
    )
    parts = gpu_bytes(Mesh(dp=2), config)["update"]
    counted = sum(size for name, size in parts.items() if name not in {"fragmentation", "communicators"})
    assert counted / 2**30 == pytest.approx(allocated, rel=0.015)
