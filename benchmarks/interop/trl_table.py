"""Write what hfdsl knows of TRL's arguments: names and defaults, as facts in JSON.

Run with a Python that has TRL, transformers, accelerate and datasets::

    python benchmarks/interop/trl_table.py hfdsl/interop/tables/trl.json

The arguments of ``trl grpo`` are those of four dataclasses. Those of ``trl rloo`` are written as what differs, and
``fields`` has the options of ``accelerate launch``, which ``trl grpo`` takes as well.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib
import inspect
import json
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

TRAINERS = {"grpo": "GRPO", "rloo": "RLOO"}


def main(output: Path) -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    trl, launch = importlib.import_module("trl"), importlib.import_module("accelerate.commands.launch")
    digest, tables, demands = hashlib.sha256(), dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for trainer, name in TRAINERS.items():
        script = importlib.import_module(f"trl.scripts.{trainer}")
        config = getattr(trl, f"{name}Config")
        classes = (getattr(script, f"{name}ScriptArguments"), config, trl.ModelConfig, trl.DatasetMixtureConfig)
        tables[trainer] = {field.name: default(field) for cls in classes for field in dataclasses.fields(cls)}
        for action in script.make_parser()._actions:
            if action.dest in tables[trainer] and action.nargs != 0:  # --no_... has no value
                demands[action.dest] = demand(action)
        digest.update(inspect.getsource(config).encode())
    first = tables["grpo"]
    options = {option for action in launch.launch_command_parser()._actions for option in action.option_strings}
    table = {
        "library": "trl",
        "version": version("trl"),
        "checksum": digest.hexdigest(),
        "default": "grpo",
        "keys": first,
        "engines": {
            trainer: {
                "changed": {k: v for k, v in keys.items() if k not in first or first[k] != v},
                "removed": sorted(first.keys() - keys.keys()),
            }
            for trainer, keys in tables.items()
            if trainer != "grpo"
        },
        "options": {name: demanded for name, demanded in demands.items() if demanded},
        "fields": {"accelerate launch": sorted({option.lstrip("-").replace("-", "_") for option in options})},
    }
    output.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", "utf-8")


def demand(action: Any) -> dict[str, Any]:
    """What argparse demands of an argument: a type, one of some words, several values."""
    kinds = {int: "int", float: "float"}
    inner = [cell.cell_contents for cell in getattr(action.type, "__closure__", None) or ()]  # of _accept_none
    types = [kind for kind in (action.type, *inner) if isinstance(kind, type) or callable(kind)]
    switch = any(getattr(kind, "__name__", "") == "string_to_bool" for kind in types)
    kind = "switch" if switch else next((kinds[kind] for kind in types if kind in kinds), "")
    demanded: dict[str, Any] = {"type": kind} if kind else {}
    if kind and inner:
        demanded["none"] = True
    if action.choices and all(isinstance(choice, str) for choice in action.choices):
        demanded["choices"] = sorted(map(str, action.choices))
    if demanded and action.nargs in ("+", "*"):
        demanded["values"] = "*"
    return demanded


def default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, as JSON has it; None of one that must be given."""
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        value = None if field.default is dataclasses.MISSING else field.default
    if isinstance(value, enum.Enum):
        value = value.value
    return value if isinstance(value, bool | int | float | str | list | dict | None) else str(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
