"""No change of a valid program trains, without a word, on rows that do not belong together.

Programs are changed in every way that ``row_programs`` knows, are checked, and run where a check finds nothing. The
oracle is the number that every value carries: an update compares them row by row.
"""

from __future__ import annotations

import random
from itertools import islice

import pytest

from tests.nightly import NIGHTLY
from tests.testing.row_programs import PER_QUESTION, PROGRAMS, Mutant, Verdict, judge

SINGLE = [mutant for name, text in PROGRAMS.items() for mutant in Mutant(name, (), text).mutate()]
SHARE = 1 if NIGHTLY else 12
"""One in so many mutants is tried."""


def documented(mutant: Mutant, verdict: Verdict) -> str | None:
    """The documented meaning of a program that no check objects to; None where there is none."""
    if all(sample == reference and pure and sample // PER_QUESTION == advantage // PER_QUESTION
           for sample, reference, advantage, pure in verdict.wrong):  # fmt: skip  # a condition of one line
        return "a score may be that of another sample of the question, as a baseline is"
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_valid_program_trains_on_its_own_rows(name: str) -> None:
    verdict = judge(PROGRAMS[name])
    assert (verdict.kind, verdict.codes, verdict.error) == ("runs", (), "")
    assert verdict.trained
    assert set(verdict.trained.values()) == {1}


def test_the_oracle_sees_rows_of_another_sample_and_groups_of_two_questions() -> None:
    unrepeated = PROGRAMS["whole"].replace("hf.repeat(questions, 2)", "questions")
    assert {pure for *_, pure in judge(unrepeated).wrong} == {False}
    swapped = PROGRAMS["two generations"].replace("x2 = judge.score(s2)", "x2 = judge.score(s1)")
    assert {(sample == advantage, pure) for sample, _, advantage, pure in judge(swapped).wrong} == {(False, True)}


def hold(mutant: Mutant) -> None:
    verdict = judge(mutant.text)
    assert verdict.kind != "silent" or documented(mutant, verdict), f"{mutant}\ntrained on {verdict.wrong[:3]}"


@pytest.mark.parametrize("mutant", random.Random(0).sample(SINGLE, len(SINGLE) // SHARE), ids=lambda m: m.changes[0])
def test_one_change_is_found_or_keeps_rows_together(mutant: Mutant) -> None:
    hold(mutant)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_two_changes_are_found_or_keep_rows_together(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(50):
        first = draw.choice(SINGLE)
        seconds = list(islice(first.mutate(), 1000))
        hold(draw.choice(seconds))
