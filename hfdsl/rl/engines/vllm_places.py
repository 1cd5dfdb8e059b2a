"""Detection of vLLM models that can be written in place, from the running model while its weights are dummies.

A kernel may read a copy of a layer's weight that vLLM makes after loading, in a layout of its own. It does so on a CPU:
most layers then have no weight any more, but the output layer keeps one that nothing reads, so a write to it would have
no effect and raise no error. So each layer is probed: if its weight is 1 in one place and 0 elsewhere, its output must
also be 1 in one place and 0 elsewhere, which is exact in every dtype and kernel. A layer that reads a copy or a
transposed layout fails this probe.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from hfdsl.rl.engines.interface import EngineStart
from hfdsl.rl.engines.places import WeightPlace, places

WRITABLE: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""The vLLM layer classes whose parameters equal a saved model's, except for fusing, splitting and padding."""


def vllm_places(start: EngineStart, model: torch.nn.Module) -> dict[str, WeightPlace] | None:
    """The place of each weight in a vLLM model, or None if vLLM has to load the weights itself.

    It overwrites the weights of linear layers.
    """
    if type(model).__name__ not in WRITABLE:
        return None
    parameters = dict(model.named_parameters())
    if any(parameter.dtype != getattr(torch, start.dtype) for parameter in parameters.values()):
        return None
    part = start.rendezvous
    weight_places = places(parameters, start.shapes, *(() if part is None else (part.rank, part.size)))
    paths = (name.rpartition(".")[0] for name in parameters)
    layers = [layer for layer in map(model.get_submodule, paths) if hasattr(layer, "quant_method")]
    return weight_places if weight_places is not None and all(map(computes_with_its_weight, layers)) else None


@torch.no_grad()
def computes_with_its_weight(layer: Any) -> bool:
    """Whether a linear layer or embedding of vLLM uses its weight, [outputs, inputs], unchanged."""
    weight, method = layer.weight, layer.quant_method
    output, unit = weight.shape[0] - 1, weight.new_zeros(1, weight.shape[1])
    unit[0, 0] = 1
    weight.zero_()
    weight[output, 0] = 1
    if "Embedding" in type(layer).__name__:
        return torch.equal(method.embedding(layer, torch.tensor([output], device=weight.device)), unit)
    expected = weight.new_zeros(1, weight.shape[0])
    expected[0, output] = 1
    return torch.equal(method.apply(layer, unit, None), expected)
