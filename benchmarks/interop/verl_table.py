"""Write what hfdsl knows of verl's configuration: keys, defaults and the fields of its dataclasses, as facts in JSON.

Run with a Python that has verl, hydra and omegaconf::

    python benchmarks/interop/verl_table.py hfdsl/interop/tables/verl.json

A configuration is composed for every ``model_engine``. The first is written whole, interpolations unresolved; of the
others what differs. ``fields`` are those of each dataclass that a ``_target_`` names: verl refuses others. ``options``
are the types of numbers, from annotations of the dataclasses or from defaults, and the choices that ``__post_init__``
demands or a registry has.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import json
import sys
import textwrap
import types
import typing
import warnings
from pathlib import Path
from typing import Any

ENGINES = ("dp", "megatron", "veomni", "torchtitan")
REGISTRIES = {
    "actor_rollout_ref.actor.policy_loss.loss_mode": ("verl.trainer.ppo.core_algos", "POLICY_LOSS_REGISTRY"),
    "algorithm.adv_estimator": ("verl.trainer.ppo.core_algos", "ADV_ESTIMATOR_REGISTRY"),
}
"""Keys whose choices are the names of a registry."""
CLASSES = {"algorithm.rollout_correction": "verl.trainer.config.algorithm.RolloutCorrectionConfig"}
"""Classes of tables without a ``_target_``."""


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
        "options": options({key: value for keys in compositions.values() for key, value in keys.items()}, compositions),
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


def options(keys: dict[str, Any], compositions: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The demands on the values of keys, by key."""
    demanded: dict[str, dict[str, Any]] = {}
    for engine in ENGINES:
        for key, value in compositions[engine].items():
            above, _, name = key.rpartition(".")
            target = compositions[engine].get(f"{above}._target_", CLASSES.get(above))
            cls = class_of(target) if isinstance(target, str) else None
            hint = typing.get_type_hints(cls).get(name, type(value)) if dataclasses.is_dataclass(cls) else type(value)
            words = choices(cls, name) if dataclasses.is_dataclass(cls) else []
            facts = number(hint, value) | ({"choices": words} if words else {})
            demanded[key] = demanded.get(key, {}) | facts
    for key, (module, registry) in REGISTRIES.items():
        demanded[key] = {"choices": sorted(str(getattr(name, "value", name)) for name in load(module, registry))}
    return {key: facts for key, facts in sorted(demanded.items()) if facts and key in keys}


def number(hint: Any, value: Any) -> dict[str, Any]:
    """The type of a number, and whether it may be missing."""
    kinds = {int: "int", float: "float"}
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)  # and no tuple of numbers
    alternatives = typing.get_args(hint) if is_union else (hint,)
    kind = next((kinds[kind_type] for kind_type in (float, int) if kind_type in alternatives), "")
    if not kind or str in alternatives:
        return {}
    return {"type": kind} | ({"none": True} if type(None) in alternatives or value is None else {})


def choices(cls: Any, name: str) -> list[str]:
    """The words that ``__post_init__`` of a class takes for a field: those of ``self.name in [...]``."""
    for parent in cls.__mro__:
        method = vars(parent).get("__post_init__")
        if method is None:
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
        lists = {
            target.id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            test = (
                node.test if isinstance(node, ast.Assert | ast.If) else None
            )  # of a test alone: no part of a condition
            if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In | ast.NotIn)):
                continue
            words = test.comparators[0]
            words = lists.get(words.id, words) if isinstance(words, ast.Name) else words
            if ast.unparse(test.left) == f"self.{name}" and isinstance(words, ast.List | ast.Tuple | ast.Set):
                return [str(word) for word in ast.literal_eval(words)]
    return []


def load(module: str, name: str) -> Any:
    """What a module of verl calls by a name."""
    return getattr(importlib.import_module(module), name)


def class_of(target: str) -> Any:
    """The class that a ``_target_`` names."""
    module, _, name = target.rpartition(".")
    return load(module, name)


def fields(target: str) -> list[str] | None:
    """The fields of a dataclass; None of what is none."""
    cls = class_of(target)
    return (
        sorted(field.name for field in dataclasses.fields(cls) if field.init) if dataclasses.is_dataclass(cls) else None
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
