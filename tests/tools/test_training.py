"""``hfdsl train`` and ``hfdsl diff``, and a configuration as the target of other commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfdsl.plan.timeline import read_trace
from hfdsl.rl.training.toml.tables import read_toml, to_toml
from hfdsl.tools import output, stepping, training
from hfdsl.tools.cli import main
from tests.rl.training.toy import table
from tests.test_import_budget import loaded_by

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(to_toml(table(tmp_path, steps=2, output="run")))
    return "run.toml"


def run_cli(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_prints_the_configuration_and_a_line_a_step(config: str, capsys: Capture) -> None:
    code, out, err = run_cli(capsys, "train", config, "--set", "policy.optimizer.learning_rate=0.2")
    assert (code, err) == (output.OK, "")
    assert out.startswith("check of 'following': no findings")
    assert "learning_rate = 0.2\n" in out
    assert Path("run/config.toml").read_text().strip() in out
    steps = [text for text in out.splitlines() if text.startswith("step ")]
    assert [text.split()[1] for text in steps] == ["0", "1", "2"]
    assert all("score" in text for text in steps)


def test_train_announces_its_launch(config: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    announced = []
    monkeypatch.setattr(training, "show_start", lambda deployment, backend, arguments: announced.append(backend))
    assert run_cli(capsys, "train", config)[0] == output.OK
    assert announced == ["local"]


def test_train_writes_the_timelines_of_its_steps(config: str, capsys: Capture) -> None:
    code, _, err = run_cli(capsys, "train", config, "--trace", "steps.json")
    assert (code, err) == (output.OK, "")
    assert [step.number for step in read_trace(Path("steps.json").read_text())] == [0, 1]
    code, _, err = run_cli(capsys, "train", config, "--set", "output=other", "--trace", "no/such/folder.json")
    assert code != output.OK
    assert "no/such/folder.json" in err


def test_train_for_machines_and_resume(config: str, capsys: Capture) -> None:
    code, out, _ = run_cli(capsys, "train", config, "--format", "json")
    records = [json.loads(text) for text in out.splitlines()]
    assert code == output.OK
    assert [record["step"] for record in records] == [0, 1, 2]
    assert records[2]["nodes"].keys() >= {"policy.generate"}
    code, _, err = run_cli(capsys, "train", config)
    assert code == output.FINDINGS
    assert "error[HF901]: 'output': there is a run in 'run'; continue it with --resume" in err
    assert "the last complete checkpoint is run/checkpoints/step-00000002; --resume continues from it" in err
    code, out, _ = run_cli(capsys, "train", config, "--resume", "--set", "steps=3", "--format", "json")
    assert (code, [json.loads(text)["step"] for text in out.splitlines()]) == (output.OK, [3, 3])
    code, out, err = run_cli(capsys, "train", config, "--resume", "--set", "steps=3", "--format", "json")
    assert (code, out) == (output.OK, "")
    assert "step 3 was the last one; --set steps=N with more steps continues it" in err


def test_a_run_of_a_file_has_its_steps(config: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, show = list[int](), stepping._show

    def show_few(number: int, *rest: Any) -> None:
        assert number < 4, "its data has no end"
        shown.append(number)
        show(number, *rest)

    monkeypatch.setattr(stepping, "_show", show_few)
    assert run_cli(capsys, "run", config)[::2] == (output.OK, "")
    assert shown == [0, 1]
    assert run_cli(capsys, "run", config, "--steps", "3")[::2] == (output.OK, "")
    assert run_cli(capsys, "run", config, "--set", "steps=1")[::2] == (output.OK, "")
    assert shown == [0, 1, 0, 1, 2, 0]


def test_one_command_starts_a_run_and_continues_it(config: str, capsys: Capture) -> None:
    code, _, err = run_cli(capsys, "train", config, "--auto-resume")
    assert (code, err) == (output.OK, "there is no run in 'run' yet: it starts at step 0\n")
    code, out, err = run_cli(capsys, "train", config, "--auto-resume", "--set", "steps=4", "--format", "json")
    assert (code, [json.loads(text)["step"] for text in out.splitlines()], err) == (output.OK, [3, 4], "")
    code, _, err = run_cli(capsys, "train", config, "--auto-resume", "--set", "steps=5", "--set", "seed=3")
    assert (code, "  seed: 0 in the checkpoint, 3 now\n" in err) == (output.FINDINGS, True)
    code, _, err = run_cli(capsys, "train", config, "--resume", "--set", "output=runs")
    assert (code, Path("runs").exists()) == (output.FINDINGS, False)
    assert "error[HF906]: there is no run in 'runs' to continue; --auto-resume starts one" in err


def test_a_resume_of_another_configuration_is_refused(config: str, capsys: Capture) -> None:
    assert run_cli(capsys, "train", config)[0] == output.OK
    code, _, err = run_cli(capsys, "train", config, "--resume", "--set", "policy.size=12", "--set", "seed=3")
    assert code == output.FINDINGS
    assert "error[HF905]" in err
    assert "  seed: 0 in the checkpoint, 3 now\n" in err
    assert "  policy.size: 11 in the checkpoint, 12 now\n" in err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("no.toml",), "HF901]: no.toml: No such file or directory"),
        (("run.toml", "--set", "polcy.size=3"), "there is no field 'polcy'; did you mean 'policy'?"),
        (("run.toml", "--set", "policy.size=big"), "'policy.size' takes int, got 'big'"),
        (("run.toml", "--set", "algorithm=flows.py:flow"), "there is no file 'flows.py'"),
        (("run.toml", "--set", "other.size=3"), "--set other.size=3: there is no field 'other'; there are: "),
        (
            ("run.toml", "--set", "max_steps=3"),
            "--set max_steps=3: there is no field 'max_steps'; did you mean 'steps'?",
        ),
        (("run.toml", "--set", "train_batch_size=3"), "did you mean 'dims.B'?"),
        (("run.toml", "--set", "steps"), "--set steps: a change is FIELD=VALUE, such as seed=1, got 'steps'"),
        (("run.toml", "--set", "algorithm=grpo"), "; did you mean 'hfdsl.rl.dataflows.grpo:grpo'?"),
        (("run.toml", "--set", "algorithm=flows"), "'flows' is read as 'file.py:name' or 'package.module:name'"),
    ],
)
def test_a_mistake_in_the_configuration_is_reported(
    config: str, capsys: Capture, argv: tuple[str, ...], text: str
) -> None:
    code, out, err = run_cli(capsys, "train", *argv)
    assert (code, out) == (output.FINDINGS, "")
    assert text in err


def test_train_of_a_python_file_names_the_command_for_it(config: str, capsys: Capture) -> None:
    code, _, err = run_cli(capsys, "train", "flows.py:experiment")
    assert code == output.USAGE
    assert "'flows.py:experiment' is Python: 'hfdsl run flows.py:experiment' runs it" in err


def test_an_export_of_a_folder_that_is_not_there(config: str, capsys: Capture) -> None:
    code, _, err = run_cli(capsys, "export", "nowhere", "-o", "model")
    assert code == output.FINDINGS
    assert "there is no complete checkpoint in 'nowhere/checkpoints': there is no such folder" in err
    assert "check of 'nowhere': 1 error" in err


def test_a_dataflow_of_a_file(config: str, capsys: Capture) -> None:
    Path("flows.py").write_text("from tests.rl.training.toy import follow\n\nflow = follow(width=3)\n")
    code, out, _ = run_cli(capsys, "train", config, "--set", "algorithm=flows.py:flow")
    assert code == output.OK
    assert 'algorithm = "flows.py:flow"' in out


def test_a_configuration_is_a_target(config: str, capsys: Capture) -> None:
    assert run_cli(capsys, "check", config)[0] == output.OK
    code, out, _ = run_cli(capsys, "check", config, "--set", "B=5")
    assert code == output.FINDINGS
    assert "B = 5 rows do not split evenly" in out
    assert "policy.update" in run_cli(capsys, "plan", config)[1]
    assert "B: a multiple of 2" in run_cli(capsys, "requires", config)[1]
    assert "policy.update" in run_cli(capsys, "draw", config)[1]
    assert len(run_cli(capsys, "run", config, "--steps", "2")[1].splitlines()) == 2


CHECK_A_CONFIGURATION = """
from hfdsl.tools.cli import main
assert main(["check", "examples/spelling_supervised.toml"]) == 0
"""


def test_checking_a_configuration_loads_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert loaded_by(CHECK_A_CONFIGURATION) == []


def test_a_file_that_is_not_there_is_reported_without_a_line(config: str, capsys: Capture) -> None:
    nothing = "error[HF901]: nothing.toml: No such file or directory\n\ncheck of 'nothing.toml': 1 error\n"
    assert run_cli(capsys, "train", "nothing.toml")[2] == nothing
    assert run_cli(capsys, "check", "nothing.toml")[2] == nothing
    assert "-->" not in run_cli(capsys, "train", config, "--set", "deployment=nothing.toml")[2]


def test_a_finding_about_a_ready_dataflow_is_at_the_key_and_names_its_own_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(ROOT)
    code, out, _ = run_cli(capsys, "check", "--elsewhere", "examples/spelling.toml", "--set", "options.updates=3")
    assert code == output.FINDINGS
    places = [line.split()[1].partition(":")[0] for line in out.splitlines() if line.strip().startswith(("-->", ":::"))]
    assert places == ["examples/spelling.toml", *["hfdsl/rl/dataflows/grpo.py"] * 2]


def test_diff_tells_what_differs(config: str, capsys: Capture) -> None:
    assert run_cli(capsys, "train", config)[0] == output.OK
    changes = ("--set", "output=other", "--set", "policy.seed=3", "--set", "evaluation=none")
    assert run_cli(capsys, "train", config, *changes)[0] == output.OK
    code, out, _ = run_cli(capsys, "diff", "run", "other")
    assert code == output.FINDINGS
    lines = [text.split(maxsplit=1) for text in out.splitlines()]
    printed: dict[str, str] = {name: rest.strip() for name, rest in lines}
    assert printed["output"] == '"run" -> "other"'
    assert printed["policy.seed"] == "(absent) -> 3"
    assert printed["evaluation.every"] == "2 -> (absent)"
    code, out, _ = run_cli(capsys, "diff", "run", "run/config.toml")
    assert code == output.OK
    assert out == f"the {out.split()[1]} fields are the same\n"
    for places in (("run", config), (config, "run")):  # a file with the defaults that a run has written
        assert run_cli(capsys, "diff", *places) == (output.OK, out, "")
    assert '"run" -> "other"' in run_cli(capsys, "diff", config, "other")[1].splitlines()[0]
    code, out, _ = run_cli(capsys, "diff", "run", "other", "--format", "json")
    differences: dict[str, Any] = json.loads(out)
    assert differences["policy.seed"] == ["(absent)", 3]
    assert "HF901]: nothing: No such file" in run_cli(capsys, "diff", "nothing", "run")[2]


def test_the_examples_are_read_and_checked(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(ROOT)
    for place in sorted(Path("examples/deployments").glob("*.toml")):
        assert read_toml(place)
        argv = ("check", "--elsewhere", "examples/spelling.toml", "--set", f"deployment={place}")
        assert run_cli(capsys, *argv)[0] == output.OK, place


def test_a_plan_has_the_memory_of_copies(config: str, capsys: Capture) -> None:
    faults = ("--set", "backend=ray", "--set", "faults.copy_every=10", "--set", "faults.copies=peers")
    code, out, _ = run_cli(capsys, "plan", config, *faults)
    assert code == output.OK
    first, *pools = out[out.index("copies   ") :].splitlines()
    assert first.startswith("copies   every 10 steps, each on its own node")
    assert all(text.endswith("; twice while the next copy is made") for text in pools)
    code, out, _ = run_cli(capsys, "plan", config, *faults, "--format", "json")
    copies = json.loads(out)["copies"]
    assert (copies["every"], copies["copies"], len(copies["pools"])) == (10, "peers", len(pools))
    for options in (faults[:2], ("--set", "faults.copy_every=10")):  # no copies, or a backend that loses no process
        assert "copies   " not in run_cli(capsys, "plan", config, *options)[1]


def test_second_copies_need_copies(config: str, capsys: Capture) -> None:
    code, _, err = run_cli(capsys, "check", config, "--set", "faults.copies=peers")
    assert code == output.FINDINGS
    assert 'faults: copies = "peers" duplicates each copy, but without copy_every there are none; set copy_every' in err
    code, _, err = run_cli(capsys, "check", config, "--set", "faults.copies=disk")
    assert code == output.FINDINGS
    assert "HF901" in err
