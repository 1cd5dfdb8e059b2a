"""Every call of the conformance suite gives the same bits again, from data alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hfdsl.runtime.saving.recording import read_header
from hfdsl.testing.conformance import DEPLOYMENTS, PROGRAMS, SuiteProgram
from hfdsl.testing.replaying import Replayed, replay

STEPS = [program for program in PROGRAMS if isinstance(program, SuiteProgram)]
"""The programs without queues: a recording is of one step at a time."""


def replayed(folder: Path) -> list[Replayed]:
    """All calls of a recording on all ranks."""
    calls = [(call["label"], rank) for call in read_header(folder)["calls"] for rank in call["ranks"]]
    return [replay(folder, label, rank) for label, rank in calls]


@pytest.mark.parametrize("program", [pytest.param(program, id=program.name) for program in STEPS])
def test_every_call_of_every_program_gives_the_same_bits_and_is_only_data(
    program: SuiteProgram, tmp_path: Path
) -> None:
    place = random.Random(program.name).choice(sorted(DEPLOYMENTS))
    *before, last = program.batches
    with program.compiled(DEPLOYMENTS[place]()).launch(seed=3) as running:
        for batch in before:
            running.step(*batch)
        with running.record(tmp_path / "r"):
            running.step(*last)
    outcomes = replayed(tmp_path / "r")
    assert [str(outcome) for outcome in outcomes if not outcome.same] == []
    assert not any(outcome.failed_then for outcome in outcomes)
    assert sorted(tmp_path.rglob("*.pkl")) == []
