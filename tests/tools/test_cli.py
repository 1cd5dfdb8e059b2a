"""The commands: what they print, and their exit codes."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfdsl
import hfdsl as hf
from hfdsl.tools import commands, output, stepping
from hfdsl.tools.cli import main
from tests.test_import_budget import loaded_by

EXAMPLES = Path(__file__).parents[2] / "examples"
SPELLING, TWO = EXAMPLES / "spelling.toml", EXAMPLES / "deployments/colocated.toml"
Capture = pytest.CaptureFixture[str]


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def parsed(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# -- check


def test_check_is_clean(program: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "check", "shouting.py:experiment")
    assert (code, err) == (output.OK, "")
    assert out.startswith("check of 'shout': no findings")


def test_check_finds(program: str, capsys: Capture) -> None:
    code, out, _ = run_cli(capsys, "check", "shouting.py:experiment", "--set", "B=3")
    assert code == output.FINDINGS
    assert out.startswith("error[HF310]")
    assert "\033" not in out


def test_check_for_machines(program: str, capsys: Capture) -> None:
    assert run_cli(capsys, "check", "shouting.py:experiment", "--format", "json") == (output.OK, "", "")
    code, out, _ = run_cli(capsys, "check", "shouting.py:experiment", "--format", "json", "--set", "B=3")
    assert code == output.FINDINGS
    assert {finding["code"] for finding in parsed(out)} == {"HF310"}


def test_a_wrong_declaration_is_a_finding(write: Callable[[str, str], str], capsys: Capture) -> None:
    file = write("declared.py", "import hfdsl as hf\nclass Bad(hf.Batch):\n    x: int\n")
    code, out, err = run_cli(capsys, "check", file)
    assert (code, out) == (output.FINDINGS, "")
    assert err.startswith("error[HF1")
    assert "declared.py:3" in err
    code, out, _ = run_cli(capsys, "check", file, "--format", "json")
    assert code == output.FINDINGS
    assert parsed(out)[0]["primary"]["line"] == 3


@pytest.mark.parametrize("argv", [("check", "nothing.py"), ("plan", "shouting.py:shout"), ("explain", "HF999")])
def test_usage(program: str, capsys: Capture, argv: tuple[str, ...]) -> None:
    code, out, err = run_cli(capsys, *argv)
    assert (code, out) == (output.USAGE, "")
    assert err.startswith(f"hfdsl {argv[0]}: ")


@pytest.mark.parametrize(
    ("argv", "suggested"),
    [
        (["chekc", "x.py"], "check"),
        (["check", "x.py", "--sett", "B=3"], "--set"),
        (["check", "x.py", "--sett=B=3"], "--set"),
        (["plan", "x.py", "--format", "jsn"], "json"),
        (["--verzion"], "--version"),
        (["train", "x.toml", "--accept", "dat"], "data"),
        (["train", "x.toml", "--backend", "ray"], "--set backend=ray"),
        (["train", "--backend", "ray", "x.toml"], "--set backend=ray"),
        (["train", "x.toml", "--backend"], "--set backend=VALUE"),
        (["train", "--seed", "x.toml"], "--set seed=VALUE"),
        (["train", "x.toml", "--bakcend=ray"], "--set backend=ray"),
        (["check", "x.toml", "--bucket-bytes", "64"], "--set bucket_bytes=64"),
        (["plan", "x.toml", "--actor.training.clip-norm", "1"], "--set actor.training.clip_norm=1"),
        (["train", "x.toml", "--verify-sinc", "4"], "--verify-sync"),
        (["train", "run.toml", "--resum"], "--resume"),
    ],
)
def test_a_misspelled_word_gets_a_suggestion(argv: list[str], suggested: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == output.USAGE
    assert capsys.readouterr().err.endswith(f"; did you mean '{suggested}'?\n")


def test_fields_of_a_run_are_suggested_for_its_file_only(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["check", "x.py", "--backend", "ray"])
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: --backend ray\n")


def test_an_option_of_another_command_is_refused_by_the_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["requires", "x.py", "--zzz"])
    assert capsys.readouterr().err.endswith("hfdsl requires: error: unrecognized arguments: --zzz\n")


def test_wrong_options_are_usage(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "x.py", "--steps", "0"])
    assert caught.value.code == output.USAGE


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["run", "x.py", "--steps", "many"], "argument --steps: 'many' is not a whole number"),
        (["run", "x.py", "--seed", "1.5"], "argument --seed: '1.5' is not a whole number"),
        (["simulate", "x.py", "--keep", "half"], "argument --keep: 'half' is not a number"),
        (["mcp", "--patience", "long"], "argument --patience: 'long' is not a number"),
    ],
)
def test_an_option_that_is_no_number_is_named(argv: list[str], problem: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["check", "--env", "A=1"], "--env goes with --from: "),
        (["check", "--fix", "--env", "A=1"], "--env goes with --from: "),
        (["plan", "--env", "A=1"], "--env goes with --from: "),
        (["draw", "--env", "A=1"], "--env goes with --from: "),
        (["plan", "--bandwidth", "gpu=1e9"], "--bandwidth and --latency go with --predict: "),
        (["plan", "--latency", "0"], "--bandwidth and --latency go with --predict: "),
    ],
)
def test_an_option_without_effect_is_usage(argv: list[str], problem: str, program: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, argv[0], f"{program}:experiment", *argv[1:])
    assert (code, out) == (output.USAGE, "")
    assert problem in err


def test_an_error_names_its_own_target(capsys: Capture, program: str) -> None:
    _, _, err = run_cli(capsys, "schema", f"{program}:missing")
    assert f"check of '{program}:missing': 1 error" in err


@pytest.mark.parametrize("command", ["run", "simulate"])
@pytest.mark.parametrize("seed", ["-1", "1.5", "true", str(2**63)])
def test_a_seed_that_is_none_is_usage(command: str, seed: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "x.py", f"--seed={seed}"])
    assert caught.value.code == output.USAGE
    assert "argument --seed: " in capsys.readouterr().err


@pytest.mark.parametrize("field", ["seed", "data.seed", "actor.model.seed", "data.source.seed"])
@pytest.mark.parametrize("seed", ["-1", "1.5", "true", str(2**63)])
def test_a_seed_of_a_configuration_has_the_same_bounds(field: str, seed: str, capsys: Capture) -> None:
    set_seed = ("--set", f"deployment={TWO}", "--set", f"{field}={seed}")
    code, out, err = run_cli(capsys, "check", "--elsewhere", str(SPELLING), *set_seed)
    assert code == output.FINDINGS
    assert re.search(rf"error\[HF901\]: (--set )?{field} ?= ?{seed}: ", out + err)


@pytest.mark.parametrize("command", ["check", "plan", "draw", "run"])
def test_a_size_of_a_configuration_is_reported_without_a_line_of_who_started_the_command(
    command: str, capsys: Capture
) -> None:
    alone = ("--elsewhere",) if command == "check" else ()  # the example's model is made by another
    code, out, err = run_cli(capsys, command, *alone, str(SPELLING), "--set", f"deployment={TWO}", "--set", "dims.B=0")
    assert code == output.FINDINGS
    [finding] = [block for block in (out + err).split("\n\n") if "error[HF901]" in block]
    assert "error[HF901]: --set dims.B=0: 'dims.B' must be at least 1, got 0" in finding
    assert "-->" not in finding


def test_a_bug_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(arguments: object) -> int:
        raise RuntimeError("inside")

    monkeypatch.setattr(commands, "explain", broken)
    code, _, err = run_cli(capsys, "explain")
    assert code == output.BUG
    assert "RuntimeError: inside" in err
    assert "this is a bug in hfdsl" in err


def test_color_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    terminal: Any = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.colored(terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.colored(terminal)


def test_a_launch_on_ray_is_announced_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Role(hf.Worker): ...

    pools = hf.ResourcePool([2, 2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)
    two = hf.Deployment(**{f"role{i}": hf.place(Role, pool=pools[i % 2]) for i in range(3)})
    for stream, backend, format_, text in [
        (Terminal(), "ray", "human", "starting 5 processes on Ray\n"),
        (Terminal(), "ray", "json", ""),
        (Terminal(), "local", "human", ""),
        (io.StringIO(), "ray", "human", ""),
    ]:
        monkeypatch.setattr(sys, "stderr", stream)
        output.show_start(two, backend, argparse.Namespace(format=format_))
        assert stream.getvalue() == text


def test_run_announces_its_launch(program: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    announced = []
    monkeypatch.setattr(stepping, "show_start", lambda deployment, backend, arguments: announced.append(backend))
    assert run_cli(capsys, "run", "shouting.py:experiment", "--steps", "1")[0] == output.OK
    assert announced == ["local"]


def test_check_against_a_cluster(program: str, write: Callable[[str, str], str], capsys: Capture) -> None:
    small = write("small.toml", "[[nodes]]\ncount = 1\ncpus = 0.3\n")
    large = write("large.toml", "[[nodes]]\ncount = 2\ncpus = 64\n")
    code, out, _ = run_cli(capsys, "check", "shouting.py:experiment", "--cluster", small)
    assert code == output.FINDINGS
    assert out.startswith("error[HF505]")
    assert "small.toml:1" in out
    assert run_cli(capsys, "check", "shouting.py:experiment", "--cluster", large)[0] == output.OK
    assert run_cli(capsys, "check", "shouting.py:shout", "--cluster", small)[0] == output.OK  # nothing is placed
    assert run_cli(capsys, "plan", "shouting.py:experiment", "--cluster", small)[0] == output.FINDINGS
    assert run_cli(capsys, "plan", "shouting.py:experiment", "--cluster", large)[0] == output.OK


def test_the_cluster_of_the_command_goes_over_the_experiments(
    program: str, write: Callable[[str, str], str], capsys: Capture
) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\ncluster = hf.Cluster(hf.Nodes(1, cpus=0.1))\n")
        file.write("crowded = hf.Experiment(shout, deployment, dims={B: 4}, cluster=cluster)\n")
    large = write("large.toml", "[[nodes]]\ncount = 2\ncpus = 64\n")
    assert run_cli(capsys, "check", "shouting.py:crowded")[0] == output.FINDINGS
    assert run_cli(capsys, "draw", "shouting.py:crowded")[0] == output.FINDINGS
    assert run_cli(capsys, "check", "shouting.py:crowded", "--cluster", large)[0] == output.OK


def test_a_cluster_that_cannot_be_read_is_usage(
    program: str, write: Callable[[str, str], str], capsys: Capture
) -> None:
    odd = write("odd.toml", "[[nodes]]\ncount = 1\ncpu = 4\n")
    code, out, err = run_cli(capsys, "check", "shouting.py:experiment", "--cluster", odd)
    assert (code, out) == (output.USAGE, "")
    assert err == "hfdsl check: odd.toml: table 1 of [[nodes]]: unknown key 'cpu'; did you mean 'cpus'?\n"


# -- plan


def test_plan(program: str, capsys: Capture) -> None:
    code, out, _ = run_cli(capsys, "plan", "shouting.py:pondering", "--set", "P=512")
    assert code == output.OK
    assert out.startswith("check of 'ponder': no findings")
    assert "plan of 'ponder'  B=4 P=512" in out


def test_plan_for_machines(program: str, capsys: Capture) -> None:
    code, out, _ = run_cli(capsys, "plan", "shouting.py:pondering", "--format", "json")
    [result] = parsed(out)
    assert (code, result["findings"]) == (output.OK, [])
    plan = result["plan"]
    assert plan["dims"] == {"B": 4, "P": 256}
    assert [step["label"] for step in plan["steps"]] == ["actor.think", "judge.weigh"]
    assert plan["processes"][0]["roles"] == {"actor": "Mesh(pp=1 dp=2 tp=2)"}
    [weighed] = [edge for edge in plan["edges"] if edge["columns"] == ["text", "hidden"]]
    assert weighed["bytes"] == 4 * 2 * 256 * 4


def test_plan_with_findings(program: str, capsys: Capture) -> None:
    code, out, _ = run_cli(capsys, "plan", "shouting.py:experiment", "--set", "B=3")
    assert code == output.FINDINGS
    assert "plan of" not in out
    code, out, _ = run_cli(capsys, "plan", "shouting.py:experiment", "--set", "B=3", "--format", "json")
    [result] = parsed(out)
    assert (code, result["plan"]) == (output.FINDINGS, None)
    assert result["findings"]


# -- run


def test_run_prints_a_line_a_step(program: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "run", "shouting.py:experiment", "--steps", "2")
    assert (code, err) == (output.OK, "")
    first, second = out.splitlines()
    assert first.startswith("step 0  0.")
    assert "(Questions(text: 4 objects), Lengths(length: 4 objects))" in first
    assert "actor.answer" in first
    assert second.startswith("step 1  ")


def test_run_for_machines_until_the_batches_end(program: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "run", "shouting.py:experiment", "--steps", "9", "--format", "json")
    steps = parsed(out)
    assert code == output.OK
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert set(steps[0]["nodes"]) == {"actor.answer", "judge.score"}
    assert err == "the batches of 'shouting.py:experiment' end after 3 steps\n"


def test_run_without_batches(program: str, capsys: Capture) -> None:
    code, _, err = run_cli(capsys, "run", "shouting.py:pondering")
    assert code == output.USAGE
    assert "the experiment has no batches to run on" in err


def test_run_reports_a_failing_body(program: str, capsys: Capture) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\nfailing = hf.Experiment(ponder, deployment, dims={B: 4, P: 256}, batches=batches)\n")
    code, out, err = run_cli(capsys, "run", "shouting.py:failing")
    assert (code, out) == (output.FINDINGS, "")
    assert err.startswith("error[HF806] at step 0: ")
    code, out, _ = run_cli(capsys, "run", "shouting.py:failing", "--format", "json")
    assert (code, parsed(out)[0]["error"]["code"]) == (output.FINDINGS, "HF806")


def test_run_reports_failing_batches(program: str, capsys: Capture) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\ndef none():\n    yield next(batches())\n    raise OSError('disk')\n")
        file.write("failing = hf.Experiment(shout, deployment, dims={B: 4}, batches=none)\n")
    code, out, err = run_cli(capsys, "run", "shouting.py:failing")
    assert code == output.FINDINGS
    assert out.startswith("step 0")
    assert err.startswith("the batches of 'shouting.py:failing' fail at step 1")
    assert err.endswith("OSError: disk\n")


def test_run_on_ray_gives_the_same(ray_cluster: Any, program: str, capsys: Capture) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\nhere = hf.ResourcePool([2], use_gpu=False)\n")
        file.write("small = hf.Deployment(actor=hf.place(Actor, pool=here), judge=hf.place(Judge, pool=here))\n")
        file.write("on_ray = hf.Experiment(shout, small, dims={B: 4}, batches=batches)\n")
    results = []
    for backend in ("local", "ray"):
        code, out, _ = run_cli(
            capsys, "run", "shouting.py:on_ray", "--steps", "1", "--backend", backend, "--format", "json"
        )
        assert code == output.OK
        results.append(next(line for line in parsed(out) if "step" in line)["result"])
    assert results[0] == results[1]


def test_ctrl_c_ends_a_run(program: str) -> None:
    with Path(program).open("a", encoding="utf-8") as file:
        file.write("\nimport itertools\nendless = hf.Experiment(shout, deployment, dims={B: 4},")
        file.write(" batches=lambda: itertools.cycle(batches()))\n")
    command = [sys.executable, "-m", "hfdsl", "run", "shouting.py:endless"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("step 0")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == output.INTERRUPTED
    assert err.startswith("interrupted after ")
    assert "Traceback" not in err


# -- explain


def test_explain_a_code(capsys: Capture) -> None:
    code, out, _ = run_cli(capsys, "explain", "hf310")
    assert code == output.OK
    assert "HF310" in out
    assert run_cli(capsys, "explain", "310")[1] == out
    [page] = parsed(run_cli(capsys, "explain", "HF310", "--format", "json")[1])
    assert (page["code"], page["severity"]) == ("HF310", "error")


def test_explain_without_a_code_lists_all(capsys: Capture) -> None:
    _, out, _ = run_cli(capsys, "explain")
    assert "HF310  rows that do not split evenly\n" in out
    [table] = parsed(run_cli(capsys, "explain", "--format", "json")[1])
    assert len(table) == len(out.splitlines())


def test_explain_suggests(capsys: Capture) -> None:
    assert "did you mean HF310" in run_cli(capsys, "explain", "HF3100")[2]


# -- the program itself


def test_version() -> None:
    process = subprocess.run([sys.executable, "-m", "hfdsl", "--version"], capture_output=True, text=True, check=True)
    assert process.stdout == f"hfdsl {hfdsl.__version__}\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hfdsl", "explain"]
    process = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert process.stderr == ""


@pytest.mark.parametrize(
    "argv",
    [
        ["check", "shouting.py:experiment"],
        ["plan", "shouting.py:pondering"],
        ["draw", "shouting.py:pondering"],
        ["run", "shouting.py:experiment"],
        ["explain", "HF310"],
    ],
)
def test_light_commands_load_nothing_heavy(program: str, argv: list[str]) -> None:
    assert loaded_by(f"from hfdsl.tools.cli import main\nassert main({argv!r}) == 0") == []
