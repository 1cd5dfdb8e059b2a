"""The progress bar of ``hfdsl train``: what it says, and what a terminal shows in the end."""

from __future__ import annotations

import io
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.rl.training.metrics import Record
from hfdsl.tools.progress import CLEAR, WIDTH, ProgressBar, in_words, shows_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """The lines that a terminal shows after all that was written."""
    lines = [""]
    for part in re.split(f"({re.escape(CLEAR)}|\n)", written):
        if part == CLEAR:
            lines[-1] = ""
        elif part == "\n":
            lines.append("")
        else:
            lines[-1] += part
    return lines


def run(steps: int, seconds: float, evaluated: frozenset[int] = frozenset(), upto: int | None = None) -> list[str]:
    """What a terminal shows of a run whose steps each take so many seconds."""
    terminal, now = Terminal(), [0.0]
    with ProgressBar(steps, terminal, lambda: now[0]) as bar:
        for step in range(1, (upto or steps) + 1):
            now[0] += seconds
            values = {"actor/loss": 0.25, "outcome/score": step / steps, "actor/kl": 0.5, "outcome/reward": 1.0}
            held = {"held_out/score": 0.75} if step in evaluated else {}
            bar.show(Record(step, {**values, **held}, seconds))
    return screen(terminal.getvalue())


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "40")


def test_a_line_has_step_speed_time_left_and_three_metrics() -> None:
    bar = "########------------"
    assert run(100, 1.5, upto=40) == [
        f"[{bar}]  step 40 of 100  1.5 s a step  1 min 30 s left  score 0.4  reward 1  loss 0.25",
        "",
    ]


def test_steps_with_an_evaluation_keep_their_lines() -> None:
    *lines, bar, end = run(4, 1.0, evaluated=frozenset({2, 4}))
    assert [text.split()[1] for text in lines] == ["2", "4"]
    assert all("held-out score 0.75" in text for text in lines)
    assert bar.startswith(f"[{'#' * WIDTH}]  step 4 of 4")
    assert end == ""


def test_a_line_is_never_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    bar, _ = run(100, 1.0, upto=3)
    assert len(bar) == 29


def test_the_first_step_of_a_resumed_run_has_no_estimate_yet() -> None:
    terminal = Terminal()
    with ProgressBar(100, terminal, lambda: 5.0) as bar:
        bar.show(Record(50, {"outcome/score": 0.5}))
    assert screen(terminal.getvalue())[0] == "[##########----------]  step 50 of 100  score 0.5"


def test_a_warning_has_a_line_of_its_own() -> None:
    terminal = Terminal()
    with ProgressBar(2, terminal, lambda: 5.0) as bar:
        bar.clear()
        bar.show(Record(1, {}))
        bar.clear()
        print("warning", file=terminal)
        bar.show(Record(2, {}))
    assert [text[:7] for text in screen(terminal.getvalue())] == ["warning", "[######", ""]


def test_a_run_without_a_step_leaves_nothing() -> None:
    terminal = Terminal()
    with ProgressBar(3, terminal):
        pass
    assert terminal.getvalue() == ""


@given(st.integers(1, 500), st.floats(0.001, 5000), st.data())
def test_the_time_left_is_that_of_the_steps_left(steps: int, seconds: float, data: st.DataObject) -> None:
    steps_done = data.draw(st.integers(1, steps))
    now = [0.0]
    bar = ProgressBar(steps, Terminal(), lambda: now[0])
    with bar:
        for step in range(steps_done + 1):
            now[0] = step * seconds
            bar.show(Record(step, {}))
    assert bar.seconds_per_step is not None
    assert bar.seconds_per_step == pytest.approx(seconds)
    assert f"  {in_words(bar.seconds_per_step * (steps - steps_done))} left" in bar.text(Record(steps_done, {}))


@given(st.floats(0, 10**7))
def test_a_duration_in_words_is_right_to_its_smaller_unit(seconds: float) -> None:
    sizes = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    numbers = re.findall(r"(\d+) (\w+)", in_words(seconds))
    total = sum(int(number) * sizes[unit] for number, unit in numbers)
    units = list(sizes)
    unit = numbers[-1][1] if len(numbers) == 2 else units[min(units.index(numbers[0][1]) + 1, 3)]
    assert total - 1 <= seconds < total + sizes[unit] + 1


def test_only_terminals_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert (shows_progress(Terminal()), shows_progress(io.StringIO())) == (True, False)
    monkeypatch.setenv("TERM", "dumb")
    assert not shows_progress(Terminal())
    assert os.environ["TERM"] == "dumb"
