"""What is read from the user's text: spans of one expression."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.check import sources
from hfdsl.check.findings import Edit
from hfdsl.check.repair.edits import spelt, swap
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
    assert sources.unpacks(Span(str(file), 1, 4, 1, 4 + len(text))) == unpacked


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("y = x is None", "is"),
        ("y = x is not None", "is not"),
        ("y = None is not x", "is not"),
        ("y = (\n    x\n    is None\n)", "is"),
        ("y = (\n    None is\n    x\n)", "is"),
        ("y = x is None is not z", "is"),
        ("y = None is x is not z", "is"),
        ("y = x is z", None),
        ("y = x == None", None),
        ("y = z is None and x", None),
    ],
)
def test_what_is_compared_with_none(tmp_path: Path, text: str, operator: str | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{text}\n", encoding="utf-8")
    line = 1 + next(i for i, each in enumerate(text.splitlines()) if "x" in each)
    column = text.splitlines()[line - 1].index("x")
    assert sources.tested_for_none(Span(str(file), line, column, line, column + 1)) == operator


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ('f("ab", c)', '"cd"'),
        ("f(x, a='ab')", "'cd'"),
        ("f(ab)", None),
        ('f("ab", b="ab")', None),
        ('f("""ab""")', None),
        ('f(r"ab")', None),
        (r'f("a\x62")', None),
        ('f("a" "b")', None),
        ('"ab"', None),
    ],
)
def test_a_name_that_is_given_as_text(tmp_path: Path, text: str, new: str | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"y = {text}\n", encoding="utf-8")
    edit = spelt(Span(str(file), 1, 4, 1, 4 + len(text)), "ab", "cd")
    assert edit == (None if new is None else Edit(Span(str(file), 1, at := text.index(new[0]) + 4, 1, at + 4), new))


def test_what_stands_on_one_line_changes_places(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("f(one, two,\n  three)\n", encoding="utf-8")
    one, two, rest = (Span(str(file), 1, *place) for place in ((2, 1, 5), (7, 1, 10), (7, 2, 7)))
    assert swap(one, two) == (Edit(one, "two"), Edit(two, "one"))
    assert swap(one, rest) is None
    assert swap(rest, one) is None
