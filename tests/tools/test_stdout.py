"""What a program prints never reaches the output of a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NOISY = """
import atexit
import os
import subprocess
import sys

print("PRINTED")
os.write(1, b"WRITTEN\\n")
subprocess.run([sys.executable, "-c", "print('OF A PROCESS')"], check=True)
atexit.register(print, "AT THE END")
sys.__stdout__.write("BY THE ORIGINAL\\n")

import hfdsl as hf
from hfdsl import f32


class B(hf.Dim): ...


class X(hf.Batch):
    x: f32[B]


@hf.function
def same(x: X) -> X:
    return x


@hf.dataflow
def flow(x: X) -> X:
    print("IN THE DATAFLOW")
    os.system("echo OF A SHELL")
    return same(x.WRONG)
"""
SOUNDS = ("PRINTED", "WRITTEN", "OF A PROCESS", "AT THE END", "BY THE ORIGINAL", "IN THE DATAFLOW", "OF A SHELL")


def hfdsl(*argv: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "hfdsl", *argv]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize("options", [(), ("--discover",)])
@pytest.mark.parametrize("form", ["json", "sarif", "github", "human"])
def test_reports_are_alone_on_stdout(form: str, options: tuple[str, ...], write: Callable[[str, str], str]) -> None:
    process = hfdsl("check", write("noisy.py", NOISY), "--format", form, *options)
    assert process.returncode == 1, process.stderr
    assert "HF201" in process.stdout
    assert not [sound for sound in SOUNDS if f"{sound}\n" in process.stdout]
    assert all(sound in process.stderr for sound in SOUNDS)
    if form in ("json", "sarif"):
        assert [json.loads(line) for line in (process.stdout.splitlines() if form == "json" else [process.stdout])]


def test_in_one_process_stdout_is_as_it_was(
    write: Callable[[str, str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    from hfdsl.tools.cli import main

    program = write("loud.py", NOISY.replace("atexit.register", "print"))
    assert main(["check", program, "--format", "json"]) == 1
    captured = capfd.readouterr()
    assert json.loads(captured.out)["code"] == "HF201"
    print("ours")
    os.write(1, b"and ours\n")
    assert sorted(capfd.readouterr().out.splitlines()) == ["and ours", "ours"]


def test_a_closed_stdout_is_no_bug(write: Callable[[str, str], str]) -> None:
    program = write("noisy.py", NOISY)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = f"{sys.executable} -m hfdsl check {program} --format json | true"
    process = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert "bug in hfdsl" not in process.stderr
