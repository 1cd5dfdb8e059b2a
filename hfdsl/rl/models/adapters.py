"""LoRA adapters in the linear layers of a model, by peft.

peft replaces a layer ``q_proj`` by one that holds it, so the names in a module's state change::

    before           with an adapter
    q_proj.weight    q_proj.base_layer.weight       frozen
    q_proj.bias      q_proj.base_layer.bias         frozen
                     q_proj.lora_A.default.weight   learns, [rank, inputs]
                     q_proj.lora_B.default.weight   learns, [outputs, rank]

Other roles, engines and exported models use the original names, with the weight W + (alpha / rank) B A: see
``Adapter.merged``, which returns a new tensor. The weights of the module itself are never merged: adding the product
and subtracting it again would round them, and they would drift.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from hfdsl.errors import ResourceError
from hfdsl.rl.hub import hub_name
from hfdsl.rl.workers.lora import TILE_BYTES, Lora, large_rank, matches, missing_target
from hfdsl.rl.workers.model_config import FloatDType

ADAPTER: Final = "default"
"""peft's name of the one adapter of a model."""

BASE: Final = "base_layer"
"""peft's name of the layer inside an adapted one."""


def add_adapters(model: Any, lora: Lora, seed: int, autocast: FloatDType | None = None) -> None:
    """Put a new adapter into a model and freeze the rest; adapters are drawn on the CPU, equal on all ranks.

    ``autocast`` is the dtype of matrix products in all passes of this model.

    Raises:
        ResourceError: HF710 without peft; HF962 for targets that the model does not have, or a rank too large for one.
    """
    if find_spec("peft") is None:
        raise ResourceError("HF710", "lora needs the package peft, which is not installed; pip install 'hfdsl[lora]'")
    from peft import (  # pyright: ignore[reportMissingImports]  # optional
        LoraConfig,
        inject_adapter_in_model,
    )

    layers = targeted_layers(model, lora)
    arguments: dict[str, Any] = {
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(layers),
        "fan_in_fan_out": any(isinstance(layer, Conv1D) for layer in layers.values()),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(LoraConfig(**arguments), model, ADAPTER)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # peft creates it in the dtype of the layer
    for _, layer in adapted_layers(model):
        layer.cast_input_dtype_enabled = autocast is None  # autocast casts inputs, and needs no float32 copies of them


def targeted_layers(model: Any, lora: Lora) -> dict[str, nn.Linear | Conv1D]:
    """The layers of a model that an adapter targets, by their names.

    Raises:
        ResourceError: HF962.
    """
    outputs = model.get_output_embeddings()
    linear = {path: layer for path, layer in model.named_modules() if isinstance(layer, (nn.Linear, Conv1D))}
    inner = {path: layer for path, layer in linear.items() if layer is not outputs}
    if lora.targets == "all-linear":
        layers = inner
    else:
        layers = {path: layer for path, layer in linear.items() if any(matches(path, name) for name in lora.targets)}
        for target in lora.targets:
            if not any(matches(path, target) for path in layers):
                raise _refused(missing_target(target, inner))
    for path, layer in layers.items():
        if layer is outputs and outputs.weight is model.get_input_embeddings().weight:
            raise _refused(f"'{path}' is tied to the embedding, and one of them alone cannot have an adapter")
        sides = tuple(layer.weight.shape)
        if lora.rank > min(sides):
            raise _refused(large_rank(lora.rank, path, sides))
    return layers


def _refused(problem: str) -> ResourceError:
    return ResourceError("HF962", problem)


def tile_rows(columns: int) -> int:
    """The rows of such a product, in float32; a multiple of 16, so that every tile begins at a multiple of 64 bytes.

    >>> tile_rows(4096), tile_rows(2**30)
    (2048, 16)
    """
    return max(TILE_BYTES // 4 // columns // 16 * 16, 16)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of a weight: the names of A and B in the module's state, and the factor of their product."""

    a: str
    b: str
    scaling: float
    transposed: bool
    """Whether the weight is [inputs, outputs], as of GPT-2."""

    def merged(self, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """A weight with its adapter added in float32, in the dtype of the weight.

        >>> adapter = Adapter("a", "b", scaling=2.0, transposed=False)
        >>> adapter.merged(torch.ones(2, 2), torch.ones(1, 2), torch.tensor([[1.0], [3.0]])).tolist()
        [[3.0, 3.0], [7.0, 7.0]]
        """
        merged = torch.empty_like(weight)
        for first, rows in self.tiles(weight, a, b):
            merged[first : first + len(rows)] = rows
        return merged

    def tiles(
        self, shard: torch.Tensor, a: torch.Tensor, b: torch.Tensor, first: int = 0
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """A shard, the rows of a weight from ``first`` on, with its adapter added: float32 rows, and their place in it.

        Tiles are cut from the first row of the weight, and the product of each is computed whole, whatever part of it
        is asked for. So a row has the same bits in a shard as in the weight, which one product of other sizes need not
        give.

        >>> adapter, a, b = Adapter("a", "b", 1.0, transposed=False), torch.ones(1, 2), torch.tensor([[1.0], [3.0]])
        >>> [(place, rows.tolist()) for place, rows in adapter.tiles(torch.ones(1, 2), a, b, first=1)]
        [(0, [[4.0, 4.0]])]
        """
        count, columns = (a.shape[1], b.shape[0]) if self.transposed else (b.shape[0], a.shape[1])
        height, last = tile_rows(columns), first + len(shard)
        for start in range(first // height * height, last, height):
            tile = slice(start, min(start + height, count))
            product = (b.float() @ a[:, tile].float()).T if self.transposed else b[tile].float() @ a.float()
            rows = slice(max(start, first), min(tile.stop, last))
            part = product.mul_(self.scaling)[rows.start - start : rows.stop - start]
            yield rows.start - first, part.add_(shard[rows.start - first : rows.stop - first])


def adapters(module: nn.Module) -> dict[str, Adapter]:
    """The adapters of a module, by the names of their weights in its state."""
    return {
        f"{path}.{BASE}.weight": Adapter(
            f"{path}.lora_A.{ADAPTER}.weight",
            f"{path}.lora_B.{ADAPTER}.weight",
            layer.scaling[ADAPTER],
            layer.fan_in_fan_out,
        )
        for path, layer in adapted_layers(module)
    }


def adapter_names(module: nn.Module) -> dict[str, str]:
    """The names in a module's state of its adapters' matrices, by their names elsewhere.

    Elsewhere ``q_proj.lora_A.default.weight`` is ``q_proj.lora_A.weight``, as peft saves it.
    """
    states = (state for adapter in adapters(module).values() for state in (adapter.a, adapter.b))
    return {state.replace(f".{ADAPTER}.", "."): state for state in states}


def adapted_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers of a module that have an adapter, by their names."""
    for path, inner in module.named_modules():
        if hasattr(inner, "lora_A") and hasattr(inner, BASE):
            yield path, inner


@contextmanager
def without_adapters(module: nn.Module) -> Iterator[None]:
    """Compute with the base weights of a module alone within this context."""
    layers = [layer for _, layer in adapted_layers(module)]
    try:
        for layer in layers:
            layer._disable_adapters = True  # not enable_adapters(False), which changes what learns, also under FSDP
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def base_names(module: nn.Module) -> dict[str, str]:
    """The names of a module's weights without adapters, by their names in its state; those of adapters are left out."""
    prefixes = tuple(f"{path}." for path, _ in adapted_layers(module))
    names = {}
    for name in module.state_dict():
        layer = next((prefix for prefix in prefixes if name.startswith(prefix)), None)
        if layer is None:
            names[name] = name
        elif name.startswith(f"{layer}{BASE}."):
            names[name] = f"{layer}{name.removeprefix(f'{layer}{BASE}.')}"
    return names


def save_adapter(model: Any, folder: Path, base: str | None) -> None:
    """Save the adapter of a causal model alone, for ``peft.PeftModel.from_pretrained`` to load onto the base model."""
    from safetensors.torch import save_file

    config = deepcopy(model.peft_config[ADAPTER])
    base, config.revision = (None if base is None else hub_name(base)) or (base, None)
    config.base_model_name_or_path, config.task_type, config.inference_mode = base, "CAUSAL_LM", True
    config.save_pretrained(folder)
    state = model.state_dict()
    weights = {
        f"base_model.model.{name}": state[inner].detach().cpu().contiguous()
        for name, inner in adapter_names(model).items()
    }
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
