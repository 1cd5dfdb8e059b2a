"""Write what hfdsl knows of OpenRLHF's options: names, types, choices and defaults, as facts in JSON.

Run with a checkout of OpenRLHF, of which nothing needs to be installed::

    python benchmarks/interop/openrlhf_table.py CHECKOUT hfdsl/interop/tables/openrlhf.json

Only the statements of ``openrlhf/cli/train_ppo_ray.py`` that build its parser are executed.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

PROGRAM = "openrlhf/cli/train_ppo_ray.py"
COMPUTED = ("logger.wandb.run_name",)
"""Options whose default is another one at each start."""


def parser_of(checkout: Path) -> argparse.ArgumentParser:
    """The parser that the program builds."""
    tree = ast.parse((checkout / PROGRAM).read_text("utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    building = list[ast.stmt]()
    for statement in main.body:
        if "parse_args" in ast.unparse(statement):
            break
        building.append(statement)
    names: dict[str, Any] = {"argparse": argparse, "datetime": dt.datetime}
    exec(compile(ast.Module(building, []), PROGRAM, "exec"), names)  # noqa: S102  # the library's own parser
    parser = names["parser"]
    assert isinstance(parser, argparse.ArgumentParser)  # a guard for the type checker
    return parser


def option(action: argparse.Action) -> dict[str, Any]:
    """The type of an option, with its choices and how many values it takes; a switch takes none."""
    kind = "switch" if action.nargs == 0 else getattr(action.type, "__name__", "str")
    facts: dict[str, Any] = {"type": kind}
    if action.choices:
        facts["choices"] = list(action.choices)
    if action.nargs not in (None, 0):
        facts["values"] = action.nargs
    return facts


def main(checkout: Path, output: Path) -> None:
    """Write the table."""
    actions = [action for action in parser_of(checkout)._actions if action.dest != "help"]
    named = [(name.removeprefix("--"), action) for action in actions for name in action.option_strings]
    table = {
        "library": "openrlhf",
        "version": (checkout / "version.txt").read_text("utf-8").strip(),
        "checksum": hashlib.sha256((checkout / PROGRAM).read_bytes()).hexdigest(),
        "default": "ppo",
        "keys": {name: None if name in COMPUTED else action.default for name, action in named},
        "engines": {},
        "fields": {},
        "options": {name: option(action) for name, action in named},
    }
    output.write_text(json.dumps(table, indent=0, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
