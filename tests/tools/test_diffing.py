"""``hfdsl diff`` of two programs: nothing differs from itself, swapping swaps, and every change is found."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.testing.strategies.graphs import Program, graphs
from hfdsl.tools import output
from hfdsl.tools.cli import main
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.diffing import differences, in_words
from hfdsl.tools.facts import Facts, facts_of
from hfdsl.tools.importing import TargetSource
from hfdsl.tools.target import load
from tests.nightly import examples
from tests.tools.conftest import PROGRAM

Capture: TypeAlias = pytest.CaptureFixture[str]

many = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def experiment(program: Program) -> hf.Experiment:
    names = program.load()
    return hf.Experiment(names["program"], names["deployment"], dims=names["dims"])


def facts(experiment: hf.Experiment) -> Facts:
    source = TargetSource(sys, Path(), script=True)
    target = CommandTarget("", source, experiment.dataflow, experiment, experiment.dims)
    return facts_of(target)


# -- laws


@st.composite
def changed(draw: st.DrawFn, program: Program) -> Program:
    """The program with another line, or another place; it may be one that a check refuses."""
    kinds = ["scale", "twin", "dp", "tp", "ranks", "rows", "none"]
    match draw(st.sampled_from(kinds)):
        case "scale":
            rollout = next(i for i, line in enumerate(program.lines, 1) if line.kind == "SampleRollout")
            line = replace(program.lines[0], text=f"judge.score(v{rollout}, scale=0.5)", kind="SampleScores")
            return replace(program, lines=(*program.lines, line))
        case "twin":
            i = draw(st.integers(0, len(program.lines) - 1))
            others = [line.text for line in program.lines[: i + 1] if line.kind == program.lines[i].kind]
            return program.with_line(i, draw(st.sampled_from(others)))
        case "dp":
            return replace(program, dp=draw(st.sampled_from([1, 2, 3, 4])))
        case "tp":
            return replace(program, tp=draw(st.sampled_from([1, 2, 4])))
        case "ranks":
            return replace(program, ranks=draw(st.sampled_from([1, 2, 3, 4])))
        case "rows":
            return replace(program, rows=draw(st.sampled_from([24, 48, 50])))
        case _:
            return program


@many
@given(graphs(max_nodes=7))
def test_a_program_does_not_differ_from_itself(program: Program) -> None:
    assert differences(facts(experiment(program)), facts(experiment(program))) == ()


@many
@given(st.data())
def test_swapping_the_programs_swaps_every_difference(data: st.DataObject) -> None:
    program = data.draw(graphs(max_nodes=7))
    first, second = facts(experiment(program)), facts(experiment(data.draw(changed(program))))
    assert differences(second, first) == tuple(difference.swapped for difference in differences(first, second))


def steps(experiment: hf.Experiment) -> Any:
    """What runs, as a network: every edge with its bytes; None where the check refuses the program."""
    if not experiment.check().ok:
        return None
    return experiment.dataflow.compile(experiment.deployment, experiment.dims).to_networkx()


def same(first: Any, second: Any) -> bool:
    """Whether two plans are the same up to lines of the text."""
    if first is None or second is None:
        return first is second
    attributes = ("kind", "role", "method", "protocol", "constant_scale", "pool", "ranks", "mesh", "shapes")
    return bool(
        nx.is_isomorphic(
            first,
            second,
            node_match=lambda one, other: all(one.get(name) == other.get(name) for name in attributes),
            edge_match=lambda one, other: one == other,
        )
    )


@many
@given(st.data())
def test_programs_without_a_difference_have_the_same_plan(data: st.DataObject) -> None:
    program = data.draw(graphs(max_nodes=6))
    first, second = experiment(program), experiment(data.draw(changed(program)))
    if not differences(facts(first), facts(second)):
        assert same(steps(first), steps(second))


# -- words


CHANGES = {
    "hf.repeat(questions, 2)": (
        "hf.repeat(questions, 4)",
        "call actor.think: reads questions (text) repeat(questions, times=2) -> repeat(questions, times=4)",
    ),
    "mesh=hf.Mesh(dp=2, tp=2)": ("mesh=hf.Mesh(dp=4)", "role actor: mesh Mesh(pp=1 dp=2 tp=2) -> Mesh(pp=1 dp=4 tp=1)"),
    "P: 256": ("P: 512", "size P: 256 -> 512"),
    "hidden: f32[B, P]": ("hidden: hf.bf16[B, P]", "record Answers: column hidden f32[B, P] -> bf16[B, P]"),
    "text: hf.Obj[str, B]\n    hidden": ("hidden", "record Answers: column text only in A, Obj[str, B]"),
    "judge=hf.place(Judge, pool=score)": (
        "judge=hf.place(Judge, pool=train, colocate=False)",
        *(
            "role judge: pool score -> train",
            "role judge: colocate True -> False",
            "pool score: only in A, score [2] cpu",
        ),
    ),
    "@register(Dispatch.DP_PROTO)\n    def weigh": (
        "@register(Dispatch.ONE_TO_ALL)\n    @hf.requires('B % 2 == 0')\n    def weigh",
        *("call judge.weigh: protocol DP_PROTO -> ONE_TO_ALL", "call judge.weigh: returns Lengths -> PerRank[Lengths]"),
        "call judge.weigh: condition B % 2 == 0 only in B, declared",
    ),
    "judge.weigh(actor.think(hf.repeat(questions, 2)))": (
        "judge.score(hf.repeat(questions, 2))",
        *(
            "call judge.weigh: only in A, DP_PROTO, returns Lengths",
            "call judge.score: only in B, DP_PROTO, returns Lengths",
        ),
        *("call actor.think: only in A, 3D_PROTO, returns Answers", "result: column length judge.weigh -> judge.score"),
    ),
    "[2], use_gpu=False": ("[1], use_gpu=False", "pool score: processes [2] CPU processes -> [1] CPU processes"),
}


@pytest.mark.parametrize("old", CHANGES)
def test_a_change_is_said_in_words(old: str, write: Callable[[str, str], str]) -> None:
    new, *expected = CHANGES[old]
    assert PROGRAM.count(old) == 1
    first, second = write("first.py", PROGRAM), write("second.py", PROGRAM.replace(old, new))
    changes = differences(facts_of(load(f"{first}:pondering", ())), facts_of(load(f"{second}:pondering", ())))
    lines = list(in_words(changes))
    assert set(expected) <= set(lines), lines


def test_two_versions_may_import_modules_of_the_same_name(write: Callable[[str, str], str], capsys: Capture) -> None:
    for folder, mesh in (("old", "hf.Mesh(dp=2, tp=2)"), ("new", "hf.Mesh(tp=4)")):
        write(f"{folder}/places.py", f"import hfdsl as hf\nMESH = {mesh}\n")
        program = PROGRAM.replace("hf.Mesh(dp=2, tp=2)", "MESH").replace(
            "import hfdsl", "from places import MESH\nimport hfdsl"
        )
        write(f"{folder}/shouting.py", program)
    code = main(["diff", "old/shouting.py:pondering", "new/shouting.py:pondering", "--format", "json"])
    entries = json.loads(capsys.readouterr().out)
    assert code == output.FINDINGS
    assert entries[0] == {
        "subject": "role actor",
        "aspect": "mesh",
        "before": "Mesh(pp=1 dp=2 tp=2)",
        "after": "Mesh(pp=1 dp=1 tp=4)",
    }


def test_the_same_program_has_no_difference(program: str, capsys: Capture) -> None:
    assert main(["diff", f"{program}:pondering", f"{program}:pondering"]) == output.OK
    assert capsys.readouterr().out.endswith("facts about the two programs are the same\n")


def test_a_program_that_a_check_refuses_differs_by_its_findings(write: Callable[[str, str], str]) -> None:
    refused = PROGRAM.replace("{B: 4, P: 256}", "{B: 5, P: 256}").replace("hf.repeat(questions, 2)", "questions")
    files = write("first.py", PROGRAM), write("second.py", refused)
    *_, size, finding, plan = in_words(differences(*(facts_of(load(f"{file}:pondering", ())) for file in files)))
    assert size == "size B: 4 -> 5"
    assert finding.startswith("error HF310: only in B, ")
    assert plan == "plan: only in A"


def test_without_a_deployment_the_dataflows_are_compared(program: str) -> None:
    flow, experiment = (facts_of(load(f"{program}:{name}", ())) for name in ("ponder", "pondering"))
    assert list(in_words(differences(flow, experiment))) == ["deployment: only in B"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["raising.py", "shouting.py:nothing"], "ZeroDivisionError"),
        (["a.toml", "b.toml", "--set", "B=4"], "--set and --cluster go with programs"),
        (["a.toml", "b.toml"], "HF901"),
    ],
)
@pytest.mark.usefixtures("program")
def test_trouble_is_exit_code_2(argv: list[str], message: str, capsys: Capture) -> None:
    Path("raising.py").write_text("1 / 0\n", "utf-8")
    assert main(["diff", *argv]) == output.USAGE
    assert message in capsys.readouterr().err
