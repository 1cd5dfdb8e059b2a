"""``hfdsl plan``, ``draw`` and ``convert`` with ``--from LIBRARY``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hfdsl.tools import output
from hfdsl.tools.cli import main
from tests.nightly import NIGHTLY
from tests.tools.test_interop import RUN, WRONG

Capture = pytest.CaptureFixture[str]
Write = Callable[[str, str], str]

TRL = """#!/bin/bash
accelerate launch --num_processes 8 -m trl.scripts.grpo \\
    --model_name_or_path Qwen/Qwen3-4B --reward_funcs accuracy_reward --beta 0.01 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --num_generations 16
"""


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(("library", "text"), [("verl", RUN), ("trl", TRL)])
def test_a_plan(library: str, text: str, write: Write, capsys: Capture) -> None:
    write("run.sh", text)
    code, out, _ = run_cli(capsys, "plan", "--from", library, "run.sh")
    assert code == output.OK
    assert out.startswith("check of 'run.sh': no findings with ")
    assert "plan of '" in out
    assert "gpus [8]: 8 processes with actor" in out
    assert "to be set: steps = 1000" in out


def test_a_plan_for_machines(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN.replace("trainer.n_gpus", "trainer.test_freq=5 trainer.n_gpus"))
    code, out, _ = run_cli(capsys, "plan", "--from", "verl", "run.sh", "--format", "json")
    answer = json.loads(out)
    assert (code, answer["findings"], answer["plan"]["dims"]["B"]) == (output.OK, [], 256)
    setting = next(setting for setting in answer["not_lowered"] if setting["key"] == "trainer.test_freq")
    assert (setting["value"], setting["file"], setting["line"]) == ("5", "run.sh", 10)


def test_overrides_sizes_and_a_prediction(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN)
    steps = [
        "actor.generate",
        "reward.score",
        "group_advantages",
        "outcome",
        *(f"actor.update#{i}" for i in (1, 2, 3, 4)),
    ]
    write("seconds.toml", "\n".join(["[seconds]", *(f'"{step}" = 2' for step in steps)]))
    plan = ["plan", "--from", "verl", "run.sh"]
    assert "B=256 P=512 R=512" in run_cli(capsys, *plan)[1]
    assert "B=256 P=512 R=64" in run_cli(capsys, *plan, "--", "data.max_response_length=64")[1]
    assert "B=512 P=512 R=512" in run_cli(capsys, *plan, "--env", "BATCH=512")[1]
    code, out, err = run_cli(capsys, *plan, "--predict", "seconds.toml")
    assert (code, "the step" in out, err) == (output.OK, True, "")


def test_a_drawing(write: Write, capsys: Capture, tmp_path: Path) -> None:
    write("run.sh", RUN)
    code, out, _ = run_cli(capsys, "draw", "--from", "verl", "run.sh")
    assert code == output.OK
    assert "flowchart LR" in out
    file = tmp_path / "plan.svg"
    assert run_cli(capsys, "draw", "--from", "verl", "run.sh", "-o", str(file))[0] == output.OK
    assert file.read_text("utf-8").startswith("<svg")


@pytest.mark.parametrize(("library", "text"), [("verl", RUN), ("trl", TRL)])
def test_a_converted_run_is_the_same_plan(library: str, text: str, write: Write, capsys: Capture) -> None:
    write("run.sh", text)
    code, out, err = run_cli(capsys, "convert", "--from", library, "run.sh", "-o", "experiment.toml")
    assert (code, out) == (output.OK, "")
    assert "run.sh -> experiment.toml" in err
    assert run_cli(capsys, "check", "--elsewhere", "experiment.toml")[0] == output.OK
    ours = run_cli(capsys, "plan", "--from", library, "run.sh")[1]
    theirs = run_cli(capsys, "plan", "experiment.toml")[1]
    assert ours.partition("plan of ")[2] == theirs.partition("plan of ")[2] != ""
    shown = run_cli(capsys, "convert", "--from", library, "run.sh")[1]
    assert tomllib.loads(shown) == tomllib.loads(Path("experiment.toml").read_text("utf-8"))


def test_a_conversion_for_machines(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN)
    code, out, _ = run_cli(capsys, "convert", "--from", "verl", "run.sh", "--format", "json")
    answer = json.loads(out)
    assert (code, answer["findings"]) == (output.OK, [])
    assert tomllib.loads(answer["toml"])["dims"] == {"B": 256, "P": 512, "R": 512}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (WRONG, output.FINDINGS, "error[HF976]"),
        (RUN.replace("=grpo", "=opo"), output.FINDINGS, "error[HF981]"),
        (RUN.replace("gpus_per_node=8", "gpus_per_node=$(nproc)"), output.FINDINGS, "error[HF982]"),
        (RUN.replace("rollout.n=8", "rollout.n=1"), output.FINDINGS, "error[HF314]"),
        (RUN.replace('"$@"', "actor_rollout_ref.rollout.temperature=-1"), output.FINDINGS, "error[HF"),
        ("echo $(", output.FINDINGS, "error[HF970]"),
        ("\0", output.FINDINGS, "error[HF970]"),
        ("", output.FINDINGS, "error[HF970]"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "draw", "convert"] if NIGHTLY else ["plan"])
def test_what_cannot_be_lowered_is_a_finding(
    command: str, text: str, code: int, words: str, write: Write, capsys: Capture
) -> None:
    write("run.sh", text)
    exit_code, out, err = run_cli(capsys, command, "--from", "verl", "run.sh")
    assert (exit_code, words in out + err) == (code, True), out + err


def test_several_runs(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN + "\n" + RUN.replace("#!/bin/bash\n", ""))
    code, out, _ = run_cli(capsys, "plan", "--from", "verl", "run.sh")
    assert (code, out.count("plan of '")) == (output.OK, 2)
    assert run_cli(capsys, "convert", "--from", "verl", "run.sh")[0] == output.USAGE
    assert run_cli(capsys, "draw", "--from", "verl", "run.sh")[0] == output.USAGE


def test_a_file_that_cannot_be_written(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN)
    code, _, err = run_cli(capsys, "convert", "--from", "verl", "run.sh", "-o", "missing/experiment.toml")
    assert code == output.USAGE
    assert "cannot write 'missing/experiment.toml'" in err


def test_one_run_of_several_is_chosen(write: Write, capsys: Capture) -> None:
    """The other has errors, which do not concern the one that is converted."""
    write("run.sh", RUN + WRONG)
    code, _, err = run_cli(capsys, "convert", "--from", "verl", "run.sh", "--run", "3")
    assert (code, err) == (output.USAGE, "hfdsl convert: --run 3: 'run.sh' starts 2 runs\n")
    assert run_cli(capsys, "convert", "--from", "verl", "run.sh", "--run", "1")[0] == output.OK
    assert run_cli(capsys, "convert", "--from", "verl", "run.sh", "--run", "2")[0] == output.FINDINGS


def test_several_runs_are_listed_to_choose_from(write: Write, capsys: Capture) -> None:
    write("run.sh", RUN + RUN)
    code, _, err = run_cli(capsys, "convert", "--from", "verl", "run.sh")
    assert code == output.USAGE
    assert "choose --run 1 (run.sh, command 1), --run 2 (run.sh, command 2)" in err
