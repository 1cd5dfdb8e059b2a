"""``hfdsl requires``: what it says of sizes is what a check finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfdsl.tools import output
from hfdsl.tools.cli import main

Capture = pytest.CaptureFixture[str]
Write = Callable[[str, str], str]

PROGRAM = """
import hfdsl as hf
from hfdsl import Dispatch, Mul, register


class B(hf.Dim): ...
class N(hf.Dim): ...
class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: hf.i64[B, R]


class Table(hf.Batch):
    ids: hf.i64[Mul[B, N]]


class Actor(hf.Worker):
    def __init__(self, micro_batch: int = 6, longest: int = 64) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("R <= longest", "B >= 32", "R == 8 or R == 16")
    def generate(self, prompts: Prompts) -> Prompts: ...

    @register(Dispatch.THREE_D_PROTO)
    @hf.requires("B % micro_batch == 0")
    def update(self, rollout: Prompts) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def look(self, table: Table) -> None: ...


@hf.dataflow
def program(prompts: Prompts, table: Table, actor: Actor) -> None:
    rollout = actor.generate(hf.repeat(prompts, 4))
    actor.look(table)
    for _ in range(2):
        for part in hf.minibatches(rollout, 4):
            actor.update(part)


pool = hf.ResourcePool([4])
deployment = hf.Deployment(actor=hf.place(Actor, pool=pool))
experiment = hf.Experiment(program, deployment, dims={B: 10})
"""

METRICS = """
from typing import Literal
import hfdsl as hf

class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]

@hf.dataflow
def same(metrics: Metrics) -> Metrics:
    return metrics
"""


@pytest.fixture
def program(write: Write) -> str:
    return write("demanding.py", PROGRAM)


def run_cli(capsys: Capture, *argv: str) -> str:
    assert main(["requires", *argv]) == output.OK
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def json_of(capsys: Capture, *argv: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run_cli(capsys, *argv, "--format", "json"))
    return document


def test_for_people(program: str, capsys: Capture) -> None:
    rows = "for an even split over the 4 chunks of 3D_PROTO on Mesh(pp=1 dp=4 tp=1)"
    lines = [line.partition(", demanding.py:")[0] for line in run_cli(capsys, "demanding.py:experiment").splitlines()]
    assert lines == [
        "B: a multiple of 12 (given: 10, which breaks 2 of 3)",
        f"  broken  actor.update: 4 must divide B, {rows}",
        "  broken  actor.update: 6 must divide B, for the requirement B % micro_batch == 0",
        "  ok      actor.generate: B >= 32 with B = B*4",
        "",
        "N: a multiple of 2 with B = 10 (not given)",
        f"  open    actor.look: 4 must divide B*N, {rows}",
        "",
        "R: at most 64 (not given)",
        "  open    actor.generate: R <= longest with longest = 64",
        "",
        "beside these:",
        "  open    actor.generate: R == 8 or R == 16 (R = ?)",
    ]


def test_for_machines_without_any_size(program: str, write: Write, capsys: Capture) -> None:
    write("open.py", PROGRAM.replace("dims={B: 10}", "dims={}"))
    document = json_of(capsys, "open.py:experiment")
    assert (document["version"], document["dataflow"], document["complete"]) == (1, "program", True)
    dims = {
        name: (dim["given"], dim["multipleOf"], dim["remainder"], dim["least"], dim["most"], dim["possible"])
        for name, dim in document["dims"].items()
    }
    assert dims == {"B": ([], 12, 0, 8, None, True), "R": ([], 1, 0, 1, 64, True)}
    assert {rule["need"] for rule in document["others"]} == {"4 must divide B*N", "R == 8 or R == 16 (R = ?)"}
    assert {rule["holds"] for dim in document["dims"].values() for rule in dim["demands"]} == {None}


@pytest.mark.parametrize("b", [1, 2, 7, 8, 12, 24, 30, 36])
def test_allowed_sizes_are_those_that_pass_a_check(b: int, program: str, capsys: Capture) -> None:
    sizes = ["--set", f"B={b}", "--set", "R=16", "--set", "N=4"]
    document = json_of(capsys, "demanding.py:experiment", *sizes)
    dim = document["dims"]["B"]
    allowed = b % dim["multipleOf"] == dim["remainder"] and b >= dim["least"]
    assert allowed is all(rule["holds"] for rule in dim["demands"])
    assert allowed is (main(["check", "demanding.py:experiment", *sizes]) == output.OK)


def test_a_program_without_a_deployment_or_with_mistakes_says_so(program: str, write: Write, capsys: Capture) -> None:
    assert "without a deployment, splits over ranks are unknown" in run_cli(capsys, "demanding.py:program")
    write("wrong.py", PROGRAM.replace("actor.look(table)", "actor.look(prompts)"))
    assert "'hfdsl check' reports which" in run_cli(capsys, "wrong.py:experiment")
    assert json_of(capsys, "wrong.py:experiment")["complete"] is False


def test_demands_that_no_size_satisfies(write: Write, capsys: Capture) -> None:
    write("none.py", PROGRAM.replace('"R <= longest"', '"R <= longest", "R >= 100"'))
    assert "R: no size satisfies all of this (not given)\n" in run_cli(capsys, "none.py:experiment")
    assert json_of(capsys, "none.py:experiment")["dims"]["R"]["possible"] is False


def test_a_program_without_demands(write: Write, capsys: Capture) -> None:
    write("free.py", (Path(__file__).parent / "conftest.py").read_text().split("'''")[1].replace("dp=2, tp=2", "tp=4"))
    out = run_cli(capsys, "free.py:experiment").splitlines()
    assert out[0] == "B: a multiple of 2 (given: 4, which works)"
    write("freer.py", METRICS)
    assert run_cli(capsys, "freer.py").startswith("any sizes will do\n")
