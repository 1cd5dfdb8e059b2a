"""``hfdsl check --format agent``: blocks, and patches that ``git apply`` and ``patch`` apply."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hfdsl.check.findings import Edit, Fix
from hfdsl.check.repair.edits import apply
from hfdsl.graph.spans import Span
from hfdsl.tools import output
from hfdsl.tools.cli import main
from hfdsl.tools.formats import as_agent
from hfdsl.tools.patches import diff, patch
from tests.check.fixture_programs import FIXTURES
from tests.check.test_fixes import FIXABLE
from tests.check.test_fixtures import report
from tests.nightly import examples
from tests.tools.conftest import PROGRAM

Capture: TypeAlias = pytest.CaptureFixture[str]
Write: TypeAlias = Callable[[str, str], str]

PATCH = ["patch", "-p1", "--quiet"]
TOOLS = [["git", "apply"], *([PATCH] if shutil.which("patch") else [])]


def applied(text: str, file: Path, tool: list[str]) -> None:
    process = subprocess.run(tool, input=text.encode(), cwd=file.parent, capture_output=True, check=False)
    assert process.returncode == 0, (tool, process.stderr.decode(), text)


def patches_of(text: str) -> list[str]:
    """The patches of a page: what follows a line ``patch:`` up to an empty line."""
    return [f"{block}\n" for block in re.findall(r"^patch:\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)]


@pytest.mark.parametrize("name", sorted(FIXABLE))
def test_the_patch_of_a_fixture_makes_its_fix(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    findings = report(name)
    fixed = [finding.fixes[0] for finding in findings if finding.fixes]
    patches = patches_of(as_agent([findings], []))
    assert len(patches) == len(fixed) > 0
    text = (FIXTURES / f"{name}.py").read_bytes().decode()
    for written, fix in zip(patches, fixed, strict=True):
        file = tmp_path / f"{name}.py"
        file.write_bytes(text.encode())
        applied(written, file, TOOLS[0])
        assert file.read_bytes().decode() == apply(text, fix.edits)


ENDS = st.sampled_from(["\n", "\r\n", "\f\n", " \n", "\x0b\n", "\u2028\n", "\n\n"])
LINES = st.tuples(st.text("ab #é", max_size=6), ENDS).map("".join)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(LINES, min_size=1, max_size=12), st.data())
@example(["x = 1\n", "y"], None)
def test_a_patch_applies_whatever_the_lines_are(lines: list[str], data: st.DataObject | None) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch_context:
        patch_context.chdir(folder)
        file = Path(folder) / "a.py"
        place = 0 if data is None else data.draw(st.integers(0, len(lines) - 1))
        inserted = "z\n" if data is None else data.draw(LINES)
        old, new = "".join(lines), "".join([*lines[:place], inserted, *lines[place + 1 :]])
        if old == new:
            return
        file.write_bytes(old.encode())
        written = diff("a.py", new)
        assert all(written.split("\n")[:-1])  # an empty line ends a block
        applied(written, file, TOOLS[0])
        assert file.read_bytes().decode() == new


def test_a_block_has_code_place_message_help_and_patch(write: Write, capsys: Capture) -> None:
    file = write("program.py", PROGRAM.replace("actor.answer(questions)", "actor.anwser(questions)"))
    assert (
        main(["check", f"{file}:experiment", f"{file}:pondering", "--set", "B=4", "--format", "agent"])
        == output.FINDINGS
    )
    head, message, place, help_, mark, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"HF202 error program\.py:\d+:15", head)
    assert message == "role 'Actor' has no registered method 'anwser'"
    assert re.fullmatch(r"at program\.py:\d+: its registered methods: answer, think", place)
    assert (help_, mark) == ("help: did you mean 'answer'?", "patch:")
    assert lines[:2] == ["--- a/program.py", "+++ b/program.py"]
    assert lines[-2:] == ["", "total: 1 errors, 0 warnings"]


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_a_patch_is_applied_in_the_current_folder(tool: list[str], write: Write, capsys: Capture) -> None:
    wrong = PROGRAM.replace("actor.answer(questions)", "actor.anwser(questions)")
    file = write("program.py", wrong)
    main(["check", f"{file}:experiment", "--format", "agent"])
    [written] = patches_of(capsys.readouterr().out)
    applied(written, Path(file).absolute(), tool)
    assert Path(file).read_text("utf-8") == PROGRAM


def test_a_clean_program_is_a_line(program: str, capsys: Capture) -> None:
    assert main(["check", f"{program}:experiment", "--format", "agent"]) == output.OK
    assert capsys.readouterr().out == "total: 0 errors, 0 warnings\n"


def test_a_file_elsewhere_has_no_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    for folder in (elsewhere, here):
        folder.mkdir()
    (elsewhere / "a.py").write_text("x = 1\n", "utf-8")
    monkeypatch.chdir(here)
    fix = Fix("replace 'x'", (Edit(Span(str(elsewhere / "a.py"), 1, 0, 1, 1), "y"),))
    assert patch(fix) == ""
    monkeypatch.chdir(elsewhere)
    assert patch(fix).endswith("-x = 1\n+y = 1\n")
