"""Valid programs with one change in a dataflow: where mypy with the plugin reports its body, a check reports it.

A mutant has the dataflows alone and imports the rest of its program, so that mypy and a check read each role once and
not for every mutant. mypy runs once on all of them, after ``tests/tools/test_mypy_plugin.py`` and with its options:
what it has read of hfdsl and torch is in the cache.
"""

from __future__ import annotations

import ast
import importlib.util
import random
import re
import sys
import zlib
from pathlib import Path
from symtable import symtable
from types import ModuleType

import pytest

import hfdsl as hf
from hfdsl.check.run import check
from tests.tools.test_mypy_plugin import mypy
from tests.typing.mutations import MUTATIONS, dataflows, mutants

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted((ROOT / "tests/corpus/valid").glob("*.py"))
pytestmark = pytest.mark.xdist_group("plugin")  # one process: the cache is one
MUTANTS = 24
"""How many mutants of each program are tried."""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # annotations are text: they are looked up there
    spec.loader.exec_module(module)
    return module


def reported(path: Path) -> bool:
    """Whether the check of a dataflow of a module finds an error, or one is refused where it is defined.

    It tries no repairs, which take a quarter of its time and remove no finding.
    """
    try:
        module = load(path)
    except hf.HfError:
        return True
    flows = [
        value
        for value in vars(module).values()
        if isinstance(value, hf.Dataflow) and value.body.__module__ == module.__name__
    ]
    return any(check(flow.body, None, {}, repairs=False).errors for flow in flows)


def dataflows_alone(program: Path) -> str:
    """The text of a module with the dataflows of a program, which imports what else the program defines for them."""
    text = program.read_text("utf-8")
    tree = ast.parse(text)
    flows = dataflows(tree)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.If)]
    read = {node.id for flow in flows for node in ast.walk(flow) if isinstance(node, ast.Name)}
    symbols = symtable(text, program.name, "exec").get_symbols()
    defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
    names = sorted(read & defined - {flow.name for flow in flows})
    rest = [ast.ImportFrom(f"tests.corpus.valid.{program.stem}", [ast.alias(name) for name in names], 0)]
    return ast.unparse(ast.Module([*imports, *(rest if names else []), *flows], []))


def lines_of_dataflows(text: str) -> set[int]:
    return {line for flow in dataflows(ast.parse(text)) for line in range(flow.lineno, (flow.end_lineno or 0) + 1)}


@pytest.mark.nightly
@pytest.mark.timeout(900)  # two dozen mutants of each program
def test_a_check_reports_mutants_that_mypy_reports(tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for program in PROGRAMS:
        draw = random.Random(zlib.crc32(program.stem.encode()))
        for i, (text, kind) in enumerate(mutants(dataflows_alone(program), draw, MUTANTS)):
            texts[f"{program.stem}_m{i}"], kinds[f"{program.stem}_m{i}"] = text, kind
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
    output = mypy(tmp_path, "--no-error-summary", *(str(tmp_path / f"{name}.py") for name in texts))
    reported_lines: dict[str, set[int]] = {}
    for name, line in re.findall(r"/(\w+)\.py:(\d+): error", output):
        reported_lines.setdefault(name, set()).add(int(line))
    refused = [name for name, text in texts.items() if reported_lines.get(name, set()) & lines_of_dataflows(text)]
    missed = {name: kinds[name] for name in refused if not reported(tmp_path / f"{name}.py")}
    assert len(refused) > len(texts) // 2
    assert len({kinds[name] for name in refused}) > len(MUTATIONS) * 3 // 4
    assert missed == {}, "\n".join(
        line for line in output.splitlines() if any(f"/{name}.py" in line for name in missed)
    )
