"""Export of a model from a checkpoint to a folder, in the format of ``transformers``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfdsl.errors import CheckpointError
from hfdsl.protocols.collectives import SoleRank
from hfdsl.protocols.mesh import Mesh
from hfdsl.rl.data.tokenizers import load_tokenizer
from hfdsl.rl.training.config import from_table
from hfdsl.rl.training.config_names import Find
from hfdsl.rl.training.run_folder.checkpoints import CHECKPOINT_FILE, latest
from hfdsl.rl.workers.config import CriticConfig, ModelConfig
from hfdsl.rl.workers.lora import Lora
from hfdsl.runtime.saving.driver import MANIFEST
from hfdsl.runtime.saving.sealed_json import unsealed
from hfdsl.runtime.saving.state_files import read_file, unflatten_state

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hfdsl.rl.models.forward import Policy

INNER = "model."
"""The prefix of a policy's model in its state."""

BACKBONE = "base_model."
"""The prefix of a critic's or a reward model's backbone in its state."""

HEAD = "score.weight"
"""The name of its head, there and in the classifiers of transformers."""


def export(run: Path, role: str | None, folder: Path, find: Find | None = None, *, adapter: bool = False) -> Path:
    """Save the model of a role and the tokenizer from the last checkpoint of a run, and return the checkpoint.

    Without ``role``, it is the actor, or the only role in the checkpoint. A policy is saved as a causal model; a critic
    or a reward model as a sequence classifier of one number, which a ``RewardModel`` loads.

    In a later run, this folder is the model's ``path``. The parts of a sharded model are joined, over ``dp`` and then
    over ``tp``. A LoRA adapter is merged into the model or, with ``adapter``, saved alone, as by peft.

    Raises:
        CheckpointError: HF906 if there is no complete checkpoint, or it has no model of this role, no adapter, or no
            such classifier.
    """
    from hfdsl.rl.models.adapters import save_adapter
    from hfdsl.rl.models.loading import no_progress_bars

    checkpoint = latest(run / "checkpoints")
    config = from_table(_fields(checkpoint / CHECKPOINT_FILE)["config"], (), find).config
    roles = _fields(checkpoint / MANIFEST)["roles"]
    if role is None:
        role = next(iter(roles)) if len(roles) == 1 else "actor"
    role_config: Any = getattr(config, role, None)
    model_config: Any = getattr(role_config, "model", None)
    if role not in roles or not isinstance(model_config, ModelConfig):
        raise CheckpointError("HF906", f"'{checkpoint}' has no model of a role '{role}'; it keeps {', '.join(roles)}")
    lora: Lora | None = getattr(role_config, "lora", None)
    if adapter and lora is None:
        raise CheckpointError("HF906", f"'{role}' in '{checkpoint}' has no adapter: its whole model learned")
    is_scorer = isinstance(role_config, CriticConfig)
    if not is_scorer and not hasattr(role_config, "generation"):
        raise CheckpointError("HF906", f"'{role}' in '{checkpoint}' is neither a policy nor a critic or reward model")
    if is_scorer and adapter:
        raise CheckpointError(
            "HF906", f"'{role}' in '{checkpoint}' is not a policy: an adapter beside a head is merged"
        )
    parts = _Parts.read(checkpoint, roles[role])
    if adapter and lora is not None:
        save_adapter(_adapted(model_config, lora, parts).model, folder, model_config.path)
        return checkpoint
    model, weights = (_scorer if is_scorer else _causal)(model_config, lora, parts)
    model.load_state_dict(weights)
    with no_progress_bars():
        model.to(dtype=next(iter(weights.values())).dtype).save_pretrained(folder)
    load_tokenizer(config.data.tokenizer).save_pretrained(folder)
    return checkpoint


