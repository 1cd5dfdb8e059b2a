"""The device of a role, and the dtype of its matrix products."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hfdsl.rl.workers.model_config import FloatDType


def device() -> torch.device:
    """The device of a role's model: this process's GPU, or the CPU if it has none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autocast(dtype: FloatDType | None, device: torch.device) -> AbstractContextManager[Any]:
    """Run matrix products in ``dtype`` within this context; with None, in the dtype of the parameters."""
    return torch.autocast(device.type, dtype=getattr(torch, dtype)) if dtype is not None else nullcontext()
