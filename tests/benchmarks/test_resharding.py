"""The benchmark of resharding: schedules move the bytes of the paper's formulas, and the large proof succeeds."""

from __future__ import annotations

import pytest

from benchmarks.resharding import different, meshes, proof_seconds
from hfdsl.protocols.mesh import Mesh


def test_schedules_of_small_meshes_have_the_bytes_of_the_formulas() -> None:
    assert {Mesh(pp=2, tp=3, gen_pp=1, gen_tp=1), Mesh(dp=3, tp=2, gen_pp=1, gen_tp=2)} <= set(meshes(6))
    assert different(6)[1] == []


@pytest.mark.nightly
def test_schedules_of_all_meshes_have_the_bytes_of_the_formulas() -> None:
    assert different(64)[1] == []


def test_the_large_model_is_proved() -> None:
    assert proof_seconds() > 0
