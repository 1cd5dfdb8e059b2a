"""What other tools run: the pre-commit hook and the GitHub action, each as it is written in its file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfdsl.interop.readers import LIBRARIES
from hfdsl.tools.command_parser import command_parser
from tests.tools.conftest import PROGRAM

yaml = pytest.importorskip("yaml")  # comes with the documentation's tools

ROOT = Path(__file__).parents[2]
Write = Callable[[str, str], str]


@pytest.fixture
def on_path(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which ``hfdsl`` is the command of this checkout."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "hfdsl"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hfdsl "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}


OWN_TARGETS = "--discover --elsewhere"
"""The options with which targets are hfdsl's own."""


def hook(name: str = "hfdsl-check") -> dict[str, Any]:
    entries = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    [entry] = [entry for entry in entries if entry["id"] == name]
    assert isinstance(entry, dict)
    return entry


def action() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert isinstance(document, dict)
    return document


def step(name: str) -> dict[str, Any]:
    [selected] = [item for item in action()["runs"]["steps"] if item.get("name") == name]
    assert isinstance(selected, dict)
    return selected


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


# -- pre-commit


def test_the_hook_is_one_that_pre_commit_takes() -> None:
    entry = hook()
    assert (entry["id"], entry["language"], entry["types_or"]) == ("hfdsl-check", "python", ["python", "toml"])
    assert set(entry) <= {"id", "name", "description", "entry", "language", "types_or", "require_serial"}
    assert entry["require_serial"] is True  # no two checks write the same bytecode, and one report is shown


@pytest.mark.parametrize("name", ["hfdsl-check", "hfdsl-check-from"])
def test_the_commands_of_the_hooks_are_those_of_the_command_line(name: str) -> None:
    entry = hook(name)
    arguments: list[str] = entry.get("args", [])
    command, *words = [*shlex.split(entry["entry"]), *arguments, "a.sh", "b.sh"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert command in project["scripts"]
    parsed = command_parser().parse_args(words)
    assert parsed.target == ["a.sh", "b.sh"]
    library = vars(parsed)["library"]
    assert library in ((*LIBRARIES,) if name == "hfdsl-check-from" else (None, ""))
    needed = [requirement.partition(">")[0] for requirement in project["optional-dependencies"]["interop"] if library]
    assert entry.get("additional_dependencies", []) == needed


def test_the_hook_checks_the_files_that_it_is_given(write: Write, on_path: dict[str, str]) -> None:
    write("setup.py", "raise RuntimeError('a hook imports only what defines a dataflow')\n")
    write("good.py", PROGRAM)
    entry = shlex.split(hook()["entry"])
    process = run([*entry, "setup.py", "good.py"], on_path)
    assert (process.returncode, process.stderr) == (0, "")
    write("bad.py", PROGRAM.replace("dims={B: 4}", "dims={B: 3}"))
    process = run([*entry, "setup.py", "good.py", "bad.py"], on_path)
    assert (process.returncode, process.stderr) == (1, "")
    assert "error[HF310]" in process.stdout


def test_the_hook_for_other_libraries_checks_their_scripts(write: Write, on_path: dict[str, str]) -> None:
    entry = hook("hfdsl-check-from")
    write("run.sh", "python3 -m verl.trainer.main_ppo data.train_batchsize=64\n")
    process = run([*shlex.split(entry["entry"]), *entry["args"], "run.sh"], on_path)
    assert (process.returncode, process.stderr) == (1, "")
    assert "run.sh:1:34" in process.stdout


# -- GitHub


def test_the_action_is_composite_and_its_inputs_are_used() -> None:
    document = action()
    assert document["runs"]["using"] == "composite"
    text = (ROOT / "action.yml").read_text("utf-8")
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(document["inputs"])
    assert all(
        description.get("description") and "default" in description for description in document["inputs"].values()
    )


def test_the_scripts_of_the_action_take_inputs_from_the_environment_alone() -> None:
    for item in action()["runs"]["steps"]:
        if "run" in item:
            assert item["shell"] == "bash"
            assert "${{" not in item["run"]  # an input with a quote in it would be a command
            used = set(re.findall(r"\$([A-Z_]+)", item["run"]))
            assert used - {"GITHUB_ACTION_PATH"} <= set(item["env"])


def test_the_options_of_the_action_are_those_of_the_command() -> None:
    parser = command_parser()
    for name in ("Check", "Write SARIF"):
        [line] = [line for line in step(name)["run"].splitlines() if line.startswith("hfdsl ")]
        for which in (OWN_TARGETS, "--from verl"):
            values = {"$STRICT": "--strict", "$TARGETS": "a.py b.py", "$WHICH": which}
            words = [part for word in line.partition(" > ")[0].split() for part in values.get(word, word).split()]
            assert parser.parse_args(words[1:]).target == ["a.py", "b.py"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="the action's steps are for bash")
def test_the_steps_of_the_action_run(write: Write, on_path: dict[str, str], tmp_path: Path) -> None:
    write("good.py", PROGRAM)
    write("bad.py", PROGRAM.replace("dims={B: 4}", "dims={B: 3}"))

    def script(name: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run(["bash", "-e", "-o", "pipefail", "-c", step(name)["run"]], {**on_path, "WHICH": OWN_TARGETS, **env})

    assert script("Check", TARGETS="good.py", STRICT="").returncode == 0
    write("run.sh", "python3 -m verl.trainer.main_ppo data.train_batchsize=64\n")
    process = script("Check", TARGETS="run.sh", STRICT="", WHICH="--from verl")
    assert (process.returncode, process.stdout.startswith("::error file=run.sh,line=1,")) == (1, True)
    process = script("Check", TARGETS=".", STRICT="--strict")
    assert (process.returncode, process.stdout.count("::error file=bad.py,")) == (1, 1)
    assert script("Write SARIF", TARGETS=".", SARIF="out.sarif").returncode == 0  # the check that follows fails the job
    assert '"ruleId": "HF310"' in (tmp_path / "out.sarif").read_text()
    assert script("Write SARIF", TARGETS="none.py", SARIF="out.sarif").returncode != 0
