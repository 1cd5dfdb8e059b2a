"""``hfdsl check --fix``: what it changes, what it leaves alone, and that files are whole at every moment."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfdsl.tools import output, patches
from hfdsl.tools.cli import main
from tests.tools.conftest import PROGRAM

Capture = pytest.CaptureFixture[str]
Write = Callable[[str, str], str]

METHOD = ("actor.answer(questions)\n", "actor.anwser(questions)\n")
PORT = ("actor.think(hf.repeat", "actor.think(questoins=hf.repeat")
MESH = ("hf.Mesh(dp=2, tp=2)", "hf.Mesh(dp=4, tp=2)")
SIZE = ("hf.Experiment(shout, deployment, dims={B: 4}", "hf.Experiment(shout, deployment, dims={B: 5}")


def wrong(*mistakes: tuple[str, str]) -> str:
    text = PROGRAM
    for right, mistake in mistakes:
        assert text.count(right) == 1
        text = text.replace(right, mistake)
    return text


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv, "--fix"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_all_that_can_be_fixed_is_fixed(write: Write, capsys: Capture) -> None:
    file = write("program.py", wrong(METHOD, PORT, MESH))
    code, out, err = run_cli(capsys, file, "--discover")
    assert (code, err) == (output.OK, "")
    assert Path(file).read_text() == PROGRAM.replace("think(hf.repeat", "think(questions=hf.repeat")
    assert "-    answers = actor.anwser(questions)\n+    answers = actor.answer(questions)\n" in out
    assert "\nfixed 4 findings in 1 file\n" in out  # the mesh is wrong in both experiments
    assert out.count("no findings") == 2


def test_remaining_findings_are_reported_and_count(write: Write, capsys: Capture) -> None:
    text = wrong(MESH).replace(
        "return answers, judge.score(answers)", "return answers, judge.score(actor.think(questions))"
    )
    file = write("program.py", text)
    code, out, _ = run_cli(capsys, f"{file}:experiment")
    assert code == output.FINDINGS
    assert "fixed 1 finding in 1 file" in out
    assert "error[HF204]" in out
    assert "error[HF501]" not in out
    assert Path(file).read_text() == text.replace("dp=4", "dp=2")


def test_a_fix_that_uncovers_another_mistake_is_not_made(write: Write, capsys: Capture) -> None:
    text = wrong(METHOD, SIZE)  # the size is only seen to be wrong where the call is right
    file = write("program.py", text)
    code, out, _ = run_cli(capsys, f"{file}:experiment")
    assert (code, out.startswith("fixed 0 findings in 0 files")) == (output.FINDINGS, True)
    assert Path(file).read_text() == text


SHARED = (
    PROGRAM.replace("experiment = ", "SIZES = {B: 5}\nexperiment = ", 1).replace("dims={B: 4}", "dims=SIZES")
    + """
