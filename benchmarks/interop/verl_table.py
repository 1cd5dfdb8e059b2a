"""Write what hfdsl knows of verl's configuration: keys, defaults and the fields of its dataclasses, as facts in JSON.

Run with a Python that has verl, hydra and omegaconf::

    python benchmarks/interop/verl_table.py hfdsl/interop/tables/verl.json

A configuration is composed for every ``model_engine``. The first is written whole, interpolations unresolved; of the
others what differs. ``fields`` are those of each dataclass that a ``_target_`` names: verl refuses others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

ENGINES = ("dp", "megatron", "veomni", "torchtitan")


def main(output: Path) -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    hydra, omegaconf = importlib.import_module("hydra"), importlib.import_module("omegaconf")
    folder = Path(importlib.import_module("verl").__file__ or "").parent / "trainer" / "config"
    compositions: dict[str, dict[str, Any]] = {}
    with hydra.initialize_config_dir(str(folder), version_base=None):
        for engine in ENGINES:
            config = hydra.compose("ppo_trainer", overrides=[f"model_engine={engine}"])
            compositions[engine] = flat(omegaconf.OmegaConf.to_container(config, resolve=False))
    first = compositions[ENGINES[0]]
    targets = sorted({value for c in compositions.values() for key, value in c.items() if key.endswith("_target_")})
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.yaml")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    table = {
        "library": "verl",
        "version": version(),
        "checksum": digest.hexdigest(),
        "default": ENGINES[0],
        "keys": first,
        "engines": {
            engine: {
                "changed": {k: v for k, v in keys.items() if k not in first or first[k] != v},
                "removed": sorted(first.keys() - keys.keys()),
            }
            for engine, keys in compositions.items()
            if engine != ENGINES[0]
        },
        "fields": {target: fields(target) for target in targets},
    }
    output.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", "utf-8")


def version() -> str:
    """The version of verl."""
    from importlib.metadata import version as installed

    return installed("verl")


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Keys joined by dots; lists and empty tables are values."""
    if not isinstance(tree, dict) or not tree:
        return {prefix: tree}
    pairs: dict[str, Any] = {}
    for key, value in tree.items():
        pairs |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return pairs


def fields(target: str) -> list[str] | None:
    """The fields of a dataclass; None of what is none."""
    module, _, name = target.rpartition(".")
    cls = getattr(importlib.import_module(module), name)
    return (
        sorted(field.name for field in dataclasses.fields(cls) if field.init) if dataclasses.is_dataclass(cls) else None
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
