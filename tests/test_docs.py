"""What pages list is what there is; tests/docs runs their programs."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from hfdsl.plan.optimize import Optimize
from hfdsl.plan.plan import Transport
from tests.docs.programs import programs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_program_of_the_quick_start_is_an_example() -> None:
    assert (ROOT / "examples/grpo.py").read_text("utf-8") == programs()["grpo.py"]


@pytest.mark.nightly
def test_the_quick_start_is_the_same_on_ray(tmp_path: Path, ray_cluster: Any) -> None:
    text = programs()["grpo.py"].replace(":.2f", "")  # all digits
    assert text.count('backend="local"') == 1
    rewards = []
    for backend in ("local", "ray"):
        file = tmp_path / "grpo.py"
        file.write_text(text.replace('backend="local"', f'backend="{backend}"'))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(file), run_name="__main__")
        rewards.append(re.findall(r"reward ([\d.]+)", out.getvalue()))
    assert len(rewards[0]) == 3
    assert rewards[0] == rewards[1]


def test_the_page_on_the_data_plane_names_every_switch_and_transport() -> None:
    page = (DOCS / "data-plane.md").read_text()
    rows = re.findall(r"^\| `([\w ]+)` \|", page, re.MULTILINE)
    assert set(rows) == {field.name for field in fields(Optimize)} | set(get_args(Transport))


FOLDERS = ["check", "plan", "rl/models", "runtime"]
FOLDERS += [
    str(file.parent.relative_to(ROOT / "hfdsl"))
    for room in ("check", "runtime")
    for file in sorted((ROOT / "hfdsl" / room).glob("*/**/__init__.py"))
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_page_on_architecture_has_a_line_for_every_file_of(folder: str) -> None:
    page = (DOCS / "architecture.md").read_text()
    _, _, table = page.partition(f"| file of `{folder}/` |")
    rows = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()[2:]]
    listed = re.findall(r"`(\w+\.py)`", "".join(rows))
    files = [file.name for file in (ROOT / "hfdsl" / folder).glob("*.py") if file.name != "__init__.py"]
    assert sorted(listed) == sorted(files)


def test_the_glossary_has_every_term_once_and_only_terms_in_use() -> None:
    glossary = DOCS / "glossary.md"
    cells = re.findall(r"^\| ([^|]+) \| .* \|$", glossary.read_text("utf-8"), re.MULTILINE)
    terms = [term for cell in cells if cell != "term" for term in cell.split(", ")]
    assert len(terms) == len(set(terms)) > 80
    files = [*(page for page in DOCS.glob("*.md") if page != glossary), *(ROOT / "hfdsl").rglob("*.py")]
    text = " ".join(" ".join(file.read_text("utf-8").split()) for file in files)
    assert [term for term in terms if not re.search(rf"\b{term}(e?s)?\b", text, re.IGNORECASE)] == []


def test_the_page_for_coding_agents_is_short() -> None:
    """A piece of at most six letters or digits, and any other sign, counts as a token: more than tokenizers make."""
    text = (DOCS / "agents.md").read_text("utf-8")
    assert len(re.findall(r"[A-Za-z0-9]{1,6}|[^\sA-Za-z0-9]", text)) <= 2000
