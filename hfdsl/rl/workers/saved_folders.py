"""The files in the folder of a saved model, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hfdsl.rl.workers.slicing import read_object

WEIGHTS: Final = ("*.safetensors", "*.bin", "*.safetensors.index.json")


def is_saved_model(path: Path) -> bool:
    """Whether a folder has all files of a model, as far as their names tell."""
    whole = all((path / name).is_file() for name in incomplete_shards(path))
    return (path / "config.json").is_file() and has_weights(path) and whole


def has_weights(path: Path) -> bool:
    """Whether a folder has a file of weights, or an index of some."""
    return any(any(path.glob(pattern)) for pattern in WEIGHTS)


def incomplete_shards(path: Path) -> list[str]:
    """The files of weights that an index names, if no index has all of its files and no file holds all weights."""
    if any((path / name).is_file() for name in ("model.safetensors", "pytorch_model.bin")):
        return []
    maps = [read_object(index).get("weight_map") for index in sorted(path.glob("*.index.json"))]
    named = [sorted({str(name) for name in shards.values()}) for shards in maps if isinstance(shards, Mapping)]
    complete = any(all((path / name).is_file() for name in shards) for shards in named)
    return [] if complete or not named else named[0]
