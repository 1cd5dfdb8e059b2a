"""The whole text of some reports, as people read it; ``HFDSL_UPDATE=1`` writes the expected texts anew."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MESSAGES = {
    "definition": "fixtures.hf104_bad",
    "column": "fixtures.hf201_bad",
    "record": "fixtures.hf204_bad",
    "computation": "fixtures.hf208_bad",
    "dim": "fixtures.hf210_bad",
    "rows": "fixtures.hf212_bad",
    "ragged": "fixtures.hf214_bad",
    "dtype": "fixtures.hf220_bad",
    "optional": "fixtures.hf231_bad",
    "absent": "fixtures.hf231_absent_bad",
    "open_size": "fixtures.hf319_bad",
    "broadcast": "fixtures.hf215_bad",
    "crossed": "fixtures.hf230_bad",
    "outsider": "fixtures.hf607_bad",
    "sent": "fixtures.hf802_bad",
    "requirement": "fixtures.hf322_bad",
    "kinds": "fixtures.hf401_bad",
    "collect": "fixtures.hf405_bad",
    "mesh_and_pool": "fixtures.hf501_bad",
    "place": "fixtures.hf507_bad",
    "cluster": "fixtures.hf502_bad",
    "tensor_group": "fixtures.hf503_bad",
    "gpu_memory": "fixtures.hf504_gib_bad",
    "model": "fixtures.hf512_bad",
    "row_arithmetic": "joint_rows",
    "all_at_once": "many_mistakes",
}


def rendered(module: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(HERE.parents[1])  # paths are told from here
    program: Any = importlib.import_module(f"tests.check.{module}")
    return re.sub(r"\d+\.\d ms\)$", "? ms)", str(program.report())) + "\n"


@pytest.mark.parametrize("name", MESSAGES)
def test_the_text_of_a_report(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, text = HERE / "messages" / f"{name}.txt", rendered(MESSAGES[name], monkeypatch)
    if os.environ.get("HFDSL_UPDATE"):
        expected.parent.mkdir(exist_ok=True)
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text("utf-8")


def test_every_expected_text_is_of_a_report() -> None:
    assert sorted(file.stem for file in (HERE / "messages").glob("*.txt")) == sorted(MESSAGES)
