"""A configured run is checked whichever door it comes through: a file, a command, or Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.report import CheckError
from hfdsl.graph.spans import Span
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import from_config, load
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
    assert finding.help == ("set B to 2 or 4: every split and requirement then holds",)


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
