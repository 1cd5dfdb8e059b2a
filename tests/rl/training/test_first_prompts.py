"""Bad rows among the first ones of a source, found with the tokens that a run makes of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hfdsl.errors import DataError
from hfdsl.rl.training.config import load
from hfdsl.rl.training.feeds import training_feed
from tests.rl.training.preflight_runs import findings, line, only, project
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here

LONG = {"word": "a" * 9}
GOOD, UNKNOWN, BLANK = {"word": "abc"}, {"word": "axyb"}, {"word": ""}


def rows(*written: dict[str, str], file: str = "words.jsonl") -> None:
    Path(file).write_text("".join(f"{json.dumps(row)}\n" for row in written))


@pytest.mark.parametrize(
    ("bad", "code", "key", "message"),
    [
        (LONG, "HF903", "dims = ", "words.jsonl:3: its prompt has 9 tokens, more than P = 8: 'aaaaaaaaa'"),
        (UNKNOWN, "HF902", "tokenizer = { kind", "words.jsonl:3: the tokenizer does not know all of 'axyb'"),
        (BLANK, "HF902", "source = ", "words.jsonl:3: its prompt has no tokens"),
    ],
)
def test_a_bad_row_that_a_run_takes_is_reported(bad: dict[str, str], code: str, key: str, message: str) -> None:
    rows(GOOD, GOOD, bad, GOOD, GOOD)
    assert only(RUN) == (code, line(RUN, key), message)
    assert findings(RUN.replace("[data]\n", '[data]\non_bad = "skip"\n')) == []
    assert findings(RUN.replace("steps = 2", "steps = 1")) == []  # it takes four rows of five
    rows(bad, bad, bad, bad, bad)
    assert only(RUN.replace("steps = 2", "steps = 1"))[0] == code  # any four of them


def test_an_alphabet_is_told_what_it_lacks() -> None:
    rows(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    [finding] = findings(RUN)
    assert "the alphabet lacks 'xy'" in finding.notes


def evaluated(dims: str) -> str:
    source = '{ kind = "JsonLines", path = "held.jsonl" }'
    return RUN.replace("[options]\n", f"[evaluation]\nsource = {source}\ndims = {dims}\n\n[options]\n")


def test_an_evaluation_takes_its_first_rows() -> None:
    rows(*({"word": letter} for letter in "abcd"), LONG, file="held.jsonl")
    assert findings(evaluated("{ B = 4 }")) == []
    rows(*({"word": letter} for letter in "abc"), LONG, {"word": "d"}, file="held.jsonl")
    text = evaluated("{ B = 4 }")
    [finding] = findings(text)
    assert (finding.code, finding.primary.span.line) == ("HF903", line(text, "P = 8"))
    text = evaluated("{ B = 4, P = 8 }")
    assert [finding.primary.span.line for finding in findings(text)] == [line(text, "dims = { B = 4, P = 8 }")]
    text = evaluated("{ B = 6, P = 9 }")
    [finding] = findings(text)
    assert finding.message == "an evaluation reads B = 6 rows, but its source has only 5"
    assert finding.primary.span.line == line(text, 'path = "held.jsonl"')


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text("abxh", max_size=10), min_size=1, max_size=8), st.integers(1, 3), st.integers(0, 5))
def test_a_row_that_is_reported_ends_the_run(words: list[str], steps: int, seed: int) -> None:
    rows(*({"word": word} for word in words))
    text = RUN.replace("steps = 2", f"steps = {steps}\nseed = {seed}")
    codes = {finding.code for finding in findings(text)} & {"HF902", "HF903"}
    run = load("run.toml")
    feed, cursor = training_feed(run.config, run.roles, run.algorithm.trace()), run.cursor()

    def take_all() -> None:
        after = cursor
        for _ in range(steps):
            _, after = feed.take(after)

    if codes:
        with pytest.raises(DataError):
            take_all()
