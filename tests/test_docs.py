"""The documentation's programs run, and print what the pages show.

Of a page in ``PROGRAMS``, all ``python`` blocks in their order are one module. Blocks of other pages are excerpts.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from hfdsl.plan.optimize import Optimize
from hfdsl.plan.plan import Transport
from hfdsl.tools.cli import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROGRAMS = {
    "quickstart.md": "grpo.py",
    "language.md": "language.py",
    "clusters.md": "clusters.py",
    "data-plane.md": "plane.py",
    "layouts.md": "layouts.py",
    "roles.md": "roles.py",
    "single_controller.md": "judge.py",
}


def blocks(page: str, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [text for written, text in fenced if written == language]


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / PROGRAMS[request.param]
    file.write_text("\n\n".join(blocks(request.param, "python")))
    return file


def printed(file: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(file), run_name="__main__")
    return out.getvalue()


@pytest.mark.parametrize("program", ["quickstart.md"], indirect=True)
def test_the_quick_start_prints_what_it_shows(program: Path) -> None:
    report, _, rest = printed(program).partition("\n")
    assert report.startswith("check of 'grpo': no findings")
    [shown] = [block for block in blocks("quickstart.md", "") if block.startswith("plan of")]
    assert rest == shown


@pytest.mark.nightly
@pytest.mark.parametrize("program", ["quickstart.md"], indirect=True)
def test_the_quick_start_is_the_same_on_ray(program: Path, ray_cluster: Any) -> None:
    text = program.read_text().replace(":.2f", "")  # all digits
    assert text.count('backend="local"') == 1
    rewards = []
    for backend in ("local", "ray"):
        program.write_text(text.replace('backend="local"', f'backend="{backend}"'))
        rewards.append(re.findall(r"reward ([\d.]+)", printed(program)))
    assert len(rewards[0]) == 3
    assert rewards[0] == rewards[1]


@pytest.mark.parametrize("program", ["quickstart.md"], indirect=True)
def test_the_quick_start_shows_its_mistake_as_it_prints(program: Path) -> None:
    command = [sys.executable, "-m", "hfdsl", "check", program.name, "--set", "B=15"]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert run.returncode == 1, run.stderr
    [shown] = [block for block in blocks("quickstart.md", "") if block.startswith("error")]
    assert run.stdout.startswith(shown)


@pytest.mark.parametrize("program", ["language.md"], indirect=True)
def test_the_language_page_is_one_program(program: Path) -> None:
    runpy.run_path(str(program), run_name="language")


@pytest.mark.parametrize("program", ["data-plane.md"], indirect=True)
def test_the_page_on_the_data_plane_prints_what_it_shows(program: Path) -> None:
    [shown] = [block for block in blocks("data-plane.md", "") if block.startswith("plan of")]
    assert printed(program) == shown


@pytest.mark.parametrize("program", ["layouts.md"], indirect=True)
def test_the_page_on_layouts_prints_what_it_shows(program: Path) -> None:
    assert printed(program) == "".join(blocks("layouts.md", ""))


def test_the_page_on_the_data_plane_names_every_switch_and_transport() -> None:
    page = (DOCS / "data-plane.md").read_text()
    rows = re.findall(r"^\| `([\w ]+)` \|", page, re.MULTILINE)
    assert set(rows) == {field.name for field in fields(Optimize)} | set(get_args(Transport))


@pytest.mark.parametrize("program", ["roles.md"], indirect=True)
def test_the_page_on_ready_roles_is_one_program(program: Path) -> None:
    runpy.run_path(str(program), run_name="roles")


@pytest.mark.parametrize("program", ["clusters.md"], indirect=True)
def test_the_page_on_clusters_is_one_program(program: Path) -> None:
    runpy.run_path(str(program), run_name="clusters")


@pytest.mark.parametrize("program", ["clusters.md"], indirect=True)
def test_the_page_on_clusters_shows_its_mistake_as_it_is_reported(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(program.parent)
    [described] = blocks("clusters.md", "toml")
    [shown] = [block for block in blocks("clusters.md", "") if block.startswith("$ hfdsl check")]
    Path("big.toml").write_text(described)
    command, _, output = shown.partition("\n")
    assert main(command.split()[2:]) == 1
    assert capsys.readouterr().out.startswith(output)


@pytest.mark.parametrize("program", ["single_controller.md"], indirect=True)
def test_the_page_on_the_imperative_layer_prints_what_it_shows(
    program: Path, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "init", lambda: None)  # the cluster of the tests runs already
    lines = printed(program).splitlines()
    [late] = [block.splitlines() for block in blocks("single_controller.md", "text") if block.startswith("HF807")]
    assert lines[:2] == ["[3, 4, 5, 6]", "[4, 6, 8, 10]"]
    place = re.compile(r"\(.*judge.py:\d+\)")
    assert [place.sub("(judge.py)", line) for line in lines[2:5]] == [place.sub("(judge.py)", line) for line in late]
    assert lines[-1] == "{'text': ['a', 'bcd', 'ef'], 'length': [1, 3, 2]} {'source': 'docs'}"


@pytest.mark.parametrize("folder", ["check", "check/rules", "check/repair", "plan", "runtime", "rl/models"])
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