fives = hf.Deployment(
    actor=hf.place(Actor, pool=train, mesh=hf.Mesh(tp=4)),
    judge=hf.place(Judge, pool=hf.ResourcePool([5], use_gpu=False)),
)
other = hf.Experiment(shout, fives, dims=SIZES)
"""
)


def test_a_fix_that_breaks_another_target_is_not_made(write: Write, capsys: Capture) -> None:
    file = write("program.py", SHARED)
    code, out, _ = run_cli(capsys, f"{file}:experiment", f"{file}:other")
    assert (code, out.startswith("fixed 0 findings in 0 files")) == (output.FINDINGS, True)
    assert Path(file).read_text() == SHARED
    assert run_cli(capsys, f"{file}:experiment")[0] == output.OK
    assert Path(file).read_text() == SHARED.replace("SIZES = {B: 5}", "SIZES = {B: 4}")


def test_a_protocol_that_is_misspelled(write: Write, capsys: Capture) -> None:
    file = write("program.py", PROGRAM.replace("register(Dispatch.DP_PROTO)", "register('DP_PROT')", 1))
    code, out, _ = run_cli(capsys, f"{file}:experiment")
    assert (code, "fixed 1 finding in 1 file" in out) == (output.OK, True)
    assert "register('DP_PROTO')" in Path(file).read_text()


def test_a_dry_run_changes_nothing(write: Write, capsys: Capture) -> None:
    text = wrong(METHOD)
    file = write("program.py", text)
    code, out, err = run_cli(capsys, f"{file}:experiment", "--diff")
    assert (code, err) == (output.FINDINGS, "")
    assert out.startswith("--- a/program.py\n+++ b/program.py\n")
    assert out.endswith("would fix 1 finding in 1 file\n")
    assert Path(file).read_text() == text


def test_the_machine_learns_what_remains(write: Write, capsys: Capture) -> None:
    file = write("program.py", wrong(METHOD))
    code, out, err = run_cli(capsys, f"{file}:experiment", "--format", "sarif")
    assert (code, json.loads(out)["runs"][0]["results"]) == (output.OK, [])
    assert "+    answers = actor.answer(questions)" in err


def test_a_module_of_a_package_is_edited_where_it_is_imported_from(write: Write, capsys: Capture) -> None:
    flow, rest = PROGRAM.split("def batches")
    write("package/__init__.py", "")
    file = write("package/flows.py", flow.replace(*METHOD))
    write("package/experiment.py", f"from package.flows import *\n\ndef batches{rest}")
    code, out, _ = run_cli(capsys, "package.experiment:experiment")
    assert (code, "--- a/package/flows.py" in out) == (output.OK, True)
    assert Path(file).read_text() == flow
    assert "package.flows" not in sys.modules  # nothing was imported by this process


def test_line_ends_and_the_mode_are_kept(write: Write, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_bytes(wrong(METHOD).replace("\n", "\r\n").encode())
    file.chmod(0o754)
    write("other.py", "")
    assert run_cli(capsys, "program.py:experiment")[0] == output.OK
    assert file.read_bytes() == PROGRAM.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o754
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != "") == ["other.py", "program.py"]


def test_a_file_elsewhere_is_left_alone(write: Write, capsys: Capture, tmp_path: Path, monkeypatch: Any) -> None:
    file = write("elsewhere/program.py", wrong(METHOD))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    code, out, _ = run_cli(capsys, "../elsewhere/program.py:experiment")
    assert (code, out.startswith("fixed 0 findings in 0 files")) == (output.FINDINGS, True)
    assert (tmp_path / file).read_text() == wrong(METHOD)


def test_only_own_files_of_plain_text_are_edited(write: Write, tmp_path: Path, monkeypatch: Any) -> None:
    ours = write("own.py", "x = 1\n")
    installed = write(".venv/lib/python3.11/site-packages/library.py", "x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    (tmp_path / "marked.py").write_bytes("\ufeffx = 1\n".encode())
    (tmp_path / "link.py").symlink_to(json.__file__)
    assert [patches.editable(f) for f in (ours, installed, "latin.py", "marked.py", "link.py", "none.py", ".")] == [
        True,
        *[False] * 6,
    ]
    monkeypatch.setattr(os, "geteuid", lambda: Path(ours).stat().st_uid + 1)
    assert not patches.editable(ours)


def test_a_file_that_cannot_be_written_is_left_as_it_was(write: Write, capsys: Capture, monkeypatch: Any) -> None:
    file = write("program.py", wrong(METHOD))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copymode", full)
    code, _, err = run_cli(capsys, f"{file}:experiment")
    assert (code, "No space left on device" in err) == (output.USAGE, True)
    assert Path(file).read_text() == wrong(METHOD)


def test_a_module_that_exits_is_reported(write: Write, capsys: Capture) -> None:
    file = write("program.py", "import hfdsl as hf\nimport sys\nsys.exit('tired')\n")
    code, _, err = run_cli(capsys, file)
    assert code == output.USAGE
    assert "tired" in err


def test_a_program_may_print(write: Write, capsys: Capture) -> None:
    file = write("program.py", wrong(METHOD) + "print('[]')\n")
    assert run_cli(capsys, f"{file}:experiment")[0] == output.OK


def test_a_diff_says_where_a_last_line_has_no_end(write: Write) -> None:
    write("a.py", "x = 1")
    assert patches.diff("a.py", "x = 2").splitlines()[-4:] == [
        "-x = 1",
        "\\ No newline at end of file",
        "+x = 2",
        "\\ No newline at end of file",
    ]
