"""The parameters and slices that a configuration says a model has, against those of the model itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hfdsl.protocols.boxes import whole
from hfdsl.protocols.layouts import Parameter, Replicas
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.models.tensor_parallel import planned_slice_dims
from hfdsl.rl.workers import ActorConfig, GenerationConfig, ReferenceConfig, SamplerConfig, TrainingConfig
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.layouts import (
    generation_layout,
    model_layout,
    sampler_layout,
    state_parameters,
    training_layout,
)
from hfdsl.rl.workers.linear_layers import KNOWN
from tests.rl.test_state_bytes import EXTRAS, SIZES, built


def values_of(kind: str, extra: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": kind, **SIZES, **({"head_dim": 8} if kind == "qwen3" else {}), **extra}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("kind", KNOWN)
def test_a_configuration_has_the_parameters_of_its_model(kind: str, extra: dict[str, Any], tied: bool) -> None:
    values = values_of(kind, {**extra, "tie_word_embeddings": tied})
    parameters = state_parameters(ReferenceConfig(ModelConfig(config=values)))["policy"]
    shapes = {f"model.{name}": tuple(weight.shape) for name, weight in built(values).state_dict().items()}
    assert {parameter.name: parameter.shape for parameter in parameters} == shapes
    assert len(parameters) == len(shapes)


@pytest.mark.parametrize("vocabulary", [40, 41])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("extra", EXTRAS, ids=str)
@pytest.mark.parametrize("kind", KNOWN)
def test_a_configuration_has_the_slices_of_its_model(
    kind: str, extra: dict[str, Any], tied: bool, vocabulary: int
) -> None:
    values = values_of(kind, {**extra, "tie_word_embeddings": tied, "vocab_size": vocabulary})
    model = ModelConfig(config=values)
    dims, layout, mesh = planned_slice_dims(built(values), 2), model_layout(model, 2), Mesh(tp=2)
    assert layout is not None
    for parameter in state_parameters(ReferenceConfig(model))["policy"]:
        dim = dims.get(parameter.name.removeprefix("model."))
        for rank in range(2):
            box = list(whole(parameter.shape))
            if dim is not None:
                half = parameter.shape[dim] // 2
                box[dim] = (rank * half, (rank + 1) * half)
            assert layout.boxes(parameter, mesh, rank) == (tuple(box),), parameter.name


def test_roles_cut_over_their_own_axes() -> None:
    model, weight = ModelConfig(config=values_of("llama", {})), Parameter("model.layers.0.mlp.up_proj.weight", (24, 16))
    actor = ActorConfig(model, GenerationConfig(max_tokens=2))
    mesh = Mesh(dp=2, tp=4, gen_tp=2)
    layouts: list[Any] = [
        training_layout(mesh, replace(actor, training=TrainingConfig(sharding="fsdp"))),
        training_layout(mesh, actor),
        generation_layout(mesh, actor),
        sampler_layout(mesh, SamplerConfig(model, GenerationConfig(max_tokens=2))),
        sampler_layout(mesh, SamplerConfig(model, GenerationConfig(max_tokens=2, engine="vllm"))),
    ]
    assert [layout.boxes(weight, mesh, 5)[0][0] for layout in layouts] == [(9, 12), (6, 12), (0, 12), (0, 12), (0, 24)]


def test_what_is_not_known_is_not_guessed() -> None:
    unknown = ModelConfig(config={"model_type": "opt", **SIZES})
    assert state_parameters(ReferenceConfig(unknown)) == {}
    assert model_layout(unknown, 2) is None
    assert model_layout(unknown, 1) == Replicas()
    actor = ActorConfig(unknown, GenerationConfig(max_tokens=2))
    assert training_layout(Mesh(pp=2), replace(actor, model=ModelConfig(config=values_of("llama", {})))) is None
