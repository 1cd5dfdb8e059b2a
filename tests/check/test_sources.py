"""What is read from the user's text: spans of one expression."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.check.sources import unpacks
from hfdsl.graph.spans import Span


@pytest.mark.parametrize(
    ("text", "unpacked"),
    [
        ("f(a=x, **d)", "d"),
        ("f(**d, **e)", "d"),
        ('{"a": x, **d.b}', "d.b"),
        ("f(x, a=y)", None),
        ('{"a": x}', None),
        ("[*x]", None),
        ("f(", None),
    ],
)
def test_what_a_call_or_dict_unpacks(tmp_path: Path, text: str, unpacked: str | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"y = {text}\n", encoding="utf-8")
    assert unpacks(Span(str(file), 1, 4, 1, 4 + len(text))) == unpacked
