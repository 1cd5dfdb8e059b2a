"""The tutorial runs as the page shows it, its test class passes, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hfdsl.testing import LAWS, strategies
from tests.docs.blocks import ROOT
from tests.docs.programs import PageRun

PAGE = ROOT / "docs" / "testing.md"


def test_the_tutorial_runs_and_its_class_has_a_test_for_each_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = PageRun(PAGE, tmp_path, whole=False)
    run.run()
    lawful = vars(run.module)["TestOverDpAndTp"]
    tests = [name for name in vars(lawful) if name.startswith("test_")]
    assert tests == [f"test_{law.id.lower()}_{law.name}" for law in LAWS]
    lawful().test_l5_order()


def test_the_tables_are_complete() -> None:
    text = PAGE.read_text("utf-8")
    laws = re.findall(r"^\| (L\d+) \| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert laws == [(law.id, law.name, law.says) for law in LAWS]
    _, _, table = text.partition("| strategy | gives |")
    named = set(re.findall(r"`(\w+)\(", table.partition("\n\n")[0]))
    assert named - {"from_type"} == {name for name in strategies.__all__ if name.islower()}
