"""Reports as people read them: order, marks under what is meant, colours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hfdsl.check import render as module
from hfdsl.check.capacity import shape
from hfdsl.check.findings import CheckError, Finding, Label, Report, order
from hfdsl.check.render import render
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
    assert render(report).splitlines()[-1] == text


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
    told = Finding(ERROR, "message", Label(Span(source, 1, start, 1, stop), "here"))
    *_, line, mark = render(Report("step", (told,))).rpartition("\n\n")[0].splitlines()
    assert line == f"    1 | {text}"
    assert mark == "      |         ^^^^^^^^^^^ here"


def test_what_has_no_place_is_a_note_where_there_is_something_to_say() -> None:
    def lines(*labels: Label) -> list[str]:
        told = Finding(ERROR, "message", labels[0], labels[1:])
        return render(Report("step", (told,))).rpartition("\n\n")[0].splitlines()

    assert lines(Label(NOWHERE)) == ["error[HF310]: message"]
    assert lines(Label(NOWHERE, "one"), Label(NOWHERE, "two")) == [
        "error[HF310]: message",
        "  = note: one",
        "  = note: two",
    ]


def test_an_error_and_its_mark_have_a_colour_and_a_warning_another(source: str) -> None:
    place, other = Span(source, 3, 4, 3, 5), Span(source, 3, 8, 3, 9)
    told = Finding(ERROR, "message", Label(place, "here"), (Label(other, "there"),))

    def marks(finding: Finding) -> list[str]:
        lines = render(Report("step", (finding,)), colour=True).splitlines()
        return [line.split("m")[0] for line in lines if line.startswith("\x1b")]

    red, yellow, blue = (code.removesuffix("m") for code in (module._RED, module._YELLOW, module._BLUE))
    assert marks(told) == [red, red, blue], "the head, the mark of the place, and that of the other place"
    assert marks(replace(told, code=WARNING)) == [yellow, yellow, blue]
    plain = render(Report("step", (told,)))
    assert "\x1b" not in plain
    assert "   x = 1" in plain


def test_pools_of_many_nodes_are_written_short() -> None:
    assert shape([4] * 8) == "[4, 4, 4, 4, 4, 4, 4, 4]"
    assert shape([4] * 9) == "[4] * 9"
    assert shape(range(1, 9)) == "[1, 2, 3, 4, 5, 6, 7, 8]"
    assert shape(range(1, 10)) == "[1, 2, 3, 4, ... 9 nodes]"


def test_findings_of_a_code_can_be_left_out() -> None:
    error, warning = finding(ERROR), finding(WARNING)
    assert Report("step", (error, warning)).without(WARNING).findings == (error,)
