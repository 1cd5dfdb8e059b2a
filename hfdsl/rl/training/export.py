"""From a checkpoint to a model in a folder, as ``transformers`` saves and loads one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.errors import CheckpointError
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.data.tokenizers import load_tokenizer
from hfdsl.rl.training.checkpoints import STATED, latest
from hfdsl.rl.training.config import Find, from_table
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.runtime.saving import MANIFEST
from hfdsl.runtime.state_files import read_file, unflatten_state

if TYPE_CHECKING:
    import torch

INNER = "model."
"""Where a policy has its model."""


def export(run: Path, role: str, folder: Path, find: Find | None = None) -> Path:
    """Save the model of a role and the tokenizer, from the last checkpoint of a run; gives the checkpoint.

    The model's ``path`` in a later run is then this folder. Parts that ranks hold of a sharded model are joined, over
    ``dp`` and then over ``tp``.

    Raises:
        CheckpointError: HF906 where there is no whole checkpoint, or none with a model of this role.
    """
    from hfdsl.rl.models.loading import load, no_progress_bars
    from hfdsl.rl.models.tensor_parallel import planned_slice_dims

    checkpoint = latest(run / "checkpoints")
    config = from_table(json.loads((checkpoint / STATED).read_text("utf-8"))["config"], (), find).config
    model_config = getattr(getattr(config, role, None), "model", None)
    roles = json.loads((checkpoint / MANIFEST).read_text("utf-8"))["roles"]
    if role not in roles or not isinstance(model_config, ModelConfig):
        raise CheckpointError("HF906", f"'{checkpoint}' has no model of a role '{role}'; it keeps {', '.join(roles)}")
    files = [rank["file"] for rank in roles[role]["ranks"]]
    read = {file: unflatten_state(read_file(checkpoint / file))["weights"] for file in dict.fromkeys(files)}
    parts = [read[file] for file in files]
    model = load(replace(model_config, dtype="float32")).cpu()
    sizes = dict(re.findall(r"\b(\w+)=(\d+)", roles[role]["mesh"]))
    mesh = Mesh(pp=int(sizes["pp"]), dp=int(sizes["dp"]), tp=int(sizes["tp"]))
    at = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
    by_tp = [
        [part for part, place in zip(parts, at, strict=True) if (place.pp, place.tp) == (0, tp)]
        for tp in range(mesh.tp)
    ]
    dims = planned_slice_dims(model, mesh.tp)
    weights = {
        name: joined([[part[INNER + name] for part in slice_] for slice_ in by_tp], value, dims.get(name))
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(weights)
    with no_progress_bars():
        model.to(dtype=next(iter(parts[0].values())).dtype).save_pretrained(folder)
    load_tokenizer(config.data.tokenizer).save_pretrained(folder)
    return checkpoint


def joined(slices: list[list[Any]], whole: torch.Tensor, dim: int | None) -> torch.Tensor:
    """A tensor of the shape of ``whole``, from its slices along ``dim``, or without one from the first.

    Of each there are copies, or parts along the first dim.

    >>> import torch
    >>> joined([[torch.zeros(2, 3), torch.ones(1, 3)]], torch.empty(3, 3), None).sum().item()
    3.0
    >>> joined([[torch.zeros(3, 1)] * 2, [torch.ones(3, 1)] * 2], torch.empty(3, 2), 1).tolist()
    [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    import torch

    shape = list(whole.shape)
    if dim is not None:
        shape[dim] //= len(slices)
    found: list[torch.Tensor] = [parts[0] if list(parts[0].shape) == shape else torch.cat(parts) for parts in slices]
    return found[0] if dim is None else torch.cat(found, dim)
