"""Notebooks run from top to bottom, and print what they show; times aside."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_surface import imported, is_public, table

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: Any) -> str:
    outputs = [output for output in cell["outputs"] if output.get("name") == "stdout"]
    text = "".join("".join(output["text"]) for output in outputs)
    return re.sub(r" *\d+\.\d+ ms", " ms", text)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_uses_public_names_and_shows_its_outputs(file: Path) -> None:
    notebook = json.loads(file.read_text("utf-8"))
    for cell in cells(notebook):
        program = "".join(cell["source"])
        assert [name for name in imported(program) if not is_public(name, table())] == []
        prints = any(isinstance(node, ast.Name) and node.id == "print" for node in ast.walk(ast.parse(program)))
        assert not prints or printed(cell)


@pytest.mark.nightly
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_prints_what_it_shows(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(file, as_version=4)
    shown = [printed(cell) for cell in cells(notebook)]
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert [printed(cell) for cell in cells(notebook)] == shown


def test_there_are_notebooks() -> None:
    assert {file.stem for file in NOTEBOOKS} == {"checker", "plan_and_timeline", "single_controller"}
