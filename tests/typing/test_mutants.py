"""Valid programs with one change in a dataflow: where mypy with the plugin reports its body, a check reports it."""

from __future__ import annotations

import ast
import copy
import importlib.util
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hfdsl as hf
from tests.nightly import NIGHTLY

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "tests/corpus/valid").glob("*.py"))
pytestmark = pytest.mark.xdist_group("plugin")  # one process: the cache is one
MUTANTS = 24 if NIGHTLY else 2
"""How many mutants of each program are tried."""
CONFIG = "[mypy]\nplugins = hfdsl.tools.mypy_plugin\nstrict = True\nexplicit_package_bases = True\n"


def dataflows(tree: ast.Module) -> list[ast.FunctionDef]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if any("dataflow" in ast.unparse(line) for line in node.decorator_list)]


def mutants(source: str, count: int, seed: int) -> Iterator[str]:
    """Programs with one change in a call of a dataflow: arguments swapped, dropped, replaced, or a name misspelled."""
    draw = random.Random(seed)
    for _ in range(count):
        tree = copy.deepcopy(ast.parse(source))
        flows = dataflows(tree)
        calls = [node for flow in flows for line in flow.body for node in ast.walk(line) if isinstance(node, ast.Call)]
        calls = [call for call in calls if call.args]
        if not calls:
            return
        call = draw.choice(calls)
        names = [arg.arg for flow in flows if call in ast.walk(flow) for arg in flow.args.args]
        change = draw.choice(["swap", "drop", "replace", "misspell", "double"])
        if change == "swap":
            draw.shuffle(call.args)
        elif change == "drop":
            call.args.pop(draw.randrange(len(call.args)))
        elif change == "replace":
            call.args[draw.randrange(len(call.args))] = ast.Name(draw.choice(names or ["None"]), ast.Load())
        elif change == "misspell" and isinstance(call.func, ast.Attribute):
            call.func.attr += "s"
        else:
            call.args.append(call.args[-1])
        yield ast.unparse(tree)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # annotations are text: they are looked up there
    spec.loader.exec_module(module)
    return module


def reported(module: ModuleType) -> bool:
    """Whether the check of a dataflow, or of the experiment, of a module finds an error."""
    flows = [
        value
        for value in vars(module).values()
        if isinstance(value, hf.Dataflow) and value.body.__module__ == module.__name__
    ]
    return any(flow.check().errors for flow in flows)


def test_what_mypy_reports_of_a_mutant_a_check_reports(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    texts = {
        f"{p.stem}_m{i}": text for p in PROGRAMS for i, text in enumerate(mutants(p.read_text("utf-8"), MUTANTS, 7))
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, "utf-8")
    files = [str(tmp_path / f"{name}.py") for name in texts]
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache/plugin")]
    output, errors, _ = api.run([*options, "--no-error-summary", *files])
    assert errors == ""
    missed = set()
    refused = 0
    for name, text in texts.items():
        bodies = {
            line for flow in dataflows(ast.parse(text)) for line in range(flow.lineno, (flow.end_lineno or 0) + 1)
        }
        lines = {int(line) for line in re.findall(rf"/{name}\.py:(\d+): error", output)}
        if lines & bodies:
            refused += 1
            try:
                if not reported(load(tmp_path / f"{name}.py")):
                    missed.add(name)
            except hf.HfError:
                continue  # refused where it is defined
    assert refused > len(texts) // 4
    assert missed == set(), "\n".join(
        line for line in output.splitlines() if any(f"/{name}.py" in line for name in missed)
    )
