"""Edits of a TOML text make just their change: ``tomllib`` reads the changed table, and no other line differs."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.check.repair.edits import apply
from hfdsl.rl.training.toml.changes import FieldChange, RenameField, SetField, edits_of
from hfdsl.rl.training.toml.spans import spans_of
from hfdsl.rl.training.toml.values import value_text
from tests.rl.training.test_toml_spans import documents, flat

NEW: list[Any] = [7, -0.5, True, "", 'a "b" \\ ü #', [1, [2]], {"x y": 1}]


def edited(text: str, change: FieldChange) -> str:
    edits = edits_of(change, spans_of("run.toml", text))
    assert edits
    return apply(text, edits)


def parts(path: str) -> list[str | int]:
    """``a[0].b`` as ``["a", 0, "b"]``; names may have a bracket themselves, and no dot."""
    steps: list[str | int] = []
    for part in path.split("."):
        name, *indices = part.split("[") if part.endswith("]") and part != "]" else [part]
        steps += [name, *(int(index.rstrip("]")) for index in indices)]
    return steps


def holder(table: Any, path: str) -> tuple[Any, str | int]:
    *above, last = parts(path)
    for step in above:
        table = table[step]
    return table, last


@given(documents(), st.sampled_from(NEW), st.data())
def test_any_value_is_replaced(text: str, value: Any, data: st.DataObject) -> None:
    values = list(spans_of("run.toml", text).values)
    if not values:
        return
    path = data.draw(st.sampled_from(values))
    expected = tomllib.loads(text)
    inner, last = holder(expected, path)
    inner[last] = value
    assert tomllib.loads(edited(text, SetField(path, value))) == expected


@given(documents(), st.sampled_from(["\n", "\r\n"]), st.data())
def test_any_table_that_is_written_takes_a_new_member(text: str, newline: str, data: st.DataObject) -> None:
    if '"""' in text or "'''" in text:  # their line ends are a part of them
        newline = "\n"
    text = text.replace("\n", newline)
    newline = newline if newline in text else "\n"
    expected = tomllib.loads(text)
    tables = ["", *(path for path, value in flat(expected) if isinstance(value, dict))]
    table = data.draw(st.sampled_from([path for path in tables if path in spans_of("run.toml", text).gaps]))
    path = f"{table}.new" if table else "new"
    inner, last = holder(expected, path)
    inner[last] = 7
    after = edited(text, SetField(path, 7))
    assert tomllib.loads(after) == expected
    assert after.count("\n") == after.count(newline)
    unchanged = [line for line in after.splitlines() if "new = 7" not in line]
    assert unchanged == text.splitlines() or after.count("\n") == text.count(
        "\n"
    )  # a line is added, or an inline member


@given(documents(), st.data())
def test_any_key_is_renamed_wherever_it_is_written(text: str, data: st.DataObject) -> None:
    keys = list(spans_of("run.toml", text).names)
    if not keys:
        return
    path = data.draw(st.sampled_from(keys))
    expected = copy.deepcopy(tomllib.loads(text))
    inner, last = holder(expected, path)
    inner["new name"] = inner.pop(last)
    assert tomllib.loads(edited(text, RenameField(path, "new name"))) == expected


@pytest.mark.parametrize(
    ("text", "field", "after"),
    [
        ("a = 1  # why\n", "b", "a = 1  # why\nb = 6\n"),
        ("a = 1", "b", "a = 1\nb = 6"),
        ("", "b", "b = 6\n"),
        ("[actor]\n\n# next\n[other]\n", "actor.rows", "[actor]\nrows = 6\n\n# next\n[other]\n"),
        ("[actor]\n\tx = 1\n", "actor.rows", "[actor]\n\tx = 1\n\trows = 6\n"),
        ("[actor]\r\nx = 1\r\n", "actor.rows", "[actor]\r\nx = 1\r\nrows = 6\r\n"),
        ("actor.x = 1\n[z]\n", "actor.rows", "actor.x = 1\nactor.rows = 6\n[z]\n"),
        ("actor = {}\n", "actor.rows", "actor = { rows = 6 }\n"),
        ("actor = { x = 1 }\n", "actor.y.rows", "actor = { x = 1, y.rows = 6 }\n"),
        ("[actor]\nx = 1\n", "actor.y.rows", "[actor]\nx = 1\ny.rows = 6\n"),
        ("[actor.x]\na = 1\n[z]\nb = 2\n", "actor.y.rows", "[actor.x]\na = 1\n\n[actor.y]\nrows = 6\n[z]\nb = 2\n"),
        ("[z]\nb = 2\n", "actor.rows", "[z]\nb = 2\n\n[actor]\nrows = 6\n"),
    ],
)
def test_a_new_key_stands_beside_its_neighbors(text: str, field: str, after: str) -> None:
    assert edited(text, SetField(field, 6)) == after


@pytest.mark.parametrize("text", ['[actor]\nmodel = "$other"\n', "[actor]\nmodel = [1]\n"])
def test_a_reference_or_a_plain_value_takes_no_member(text: str) -> None:
    assert edits_of(SetField("actor.model.rows", 6), spans_of("run.toml", text)) == ()


@pytest.mark.parametrize("value", NEW)
def test_values_are_written_as_toml(value: Any) -> None:
    assert tomllib.loads(f"v = {value_text(value)}")["v"] == value
