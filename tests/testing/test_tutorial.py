"""The tutorial's code runs as one module, prints what the page shows, and its test class passes."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from hfdsl.testing import LAWS, strategies

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [text for written, text in fenced if written == language]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    file = tmp_path_factory.mktemp("tutorial") / "tutorial.py"
    file.write_text("\n\n".join(blocks("python")))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        names = runpy.run_path(str(file), run_name="tutorial")
    return out.getvalue(), names


def test_the_page_shows_what_its_code_prints(ran: tuple[str, dict[str, Any]]) -> None:
    shown = [block for block in blocks("") if not block.startswith("pip install")]
    assert ran[0] == "".join(shown)


def test_the_class_has_a_test_for_each_law(ran: tuple[str, dict[str, Any]]) -> None:
    tests = [name for name in vars(ran[1]["TestOverDpAndTp"]) if name.startswith("test_")]
    assert tests == [f"test_{law.id.lower()}_{law.name}" for law in LAWS]
    ran[1]["TestOverDpAndTp"]().test_l5_order()


def test_the_tables_are_complete() -> None:
    laws = re.findall(r"^\| (L\d+) \| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert laws == [(law.id, law.name, law.says) for law in LAWS]
    _, _, table = PAGE.partition("| strategy | gives |")
    named = set(re.findall(r"`(\w+)\(", table.partition("\n\n")[0]))
    assert named - {"from_type"} == {name for name in strategies.__all__ if name.islower()}