def _fields(file: Path) -> dict[str, Any]:
    """The fields of a checkpoint's file."""
    try:
        return unsealed(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError("HF906", f"'{file}' cannot be read: {type(error).__name__}: {error}") from None


def _adapted(config: ModelConfig, lora: Lora, parts: _Parts) -> Policy:
    """The policy of a configuration with the adapter of a checkpoint."""
    from hfdsl.rl.models.policies import policy

    adapted = policy(replace(config, compile=False), 1.0, SoleRank(), lora).cpu()
    _load_learned(adapted, parts)
    return adapted


def _load_learned(module: nn.Module, parts: _Parts) -> None:
    """Load the learned weights of a module with an adapter."""
    state = module.state_dict()
    module.load_state_dict({name: parts.tensor(name, state[name], None) for name in parts.names}, strict=False)


def _causal(config: ModelConfig, lora: Lora | None, parts: _Parts) -> tuple[Any, dict[str, torch.Tensor]]:
    """A policy's causal model of transformers, and its weights."""
    from hfdsl.rl.models.loading import load
    from hfdsl.rl.models.sharding import full_weights

    model = load(replace(config, dtype="float32")).cpu()
    if lora is None:
        return model, parts.joined(model)
    weights = full_weights(_adapted(config, lora, parts))
    return model, {name.removeprefix(INNER): weight for name, weight in weights}


def _scorer(config: ModelConfig, lora: Lora | None, parts: _Parts) -> tuple[Any, dict[str, torch.Tensor]]:
    """A critic's or a reward model's classifier of transformers, with a single number, and its weights.

    Raises:
        CheckpointError: HF906 if transformers has no classifier of this architecture.
    """
    from transformers import AutoModelForSequenceClassification

    from hfdsl.rl.models.loading import load
    from hfdsl.rl.models.policies import scorer
    from hfdsl.rl.models.sharding import full_weights

    plain = replace(config, dtype="float32", compile=False)
    causal = load(plain, output_layer=False).cpu()
    causal.config.num_labels = 1
    try:
        model: Any = AutoModelForSequenceClassification.from_config(causal.config)
    except ValueError:
        kind = causal.config.model_type
        raise CheckpointError("HF906", f"transformers has no sequence classifier for {kind!r}, which scores") from None
    learned: Mapping[str, torch.Tensor]
    if lora is None:
        learned = parts.joined(causal.base_model, BACKBONE, f"{causal.base_model_prefix}.", causal)
        learned = {**learned, HEAD: parts.tensor(HEAD, model.score.weight, None)}
    else:
        adapted = scorer(plain, SoleRank(), lora).cpu()
        _load_learned(adapted, parts)
        learned = {name.removeprefix(BACKBONE): weight for name, weight in full_weights(adapted)}
    prefix = f"{model.base_model_prefix}."
    return model, {name if name == HEAD else prefix + name: weight for name, weight in learned.items()}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The weights that the ranks of a role saved: for each rank of ``tp``, those of its ``dp`` ranks."""

    by_tp: Sequence[Sequence[Mapping[str, torch.Tensor]]]

    @classmethod
    def read(cls, checkpoint: Path, role: Mapping[str, Any]) -> _Parts:
        files = [rank["file"] for rank in role["ranks"]]
        states = {file: unflatten_state(read_file(checkpoint / file))["weights"] for file in dict.fromkeys(files)}
        sizes = dict(re.findall(r"\b(\w+)=(\d+)", role["mesh"]))
        mesh = Mesh(pp=int(sizes["pp"]), dp=int(sizes["dp"]), tp=int(sizes["tp"]))
        places = [mesh.coordinates(rank) for rank in range(mesh.world_size)]
        return cls(
            [
                [states[file] for file, place in zip(files, places, strict=True) if (place.pp, place.tp) == (0, tp)]
                for tp in range(mesh.tp)
            ]
        )

    @property
    def names(self) -> Sequence[str]:
        return list(self.by_tp[0][0])

    def tensor(self, name: str, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        """A tensor of the shape of ``whole``, joined from slices along ``dim``."""
        return joined([[part[name] for part in slice_] for slice_ in self.by_tp], whole, dim)

    def joined(self, model: Any, inner: str = INNER, outer: str = "", whole: Any = None) -> dict[str, torch.Tensor]:
        """All weights of a model that is at ``inner`` in the role, and at ``outer`` in the ``whole`` model."""
        from hfdsl.rl.models.tensor_parallel import planned_slice_dims

        dims = planned_slice_dims(whole or model, len(self.by_tp))
        state = model.state_dict()
        return {name: self.tensor(inner + name, value, dims.get(outer + name)) for name, value in state.items()}


def joined(slices: list[list[Any]], whole: torch.Tensor, dim: int | None) -> torch.Tensor:
    """A tensor of the shape of ``whole``, from its slices along ``dim``, or without a dim from the first of them.

    Each slice comes as copies, or as parts along the first dim.

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
    tensors: list[torch.Tensor] = [parts[0] if list(parts[0].shape) == shape else torch.cat(parts) for parts in slices]
    return tensors[0] if dim is None else torch.cat(tensors, dim)
