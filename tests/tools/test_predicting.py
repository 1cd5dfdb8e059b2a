"""``hfdsl run --trace`` and ``hfdsl plan --predict``: a record of one deployment, a prediction for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hfdsl.plan.timeline import read_trace
from hfdsl.tools import output
from hfdsl.tools.cli import main

Capture = pytest.CaptureFixture[str]
PREDICT = ("plan", "shouting.py:experiment", "--predict")
SECONDS = '[seconds]\n"actor.answer" = 0.5\n"judge.score" = 0.25\n'


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_run_is_recorded_and_predicted(program: str, capsys: Capture) -> None:
    assert run_cli(capsys, "run", "shouting.py:experiment", "--trace", "steps.json")[0] == output.OK
    steps = read_trace(Path("steps.json").read_text())
    assert [step.number for step in steps] == [0, 1, 2]
    code, out, _ = run_cli(capsys, *PREDICT, "steps.json", "--format", "json")
    prediction = json.loads(out)
    assert code == output.OK
    assert prediction["measured"] == sorted(step.seconds for step in steps)[1]
    assert prediction["nodes"].keys() == {"actor.answer", "judge.score"}
    assert all(len(node["measured"]) == 2 for node in prediction["nodes"].values())
    assert prediction["critical"] == ["actor.answer", "judge.score"]


def test_a_prediction_for_people(write: Callable[[str, str], str], program: str, capsys: Capture) -> None:
    file = write("seconds.toml", SECONDS)
    code, out, _ = run_cli(capsys, *PREDICT, file, "--latency", "0.1", "--bandwidth", "network=1e9")
    assert (code, out.splitlines()) == (
        output.OK,
        [
            "milliseconds         predicted",
            "actor.answer  100.0 -    600.0",
            "judge.score   700.0 -    950.0",
            "the step                1050.0",
            "",
            "critical path  actor.answer -> judge.score",
            "not counted    questions.text, actor.answer.text, judge.score.length: of unknown size",
        ],
    )


@pytest.mark.parametrize(
    ("name", "text", "more", "message"),
    [
        ("absent.toml", None, (), "cannot read 'absent.toml': No such file or directory"),
        ("x.toml", '[seconds]\n"actor.answer" = 0.5\n', (), "'x.toml' has no time for 'judge.score'"),
        ("x.toml", "", (), "'x.toml' has no table [seconds]"),
        (
            "x.toml",
            '[seconds]\n"actor.answer" = -0.5\n"judge.scores" = "1"\n',
            (),
            "'x.toml': \"actor.answer\" is a number of seconds, at least 0, got -0.5\n'x.toml': \"judge.scores\" is",
        ),
        ("x.toml", "seconds = 3\n", (), "'x.toml' is not a trace of hfdsl, nor a TOML file with a table [seconds]: "),
        ("x.json", "[]", (), "'x.json' has no steps"),
        (
            "x.json",
            "{}",
            (),
            "'x.json' is not a trace of hfdsl, nor a TOML file with a table [seconds]: no list",
        ),
        (
            "x.toml",
            SECONDS,
            ("--bandwidth", "air=3"),
            "--bandwidth takes copy=BYTES, network=BYTES or gpu=BYTES, got 'air=3'",
        ),
        (
            "x.toml",
            SECONDS,
            ("--bandwidth", "copy=0"),
            "--bandwidth takes copy=BYTES, network=BYTES or gpu=BYTES, got 'copy=0'",
        ),
    ],
)
def test_plans_that_cannot_be_predicted(
    write: Callable[[str, str], str],
    program: str,
    capsys: Capture,
    name: str,
    text: str | None,
    more: tuple[str, ...],
    message: str,
) -> None:
    if text is not None:
        write(name, text)
    code, out, err = run_cli(capsys, *PREDICT, name, *more)
    assert (code, out) == (output.USAGE, "")
    assert err.startswith(f"hfdsl plan: {message}")


def test_a_plan_without_sizes_predicts_nothing(write: Callable[[str, str], str], program: str, capsys: Capture) -> None:
    write("loose.py", "import hfdsl as hf\nfrom shouting import *\nloose = hf.Experiment(shout, deployment)\n")
    code, _, err = run_cli(capsys, "plan", "loose.py:loose", "--predict", write("seconds.toml", SECONDS))
    assert code == output.USAGE
    assert "--predict needs the size of every dim that rows depend on" in err


def test_a_trace_that_cannot_be_written_is_reported_before_the_launch(program: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "run", "shouting.py:experiment", "--trace", "absent/steps.json")
    assert (code, out) == (output.USAGE, "")
    assert err == "hfdsl run: cannot write 'absent/steps.json': No such file or directory\n"
