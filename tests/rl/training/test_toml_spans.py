"""Every key and value of any TOML text stands where ``TomlSpans`` says: ``tomllib`` reads the same from there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.graph.spans import Span
from hfdsl.rl.training.toml.spans import error_span, read_spans, spans_of

ROOT = Path(__file__).parents[3]
ODD = '''a."b.c".'d é' = 1 # x
"ü" = """a
"quoted" \\""" ""x"""""
s = \'\'\'it''s
]]\'\'\'\'
[ t . "u v" ]
x = [ 1, # ]
 [2,3], {a.b = 1, c = [ {d=1}, ] }, "]}#" ,]
when = 1979-05-27 07:32:00 # t
e = []
f = {}
[[arr]]
n=1
[arr.sub]
m=2
[[arr.sub.deep]]
[[arr.sub.deep]]
q=-inf
[[arr]]
[arr.sub]
m=0x1F
[t]
z = true'''


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below a table, by its path."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}" if path else key)
    if isinstance(value, list):
        for i, inner in enumerate(value):
            yield from flat(inner, f"{path}[{i}]")


def text_at(text: str, span: Span) -> str:
    lines = text.encode().split(b"\n")[span.line - 1 : span.end_line]
    lines[-1] = lines[-1][: span.end_column]
    lines[0] = lines[0][span.column :]
    return b"\n".join(lines).decode()


def holds(text: str) -> None:
    table, spans = dict(flat(tomllib.loads(text))), spans_of("run.toml", text)
    assert set(spans.keys) == set(table)
    for path, span in spans.values.items():
        assert tomllib.loads(f"v = {text_at(text, span)}")["v"] == table[path]
    for path, span in spans.keys.items():
        if not path.endswith("]"):  # an item of an array has no key
            names = [name for name, _ in flat(tomllib.loads(f"{text_at(text, span)} = 0"))]
            assert re.sub(r"\[\d+\]", "", path).endswith(names[-1])


@pytest.mark.parametrize("file", [*sorted((ROOT / "examples").rglob("*.toml")), ROOT / "pyproject.toml"], ids=str)
def test_every_key_of_our_own_files_is_found(file: Path) -> None:
    holds(file.read_text("utf-8"))


def test_every_key_of_an_odd_text_is_found() -> None:
    holds(ODD)
    holds(ODD.replace("\n", "\r\n").replace("\r\n", "\n"))


NAMES = st.sampled_from(["a", "b-1", "c", '"d e"', "'f#'", '"\\u00fc"', '"]"'])
SCALARS = st.sampled_from(
    ["1", "-2.5e3", "true", "inf", "'#'", '"]\\"}"', '"""\n"\n"""', "'''[\n'''", "1979-05-27", "07:32:00"]
)
SPACE = st.sampled_from(["", " ", "\t"])
COMMENT = st.sampled_from(["", " # c"])
BREAK = st.sampled_from(["", " ", "\n", " # ],}\n"])


@st.composite
def arrays(draw: st.DrawFn, items: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(items, max_size=3))
    return "[" + ",".join(draw(BREAK) + member + draw(BREAK) for member in members) + draw(BREAK) + "]"


@st.composite
def inline(draw: st.DrawFn, items: st.SearchStrategy[str]) -> str:
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    return "{" + ",".join(f"{draw(SPACE)}{name}{draw(SPACE)}={draw(SPACE)}{draw(items)} " for name in names) + "}"


VALUES = st.recursive(SCALARS, lambda items: arrays(items) | inline(items), max_leaves=6)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Sections with a header of their own each, so that none defines a key of another."""
    sections = []
    for number in range(draw(st.integers(0, 4))):
        head = draw(st.sampled_from(["", "[t{}]", "[t{}.'x y'.z]", '[ t{} . "q" ]', "[[t{}]]", "[[t{}]]\n[[t{}]]"]))
        names = draw(st.lists(NAMES, max_size=3, unique=True))
        prefix = draw(st.sampled_from(["", "k.", '"k l" . ']))
        values = [f"{draw(SPACE)}={draw(SPACE)}{draw(VALUES)}{draw(COMMENT)}" for _ in names]
        pairs = [f"{prefix}{name}{value}" for name, value in zip(names, values, strict=True)]
        if head or number == 0:
            sections += [head.replace("{}", str(number)), *pairs]
    return "\n".join(sections)


@given(documents())
def test_every_key_of_any_text_is_found(text: str) -> None:
    holds(text)


def test_a_key_that_is_not_there_is_that_of_its_table() -> None:
    spans = spans_of("run.toml", "[actor]\nmodel = { path = 'x' }\n")
    assert str(spans.at("actor.model.config.vocab_size")) == "run.toml:2"
    assert str(spans.at("actor.training.optimizer")) == "run.toml:1"
    assert str(spans.at("dims[0].B")) == "run.toml:1"


def test_the_header_of_a_table_is_its_place_rather_than_a_part_of_another() -> None:
    assert spans_of("run.toml", "[actor.training]\n[actor]\n").at("actor").line == 2


@pytest.mark.parametrize(
    ("text", "line", "column"), [("a = 1\nb = \n", 2, 4), ("[x", 1, 0), ('"é" = "ü" x', 1, 12), ("a = [1,\n", 1, 0)]
)
def test_a_text_that_is_no_toml_has_the_place_of_its_error(text: str, line: int, column: int) -> None:
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(text)
    span = error_span("run.toml", text, caught.value)
    assert (span.line, span.column) == (line, column)


def test_a_file_that_cannot_be_read_has_no_places(tmp_path: Path) -> None:
    assert read_spans(tmp_path / "nothing.toml").keys == {}
