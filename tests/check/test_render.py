"""Reports as people read them: order, marks under what is meant, colors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hfdsl.check import render as module
from hfdsl.check.capacity import shape
from hfdsl.check.findings import Edit, Finding, Fix, Label, order
from hfdsl.check.report import CheckError, Report
from hfdsl.graph.spans import NOWHERE, Span

ERROR, WARNING = "HF310", "HF509"


def finding(code: str, line: int = 0, file: str = "program.py") -> Finding:
    return Finding(code, f"message {line}", Label(Span(file, line, 0, line, 4) if line else NOWHERE))


def test_errors_come_first_and_what_has_no_place_last() -> None:
    last, warning, second, first = finding(ERROR), finding(WARNING, 1), finding(ERROR, 9), finding(ERROR, 2)
    assert order([last, warning, second, first]) == (first, second, last, warning)


@pytest.mark.parametrize(
    ("codes", "text"),
    [
        ([], "check of 'step': no findings"),
        ([ERROR], "check of 'step': 1 error"),
        ([ERROR, ERROR], "check of 'step': 2 errors"),
        ([WARNING], "check of 'step': 1 warning"),
        ([ERROR, WARNING, WARNING], "check of 'step': 1 error, 2 warnings"),
    ],
)
def test_findings_are_counted(codes: list[str], text: str) -> None:
    report = Report("step", tuple(finding(code) for code in codes))
    assert str(report).splitlines()[-1] == text


def test_a_check_that_fails_hands_on_its_report() -> None:
    report = Report("step", (finding(ERROR), finding(WARNING)))
    error = CheckError(report)
    assert error.report is report
    assert (error.code, "'step' has 1 error(s)" in str(error)) == (ERROR, True)
    assert CheckError(Report("step", (finding("HF201"), finding(ERROR)))).code == "HF201", "the first"


@pytest.fixture
def source(tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text("größe = actor.score(rollout)\n\n    x = 1\n", encoding="utf-8")
    return str(file)


def test_a_mark_stands_under_what_is_meant(source: str) -> None:
    # Columns count bytes: "größe" has seven of them and five characters.
    text = "größe = actor.score(rollout)"
    start, stop = (len(text[: text.index(word)].encode()) for word in ("actor", "(rollout"))
    finding = Finding(ERROR, "message", Label(Span(source, 1, start, 1, stop), "here"))
    *_, line, mark = str(Report("step", (finding,))).rpartition("\n\n")[0].splitlines()
    assert line == f"    1 | {text}"
    assert mark == "      |         ^^^^^^^^^^^ here"


def shown(file: Path, text: str, span: tuple[int, int, int, int], label: str = "") -> list[str]:
    """What is shown of a place in a file of this text, without the head, and of the same place as another one."""
    file.write_text(text, encoding="utf-8")
    place = Label(Span(str(file), *span), label)
    message, *lines, _, _ = str(Report("step", (Finding(ERROR, "message", place, (place,)),))).splitlines()
    assert message == "error[HF310]: message"
    return lines


@pytest.mark.parametrize(
    ("text", "span", "line", "mark"),
    [
        ("x = f(y)", (1, 6, 1, 7), "x = f(y)", "      ^"),
        ("x = f(y)", (1, 0, 1, 1), "x = f(y)", "^"),
        ("x = f(y)", (1, 4, 1, 8), "x = f(y)", "    ^^^^"),
        ("é = f(ö,\n  ü)", (1, 5, 2, 5), "é = f(ö,", "    ^^^^"),  # to the end of its first line
        ("\n  def fü():", (2,), "  def fü():", "  ^^^^^^^^^"),  # a line is known, and no columns
        ("\tx = f(\ty)", (1, 5, 1, 10), "\tx = f(\ty)", "\t    ^^^^^"),
        ("é = f(", (1, 9, 1, 12), "é = f(", "      ^"),  # the file was longer
    ],
)
def test_a_mark_is_as_long_as_what_is_meant(
    text: str, span: tuple[int, int, int, int], line: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    column = (*span, 0)[1] + 1
    assert shown(tmp_path / "a.py", text, span, "here") == [
        f"  --> a.py:{span[0]}:{column}",
        f"    {span[0]} | {line}",
        f"      | {mark} here",
        f"  ::: a.py:{span[0]}:{column}",
        f"    {span[0]} | {line}",
        f"      | {mark.replace('^', '-')} here",
    ]


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a.py", "x\n", (9, 4, 9, 5), "here") == ["  --> a.py:9:5  here", "  ::: a.py:9:5  here"]
    assert shown(tmp_path / "b.py", "x\n \n", (2, 0, 2, 1)) == ["  --> b.py:2:1", "  ::: b.py:2:1"]


def test_a_file_is_named_from_the_current_folder_where_it_lies_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "one" / "a.py"
    for folder, name in ((".", "one/a.py"), ("one", "a.py"), ("other", str(file))):
        monkeypatch.chdir(tmp_path / folder)
        assert shown(file, "x\n", (1, 0, 1, 1))[0] == f"  --> {name}:1:1"


def test_help_comes_last() -> None:
    finding = Finding(ERROR, "message", Label(NOWHERE), notes=("one", "two"), help=("three", "four"))
    assert str(Report("step", (finding,))).rpartition("\n\n")[0].splitlines() == [
        "error[HF310]: message", "  = note: one", "  = note: two", "  = help: three", "  = help: four",
    ]  # fmt: skip


def test_labels_without_a_place_are_notes_if_they_have_text() -> None:
    def lines(*labels: Label) -> list[str]:
        finding = Finding(ERROR, "message", labels[0], labels[1:])
        return str(Report("step", (finding,))).rpartition("\n\n")[0].splitlines()

    assert lines(Label(NOWHERE)) == ["error[HF310]: message"]
    assert lines(Label(NOWHERE, "one"), Label(NOWHERE, "two")) == [
        "error[HF310]: message",
        "  = note: one",
        "  = note: two",
    ]


def test_an_error_and_its_mark_have_a_color_and_a_warning_another(source: str) -> None:
    place, second_place = Span(source, 3, 4, 3, 5), Span(source, 3, 8, 3, 9)
    error = Finding(ERROR, "message", Label(place, "here"), (Label(second_place, "there"),))

    def marks(finding: Finding) -> list[str]:
        lines = Report("step", (finding,)).text(color=True).splitlines()
        return [line.split("m")[0] for line in lines if line.startswith("\x1b")]

    red, yellow, blue = (code.removesuffix("m") for code in (module._RED, module._YELLOW, module._BLUE))
    assert marks(error) == [red, red, blue], "the head, the mark of the place, and that of the other place"
    assert marks(replace(error, code=WARNING)) == [yellow, yellow, blue]
    plain = str(Report("step", (error,)))
    assert "\x1b" not in plain
    assert "   x = 1" in plain


def test_pools_of_many_nodes_are_written_short() -> None:
    assert shape([4] * 8) == "[4, 4, 4, 4, 4, 4, 4, 4]"
    assert shape([4] * 9) == "[4] * 9"
    assert shape(range(1, 9)) == "[1, 2, 3, 4, 5, 6, 7, 8]"
    assert shape(range(1, 10)) == "[1, 2, 3, 4, ... 9 nodes]"


def test_a_report_is_true_where_no_error_is_in_it_and_gives_its_findings() -> None:
    error, warning = finding(ERROR), finding(WARNING)
    assert Report("step", (warning,))
    assert not Report("step", (warning, error))
    assert list(Report("step", (warning, error))) == [warning, error]


def test_json_lists_every_place() -> None:
    edit = Edit(Span("a.py", 1, 2, 3, 4), "new")
    marked = Finding(
        code=WARNING,
        message="message",
        primary=Label(Span("b.py", 5, 6, 7, 8), "here"),
        related=(Label(NOWHERE, "there"),),
        notes=("a note",),
        help=("help",),
        fixes=(Fix("replace", (edit,)),),
    )
    first, second = Report("step", (marked, finding(ERROR))).json().splitlines()
    assert json.loads(second)["code"] == ERROR
    nowhere = {"file": "<unknown>", "line": 0, "column": 0, "endLine": 0, "endColumn": 0}
    assert json.loads(first) == {
        "version": 1, "code": WARNING, "severity": "warning", "message": "message",
        "primary": {"file": "b.py", "line": 5, "column": 6, "endLine": 7, "endColumn": 8, "label": "here"},
        "calls": [], "related": [{**nowhere, "label": "there"}], "notes": ["a note"], "help": ["help"],
        "fixes": [
            {
                "title": "replace",
                "edits": [{"file": "a.py", "line": 1, "column": 2, "endLine": 3, "endColumn": 4, "text": "new"}],
            }
        ],
    }  # fmt: skip


def test_findings_of_a_code_can_be_left_out() -> None:
    error, warning = finding(ERROR), finding(WARNING)
    assert Report("step", (error, warning)).without(WARNING).findings == (error,)


@pytest.mark.parametrize("place", [0, 1, 7, 30, 99, 498, 499])
def test_of_a_long_line_the_part_around_the_mark_is_shown(place: int, tmp_path: Path) -> None:
    words = [f"größe{i}" for i in range(500)]
    text, meant = " ".join(words), words[place]
    start = len(" ".join([*words[:place], ""]).encode())
    line, mark = shown(tmp_path / "a.py", text, (1, start, 1, start + len(meant.encode())))[1:3]
    first = mark.index("^")
    assert line[first : first + mark.count("^")] == meant
    assert len(line.encode()) <= module.LONGEST_LINE + 20
    assert line.partition("| ")[2].strip(".") in text
