"""Named weights, checked against the shapes that a model expects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch

from hfdsl.errors import WiringError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The weights of a policy: their names and shapes."""

Weights: TypeAlias = Iterable[tuple[str, torch.Tensor]]
"""Weights by name; an iterable may gather them one by one."""


def fitting(weights: Weights, shapes: Shapes, receiver: str) -> Weights:
    """The weights, checked to be exactly those of the receiver's model.

    Raises:
        WiringError: HF956.
    """
    missing = dict(shapes)
    for name, weight in weights:
        shape, saved = missing.pop(name, None), name.removeprefix("model.")  # ``Policy`` holds the model as "model"
        if shape is None:
            twice = name in shapes
            problem = f"was given the weight '{saved}' twice" if twice else f"has no weight '{saved}' in its model"
            raise WiringError("HF956", f"the {receiver} {problem}{_other_kind(name, shapes)}")
        if shape != tuple(weight.shape):
            problem = f"the {receiver}'s model has '{saved}' of shape {shape}, and got one of {tuple(weight.shape)}"
            raise WiringError("HF956", problem)
        yield name, weight
    if missing:
        saved = next(iter(missing)).removeprefix("model.")
        raise WiringError("HF956", f"the {receiver} was not given the weight '{saved}' of its model")


def _other_kind(name: str, shapes: Shapes) -> str:
    """The hint for an adapter sent in place of whole weights, or the reverse."""
    is_adapter, wants_adapter = (".lora_" in weight for weight in (name, next(iter(shapes), "")))
    if is_adapter and not wants_adapter:
        return ": it was sent an adapter alone; give it the same lora, or set lora.exports = 'merged' of the sender"
    if wants_adapter and not is_adapter:
        return ": it has an adapter, and was sent whole weights; set lora.exports = 'adapter' of the sender"
    return ""
