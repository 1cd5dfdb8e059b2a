"""Where a repair is written: the letters that change, and None where the text does not show them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import hfdsl as hf
from hfdsl.check.findings import Edit
from hfdsl.check.repair import edits
from hfdsl.check.repair.edits import apply, overlap
from hfdsl.graph.signatures import Port, Signature, StaticType
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.types.rows import Independent


class B(hf.Dim): ...


Look: TypeAlias = Callable[..., Edit | tuple[Edit, ...] | None]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., str | None]:
    """The text of a file after an edit at the one place that is marked as «here»; None where there is no edit."""

    def make(marked: str, look: Look, *asked: Any) -> str | None:
        before, here, after = re.split("[«»]", marked)
        first, column = before.count("\n"), len(before.rpartition("\n")[2].encode())
        last, width = first + here.count("\n"), len(here.rpartition("\n")[2].encode())
        file = tmp_path / f"text_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text := before + here + after, encoding="utf-8")
        end = width + (column if first == last else 0)
        looked = look(Span(str(file), first + 1, column, last + 1, end), *asked)
        edits = [looked] if isinstance(looked, Edit) else list(looked or ())
        return apply(text, edits) if edits else None

    return make


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("y = «x.old»\n", "y = x.new\n"),
        ("y = f(«x\n    .old»)\n", "y = f(x\n    .new)\n"),
        ("«f(a, old=x)»\n", "f(a, new=x)\n"),
        ("«getattr(x, 'old')»\n", None),
        ("«x.bold»\n", None),
        ("«old»\n", None),
        ("«x.\\\nold»\n", None),
        ("«ö»\n", None),
    ],
)
def test_an_attribute_or_a_keyword_is_renamed(text: str, then: str | None, changed: Any) -> None:
    assert changed(text, edits.rename, "old", "new") == then


def test_a_keyword_that_python_reads_as_another_text_is_not_renamed(changed: Any) -> None:
    # To Python both are one name: the letter "fi" of typography stands for two.
    assert changed("«f(\ufb01n=x)»\n", edits.rename, "fin", "end") is None


KIND = StaticType(int)
SIGNATURE = Signature(
    "f", (Port("a", KIND, True, False), *(Port(name, KIND, True, True) for name in "bcd")), KIND, Independent, print
)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("«f(x, y, z)»\n", "f(x, y, c=z)\n"),
        ("«f(x, y, z, u)»\n", "f(x, y, c=z, d=u)\n"),
        ("«f(x, y, b=z)»\n", "f(x, c=y, b=z)\n"),
        ("«f(x)»\n", None),
        ("«f(*x, y, z)»\n", None),
        ("«f(x, y, z, **rest)»\n", None),
        ("«f»(x, y, z)\n", None),
    ],
)
def test_positional_arguments_get_their_names(text: str, then: str | None, changed: Any) -> None:
    assert changed(text, edits.keywords, SIGNATURE, "c") == then


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import hfdsl", "hfdsl.repeat"),
        ("import math, hfdsl as hf", "hf.repeat"),
        ("from hfdsl import f32, repeat", "repeat"),
        ("from hfdsl import f32, repeat as again", "again"),
        ("from hfdsl import f32", None),
        ("from other import repeat", None),
        ("from .hfdsl import repeat", None),
    ],
)
def test_a_call_is_written_in_the_words_of_the_imports(imports: str, name: str | None, changed: Any) -> None:
    then = None if name is None else f"{imports}\nf({name}(x.y, 4))\n"
    assert changed(f"{imports}\nf(«x.y»)\n", edits.wrap, "repeat", 4) == then


def test_a_place_without_columns_is_not_wrapped(tmp_path: Path) -> None:
    file = tmp_path / "text.py"
    file.write_text("import hfdsl\nf(x)\n")
    assert edits.wrap(Span(str(file), 2), "repeat", 4) is None


def test_a_file_that_python_cannot_read_imports_nothing(tmp_path: Path) -> None:
    file = tmp_path / "text.py"
    file.write_text("import hfdsl\nf(\n")
    assert edits.spelling(str(file), "repeat") is None


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("«f({P: 9}, dims={P: 8, B: 8})»\n", "f({P: 9}, dims={P: 8, B: 6})\n"),
        ("«f(cluster={B: 8}, dims={m.P: 8, m.B: 8})»\n", "f(cluster={B: 8}, dims={m.P: 8, m.B: 6})\n"),
        ("D = {B: 8}\n«f(dims=D)»\n", "D = {B: 6}\nf(dims=D)\n"),
        ("D: dict = {B: 8}\n«f(dims=D, other=E)»\n", "D: dict = {B: 6}\nf(dims=D, other=E)\n"),
        ("«f(dims={B: 8, B: 8})»\n", None),
        ("«f(dims={B: 9})»\n", None),
        ("«f(dims={P: 8})»\n", None),
        ("«f(cluster={B: 8})»\n", None),
        ("«f»(dims={B: 8})\n", None),
        ("from sizes import D\n«f(dims=D)»\n", None),
        ("D: dict\n«f(dims=D)»\n", None),
        ("D = {B: 8}\nD = {B: 8}\n«f(dims=D)»\n", None),
        ("D = {B: 8}\ndef g(D):\n    «f(dims=D)»\n", None),
        ("def g():\n    D = {B: 8}\n    «f(dims=D)»\n", None),
        ("D = {B: 8}\ndef g():\n    D = {B: 8}\n    «f(dims=D)»\n", None),
        ("E = {B: 8}\n«f(dims=D)»\n", None),
    ],
)
def test_a_size_is_changed_where_it_is_written_once(text: str, then: str | None, changed: Any) -> None:
    assert changed(text, edits.size, B, 8, 6) == then


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("«place(pool=P(dp=8), mesh=Mesh(tp=2, dp=8))»\n", "place(pool=P(dp=8), mesh=Mesh(tp=2, dp=4))\n"),
        ("«place(mesh=Mesh(tp=2, pp=1))»\n", "place(mesh=Mesh(dp=4, tp=2, pp=1))\n"),
        ("«place(mesh=Mesh(tp=2, dp=n))»\n", None),
        ("«place(mesh=Mesh(tp=2, **rest))»\n", None),
        ("«place(mesh=Mesh(1, tp=2))»\n", None),
        ("«place(mesh=Mesh())»\n", None),
        ("«place(mesh=mesh)»\n", None),
        ("«place(pool=P(dp=8))»\n", None),
        ("«place»(mesh=Mesh(dp=8))\n", None),
    ],
)
def test_an_axis_is_changed_or_written(text: str, then: str | None, changed: Any) -> None:
    assert changed(text, edits.axis, "dp", 8, 4) == then


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("@requires('L % l == L')\n«def f(): ...»\n", "@requires('N % l == N')\ndef f(): ...\n"),
        ("@a\n@requires('L % l == L')\n«async def f(): ...»\n", "@a\n@requires('N % l == N')\nasync def f(): ...\n"),
        ("@requires(TEXT)\n«def f(): ...»\n", None),
        ("@requires('L % l == L')\n@requires('L % l == L')\n«def f(): ...»\n", None),
        ("@requires('L % l '\n          '== L')\n«def f(): ...»\n", None),
        ("@requires('L % l == \\x4c')\n«def f(): ...»\n", None),
        ("@requires('L % l == L')\ndef g(): ...\n«def f(): ...»\n", None),
    ],
)  # fmt: skip  # a case a line
def test_a_name_is_changed_in_a_requirement_that_is_written_once(text: str, then: str | None, changed: Any) -> None:
    assert changed(text, edits.requirement, "L % l == L", "L", "N") == then


def edits_at(*places: tuple[int, int], file: str = "f") -> list[Edit]:
    return [Edit(Span(file, 1, first, 1, last), "") for first, last in places]


@pytest.mark.parametrize(
    ("first", "second", "touch"),
    [
        (edits_at((0, 2)), edits_at((3, 4)), False),
        (edits_at((0, 2)), edits_at((2, 2)), True),
        (edits_at((0, 2)), edits_at((2, 3)), True),
        (edits_at((8, 9), (0, 5)), edits_at((3, 4)), True),
        (edits_at((0, 2)), edits_at((0, 2), file="g"), False),
    ],
)
def test_fixes_that_touch_are_not_joined(first: list[Edit], second: list[Edit], touch: bool) -> None:
    assert overlap(first, second) is overlap(second, first) is touch


def test_where_nothing_is_written_nothing_is_changed() -> None:
    assert edits.rename(NOWHERE, "old", "new") is None
    assert edits.size(NOWHERE, B, 8, 6) is None
