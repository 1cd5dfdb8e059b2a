"""The whole text of every report and error, as people read it; ``HFDSL_UPDATE=1`` rewrites the expected texts."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.check import raising
from tests.check.fixture_programs import config_names
from tests.check.test_fixtures import NAMES

HERE = Path(__file__).parent
REPORTS = {name: f"fixtures.{name}" for name in NAMES} | {
    "row_arithmetic": "joint_rows",
    "all_at_once": "many_mistakes",
}
RAISED = raising.NAMES  # held to their texts in test_fixtures_run.py


def rendered(module: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(HERE.parents[1])  # paths are relative to it
    program: Any = importlib.import_module(f"tests.check.{module}")
    return steady(str(program.report()))


def steady(text: str) -> str:
    """The text without what differs from run to run: times, addresses, random numbers, what other tests registered."""
    text = re.sub(r"\d+\.\d ms\)$", "? ms)", text)
    text = re.sub(r"takes \d+ the first time, and \d+ the second", "takes ? the first time, and ? the second", text)
    text = re.sub(r"process \d+ on '.*?', which began [\d: -]+,", "process ? on '?', which began ?,", text)
    text = re.sub(r"\d+\.\d s (after it was called: pid) \d+ on node \S+", r"? s \1 ? on node ?", text)
    text = re.sub(r"pid \d+ on node \d\S+", "pid ? on node ?", text)
    text = text.replace("MY_PROTO_111, ", "")  # listed where the page of HF111 was run before
    return re.sub(r"0x[0-9a-f]{6,}", "0x?", text) + "\n"


def expected(name: str, text: str) -> str:
    file = HERE / "messages" / f"{name}.txt"
    if os.environ.get("HFDSL_UPDATE"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return file.read_text("utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_the_text_of_a_report(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = rendered(REPORTS[name], monkeypatch)
    assert text == expected(name, text)


def test_every_expected_text_is_of_a_report_or_error() -> None:
    assert sorted(file.stem for file in (HERE / "messages").glob("*.txt")) == sorted(
        {*REPORTS, *RAISED, *(f"config_{name}" for name in config_names())}
    )
