"""A configured run is checked whichever door it comes through: a file, a command, or Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.raised import findings_of
from hfdsl.check.report import CheckError
from hfdsl.errors import ConfigError
from hfdsl.graph.spans import Span
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import from_config, load
from hfdsl.rl.training.config_names import by_name
from hfdsl.rl.training.loop import train
from hfdsl.tools import output
from hfdsl.tools.cli import main
from tests.test_import_budget import loaded_by

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[3]
CONFIG = "tests/check/fixtures_config/hf711.toml"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_a_configuration_of_python_is_reported_at_the_line_that_hands_it_over() -> None:
    config = load(CONFIG).config
    loaded = from_config(replace(config, seed=3))
    with pytest.raises(CheckError) as caught:
        train(loaded)
    [finding] = caught.value.report.findings
    here = line_of(test_a_configuration_of_python_is_reported_at_the_line_that_hands_it_over, "from_config(")
    assert (finding.code, finding.primary.span.file, finding.primary.span.line) == ("HF711", __file__, here)
    assert [label.text for label in (finding.primary, *finding.related)] == [
        "actor.generation.max_tokens",
        "dims.R: R = 6",
    ]
    assert finding.help == ()
    assert not Path(config.output).exists()


def test_a_size_of_python_is_reported_there_too() -> None:
    loaded = from_config(replace(load(CONFIG, ["actor.generation.max_tokens=6"]).config, dims={"B": 3, "P": 8, "R": 6}))
    [report] = ConfigCheck().reports(loaded)
    [finding] = report.findings
    assert (finding.code, finding.primary.span.file, finding.primary.text) == ("HF310", __file__, "dims.B")
    ranks = "set dp to 3 and give pool 'all' 3 slots: processes [3]"
    assert finding.help == ("set B to 2 or 4: every split and requirement then holds", ranks)


@pytest.mark.parametrize("command", ["plan", "draw", "run", "train"])
def test_commands_report_before_they_start(command: str, capsys: Capture) -> None:
    assert main([command, CONFIG]) == output.FINDINGS
    captured = capsys.readouterr()
    assert "error[HF711]" in captured.out + captured.err
    assert "  = help: set actor.generation.max_tokens to 6\n" in captured.out + captured.err


@pytest.mark.parametrize(("command", "code"), [("plan", output.OK), ("draw", output.OK), ("run", output.FINDINGS)])
def test_a_plan_that_is_only_shown_needs_no_files(command: str, code: int, capsys: Capture) -> None:
    assert main([command, "tests/check/fixtures_config/hf902_no_file.toml"]) == code
    captured = capsys.readouterr()
    assert ("error[HF902]" in captured.out + captured.err) == (code != output.OK)


def test_a_lag_that_a_loss_does_not_correct_for_is_reported_at_its_key(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "run.toml"
    file.write_text(Path("examples/lagged_grpo/grpo.toml").read_text().replace("lag = 4", "lag = 9"))
    assert main(["check", "--elsewhere", str(file)]) == output.FINDINGS
    assert f"corrects for 8 only\n  --> {file}:6:24\n" in capsys.readouterr().out


def test_what_all_dataflows_of_a_run_share_is_reported_once() -> None:
    changes = ["actor.generation.max_tokens=6", "deployment.default.mesh={ dp = 4 }"]
    source = '{ kind = "JsonLines", path = "tests/check/fixtures_config/data/words.jsonl" }'
    loaded = load(CONFIG, [*changes, f"evaluation={{ source = {source} }}"])
    run, evaluation = ConfigCheck().reports(loaded)
    assert (run.codes, evaluation.codes) == (("HF501",), ())


CHECKED_RUN = """
from hfdsl.tools.cli import main
assert main(["run", "tests/check/fixtures_config/hf711.toml"]) == 1
"""


def test_a_mistake_ends_a_run_before_anything_heavy_is_loaded() -> None:
    assert loaded_by(CHECKED_RUN) == []


def test_places_are_those_of_the_file() -> None:
    span = load(CONFIG).places
    assert span is not None
    assert span.span("dims.B") == Span(CONFIG, 5, 9, 5, 10)


SPELLING = "examples/spelling.toml"
PLACEMENTS = """
[deployment]
pools.all = { processes = [2], gpu = false }
roles.actr.pool = "all"
roles.reference.pool = "al"
roles.reward = { pool = "all", mesh = { dpp = 2 } }
[checkpoints]
"""
ONE_DEFAULT = """
[deployment]
pools.all = { processes = [2], gpu = false }
default.pool = "al"
[checkpoints]
"""


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        pytest.param(
            {"seed = 0": "sed = 0", "R = 6 }\n": "Q = 6, S = 6 }\n", "rows = 64": 'rows = "$actr.x"'},
            ["no dim 'Q'", "no dim 'S'", "no field 'sed'", "'$actr.x' refers to 'actr.x'"],
            id="dims, fields and references",
        ),
        pytest.param(
            {"seed = 0": "sed = 0", "[checkpoints]": "[refrence]\nx = 1\n[judge]\nx = 1\n[checkpoints]"},
            ["no field 'sed'", "no field 'refrence'", "no role 'judge'"],
            id="tables of no role",
        ),
        pytest.param(
            {"seed = 0": "sed = 0", "grpo:grpo": "grpo:gpro", "every = 20\n\n[actor]": "every = -1\n\n[actor]"},
            ["has no attribute 'gpro'", "no field 'sed'", "'checkpoints.every' must be at least 1, got -1"],
            id="a dataflow that does not exist",
        ),
        pytest.param(
            {"seed = 0": "sed = 0", "group = 8": "grup = 8"},
            ["no field 'sed'", "no field 'grup' in 'options'"],
            id="options",
        ),
        pytest.param(
            {"seed = 0": "sed = 0", 'Verifier"': 'Verifer"\nactr = "a:b"'},
            ["no field 'sed'", "has no attribute 'Verifer'", "has no role 'actr'"],
            id="classes of roles",
        ),
        pytest.param(
            {'deployment = "examples/deployments/colocated.toml"\n': "", "[checkpoints]": PLACEMENTS},
            ["no role 'actr' to place", "no pool 'al'", "has no axis 'dpp'"],
            id="placements",
        ),
        pytest.param(
            {'deployment = "examples/deployments/colocated.toml"\n': "", "[checkpoints]": ONE_DEFAULT},
            ["no pool 'al'"],
            id="a pool of the default placement is one mistake",
        ),
        pytest.param(
            {"seed = 0": 'seed = "$data.sed"', "rows = 64": 'rows = "$seed"'},
            ["'$data.sed' refers to 'data.sed'"],
            id="a reference to a broken one is one mistake",
        ),
    ],
)
def test_mistakes_that_do_not_depend_on_each_other_are_reported_together(
    changes: Mapping[str, str], messages: Sequence[str], tmp_path: Path
) -> None:
    text = Path(SPELLING).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (file := tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        ConfigCheck().load(str(file), (), by_name)
    findings = findings_of(caught.value)
    assert len(findings) == len(messages)
    for message in messages:
        [finding] = (finding for finding in findings if message in finding.message)
        line = text.splitlines()[finding.primary.span.line - 1]
        assert any(part in line for new in changes.values() for part in new.splitlines() if part), line


def test_a_change_on_the_command_line_counts_where_a_name_is_wrong(tmp_path: Path) -> None:
    text = Path(SPELLING).read_text().replace("steps = 60\n", "").replace("grpo:grpo", "grpo:gpro")
    (file := tmp_path / "run.toml").write_text(text)
    for changes, missing in (((), True), (("steps=3",), False)):
        with pytest.raises(ConfigError) as caught:
            ConfigCheck().load(str(file), changes, by_name)
        assert any("'steps' (int) is missing" in f.message for f in findings_of(caught.value)) == missing
