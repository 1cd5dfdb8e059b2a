"""What is read from the user's text: spans of one expression."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check import sources
from hfdsl.check.findings import Edit
from hfdsl.check.repair.edits import spelt, swap
from hfdsl.graph.signatures import role_signature
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
def test_unpacking_in_a_call_or_dict(tmp_path: Path, text: str, unpacked: str | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"y = {text}\n", encoding="utf-8")
    assert sources.unpacks(Span(str(file), 1, 4, 1, 4 + len(text))) == unpacked


def test_a_place_in_what_another_file_has_become_is_read_without_harm(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("é\n", encoding="utf-8")
    assert sources.source_text(Span(str(file), 1, 1, 1, 2)) == "\ufffd"


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
        ("y = x is None == z", "is"),
        ("y = x == None is z", None),
        ("a = a is None\ny = x is None\nb = b is None", "is"),
        ("y = x is z", None),
        ("y = x == None", None),
        ("y = z is None and x", None),
    ],
)
def test_comparisons_with_none(tmp_path: Path, text: str, operator: str | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"{text}\n", encoding="utf-8")
    line = 1 + next(i for i, line in enumerate(text.splitlines()) if "x" in line)
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


class Role(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def work(self, a: int, b: int = 0, *, c: int = 0, d: int = 0, e: int = 0) -> int:
        return a


@pytest.mark.parametrize(
    ("call", "port", "argument"),
    [
        ("work(one, two)", "a", "one"),
        ("work(one, two)", "b", "two"),
        ("work(one, b=two)", "b", "two"),
        ("work(b=one, a=two)", "a", "two"),
        ("work(one)", "b", None),
        ("work(one, **two)", "b", None),
        ("work(*one, two)", "b", None),
        ("work(one, *two, three)", "a", "one"),
        ("work(one, *two, three)", "d", None),
        ("work(one, two, c=three)", "c", "three"),
        ("work(one, two, three)", "c", "three"),
        ("work(one, two, three, four, c=five)", "d", "three"),
        ("work(one, two, three, four, c=five)", "e", "four"),
        ("work", "a", None),
    ],
)
def test_the_argument_that_is_wired_to_a_port(tmp_path: Path, call: str, port: str, argument: str | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"y = {call}\n", encoding="utf-8")
    span = Span(str(file), 1, 4, 1, 4 + len(call))
    port_span = sources.argument_span(span, role_signature(Role, "work"), port)
    assert sources.source_text(port_span) == (argument or call)
    assert sources.argument_name(span, role_signature(Role, "work"), port) == argument


def test_what_is_written_over_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("y = f(g(\n  1\n), key=[\n  2\n], last=3)\n", encoding="utf-8")
    call = Span(str(file), 1, 4, 5, 10)
    assert sources.argument_span(call, role_signature(Role, "work"), "a") == Span(str(file), 1, 6, 3, 1)
    assert sources.keyword_span(call, "key") == Span(str(file), 3, 3, 5, 1)
    assert sources.keyword_span(call, "last") == Span(str(file), 5, 3, 5, 9)
    assert sources.keyword_span(call, "none") == call
    assert sources.argument_span(call, None, "a") == call, "what is called is not known"
    assert sources.source_text(call) is None, "what is shown is one line"


@pytest.mark.parametrize(
    ("body", "column"), [("    return a", 11), ("    return a\n    return b", None), ("    return", None)]
)
def test_the_only_value_that_a_function_returns(tmp_path: Path, body: str, column: int | None) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"def f():\n{body}\n", encoding="utf-8")
    function = Span(str(file), 1, 0, 1, 8)
    assert sources.return_span(function) == (function if column is None else Span(str(file), 2, column, 2, column + 1))


@pytest.mark.parametrize("text", ["def f(:\n", None])
def test_a_file_that_cannot_be_read_has_no_finer_places(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "program.py"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    signature, place = role_signature(Role, "work"), Span(str(file), 1, 0, 1, 5)
    assert sources.call_at(place) is None
    assert sources.argument_span(place, signature, "a") == place
    assert sources.keyword_span(place, "a") == place
    assert sources.return_span(place) == place


def test_programs_typed_at_a_prompt_are_checked_too() -> None:
    typed: dict[str, Any] = {"hf": hf, "Role": Role}
    text = """@hf.function
def half(number: int) -> float: ...

@hf.dataflow
def program(role: Role) -> str:
    return half('x')
"""
    exec(text, typed)  # noqa: S102  # there is no file that it could be read from
    findings = typed["program"].check().findings
    assert [(finding.code, finding.primary.span.line) for finding in findings] == [("HF603", 4), ("HF206", 6)]
    assert [label.span.line for label in findings[1].related] == [1], "where the port is declared"


def test_arguments_on_one_line_are_swapped(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("f(one, two, g(\n                 3))\n", encoding="utf-8")
    first, second, rest = (Span(str(file), 1, *place) for place in ((2, 1, 5), (7, 1, 10), (12, 2, 19)))
    assert swap(first, second) == (Edit(first, "two"), Edit(second, "one"))
    assert swap(first, rest) is None
    assert swap(rest, first) is None
