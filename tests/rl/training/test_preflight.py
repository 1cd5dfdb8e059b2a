"""A configuration before its run: its packages, its text, its meshes and its steps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hfdsl.errors import ConfigError, PackageError
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import load
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.preflight import packages, requirements
from hfdsl.rl.training.toml.tables import read_toml
from tests.rl.training.preflight_runs import findings, line, only, project, source
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here


def test_the_configuration_is_clean_before_it_is_changed() -> None:
    assert findings(RUN) == []


def test_a_missing_package_comes_with_an_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    monkeypatch.setattr(packages, "is_installed", lambda package: False)
    gym = RUN.replace('{ kind = "JsonLines", path = "words.jsonl" }', '{ kind = "ReasoningGym", name = "a", size = 9 }')
    top = 'tensorboard = true\nwandb = { project = "a", mode = "offline" }\nmlflow = { experiment = "a" }\n'
    lora = "[actor]\nlora = { rank = 2 }\n"
    missing = [
        finding
        for text in (top + gym.replace("[actor]\n", lora), source("Dataset", "a/b"))
        for finding in findings(text)
        if finding.code == "HF710"
    ]
    named = dict[str, str]()
    for finding in missing:
        [package], [extra] = re.findall(r"package (\w+),", finding.message), re.findall(r"\[(\w+)\]", finding.notes[0])
        named[package.replace("_", "-")] = extra
    assert named.keys() == {"reasoning-gym", "tensorboardX", "wandb", "mlflow", "peft", "datasets"}
    for name, extra_name in named.items():
        assert any(needed.startswith(name) for needed in extras["optional-dependencies"][extra_name]), name


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_a_run_without_a_package_that_every_role_needs(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "is_installed", lambda package: package != absent)
    Path("run.toml").write_text(RUN)
    with pytest.raises(PackageError, match=rf"HF990: the ready-made roles need {absent}, .*'hfdsl\[rl\]'"):
        train(load("run.toml"))


def test_files_of_this_machine_are_not_asked_for_elsewhere() -> None:
    assert findings(source("JsonLines", "nowhere.jsonl"), elsewhere=True) == []


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a = [1\n", 1, "it is not TOML: Unclosed array"),
        ("a = True\n", 1, "TOML writes true and false"),
        ("a = null\n", 1, "TOML has no null"),
        ("a = 1\nb = x/y\n", 2, "a string has quotes"),
        ("a: 1\n", 1, "TOML writes KEY = VALUE"),
        ("a = \u201cx\u201d\n", 1, "a string has straight quotes"),
        ('a = "x\n', 1, "the string has no end"),
        ("a = 1\nb = 2\na = 3\n", 3, "'a' is there twice, already in line 1"),
        ("[a]\nx = 1\n[b]\n[a]\n", 4, "'a' is there twice, already in line 1"),
    ],
)
def test_a_text_that_is_no_toml_says_what_to_write(text: str, place: int, problem: str) -> None:
    Path("run.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml("run.toml")
    span: Any = caught.value.span
    assert (span.line, problem in caught.value.message) == (place, True)


def test_a_file_in_another_encoding_has_the_line_of_its_first_other_byte() -> None:
    Path("run.toml").write_bytes("a = 1\n# naïve\n".encode("latin-1"))
    with pytest.raises(ConfigError, match="it is not UTF-8") as caught:
        read_toml("run.toml")
    assert str(caught.value.span) == "run.toml:2"


def test_a_byte_order_mark_is_passed_over() -> None:
    Path("run.toml").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_toml("run.toml") == {"a": 1}


@pytest.mark.parametrize("placed", ["default", "roles.actor"])
def test_pipeline_stages_of_a_model_are_one_of_the_mesh(placed: str) -> None:
    default = "" if placed == "default" else 'default = { pool = "all" }\n'
    mesh = f'{default}{placed} = {{ pool = "all", mesh = {{ pp = 2, dp = 2 }} }}\n'
    text = RUN.replace("processes = [2]", "processes = [4]").replace('default = { pool = "all" }\n', mesh)
    found = [finding for finding in findings(text) if finding.code == "HF813"]
    assert {finding.primary.span.line for finding in found} == {line(text, "pp = 2")}
    assert found[0].message.startswith("'actor': pp = 2 does not divide the model")


def test_a_step_that_a_run_does_not_take_is_not_recorded() -> None:
    text = RUN.replace("steps = 2\n", "steps = 2\nrecord = [1, 2, 3]\n")
    message = "step 3 is to be recorded, and the run ends after step 2"
    assert only(text) == ("HF722", line(text, "record = "), message)
    assert ConfigCheck().reports(load("run.toml", ["steps=1"]))[0].codes == ()  # a trial
    assert findings(text.replace("[1, 2, 3]", "[2]")) == []
