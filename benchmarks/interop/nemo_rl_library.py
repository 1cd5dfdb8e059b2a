"""NeMo-RL imported from a checkout, with stand-ins for the packages that need GPUs or are not installed.

It needs a Python with torch, transformers, ray, OmegaConf, Hydra and pydantic. Configuration classes, the setup of
GRPO, the policy, the engines and the batches are the library's own code; what it imports beyond that are mocks.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import typing_extensions

ABSENT = {"pynvml", "fastapi", "vllm", "wandb", "mlflow", "nemo_automodel", "megatron", "decord", "sglang",
          "transformer_engine", "swanlab", "transfer_queue", "torch.utils.tensorboard", "nemo_rl.data.datasets",
          "nemo_rl.experience", "nemo_rl.environments"}  # fmt: skip  # a list of names
"""Packages that become mocks; more join when an import fails."""

PATCH = b"\n_patch_transformers_tokenizer_class_set()\n"
"""A statement of ``nemo_rl.models.policy`` that demands one version of transformers, and has to do with tokenizers."""


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds mocks for modules of absent packages."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """A mock's, where the module belongs to an absent package."""
        parts = name.split(".")
        if any(".".join(parts[:count]) in ABSENT for count in range(1, len(parts) + 1)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A mock with what importlib expects of a package."""
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__, module.__file__ = spec, [], spec.name, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def load(checkout: Path) -> Any:
    """``nemo_rl.algorithms.grpo`` of a checkout."""
    original = importlib.machinery.SourceFileLoader.source_to_code

    def source_to_code(self: Any, data: Any, path: Any, *rest: Any, **options: Any) -> Any:
        if str(path).endswith("nemo_rl/models/policy/__init__.py"):
            data = bytes(data).replace(PATCH, b"\n")
        return original(self, data, path, *rest, **options)

    setattr(importlib.machinery.SourceFileLoader, "source_to_code", source_to_code)  # noqa: B010  # mypy: a method
    sys.dont_write_bytecode = True
    for name in ("TypedDict", "NotRequired"):  # pydantic takes those of Python 3.12 only
        setattr(typing, name, getattr(typing_extensions, name))
    sys.meta_path.insert(0, StandIns())
    sys.path.insert(0, str(checkout))
    while True:
        try:
            return importlib.import_module("nemo_rl.algorithms.grpo")
        except ModuleNotFoundError as error:
            root = (error.name or "").split(".")[0]
            if not root or root in ABSENT or root == "nemo_rl":
                raise
            ABSENT.add(root)
            for module in [module for module in sys.modules if module.startswith("nemo_rl")]:
                del sys.modules[module]
