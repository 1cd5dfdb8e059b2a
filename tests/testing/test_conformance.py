"""The conformance suite: both own backends pass it, and a backend that does something wrong does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.runtime.backend import Submission
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.messages import SegmentResult
from hfdsl.testing import run_suite
from hfdsl.testing.conformance import DEPLOYMENTS, PROGRAMS


def test_the_local_backend_conforms() -> None:
    report = run_suite("local")
    assert report.ok, report
    assert len(report.outcomes) == 68  # 12 and 8 programs under three deployments, one but under two, and more


def test_the_ray_backend_conforms_on_one_pool(ray_cluster: Any) -> None:
    report = run_suite("ray", PROGRAMS[::4], deployments="one pool", faults=False)
    assert report.ok, report


@pytest.mark.nightly  # launches with many processes
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_the_ray_backend_conforms(ray_cluster: Any, deployment: str) -> None:
    report = run_suite("ray", deployments=deployment, faults=False)
    assert report.ok, report


@pytest.mark.nightly  # launches for every fault; tests/runtime/test_ray.py has one in every run
def test_the_ray_backend_reports_faults(ray_cluster: Any) -> None:
    report = run_suite("ray", PROGRAMS[:1], deployments="one pool")
    assert report.ok, report
    assert [outcome.deployment for outcome in report.outcomes].count("faults") == 3


class Reversing(LocalBackend):
    """Brings the driver rows in the wrong order."""

    def get(self, handles: Sequence[Any]) -> list[Any]:
        return [
            {cut: value.flip(0) if isinstance(value, torch.Tensor) else value for cut, value in content.items()}
            for content in super().get(handles)
        ]


class Forgetful(LocalBackend):
    """Does not save what roles keep."""

    def load(self, folder: str, saved: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        return


class Impatient(LocalBackend):
    """Gives every segment the random streams of the first step."""

    def run(self, submission: Submission) -> list[tuple[SegmentResult, list[Any]]]:
        from dataclasses import replace

        return super().run(replace(submission, call=submission.call._replace(step=0)))


def of(backend: type[LocalBackend]) -> Any:
    def lowering(plan: CompiledPlan, *, seed: int, **options: Any) -> LocalBackend:
        return backend(plan, seed)

    lowering.__name__ = backend.__name__
    return lowering


def test_a_lowering_of_ones_own_can_be_launched() -> None:
    report = run_suite(of(LocalBackend), deployments=["one pool"])
    assert report.ok, report


def test_faults_of_a_backend_are_found() -> None:
    wrong = {backend: run_suite(of(backend), deployments=["one pool"]) for backend in (Reversing, Forgetful, Impatient)}
    failing = {backend: {problem.program for problem in report.problems} for backend, report in wrong.items()}
    assert failing[Forgetful] == {"saved state", "resuming", "resuming_groups"}
    assert "streams" in failing[Impatient]
    assert failing[Reversing] >= {"splits", "groups"}
    text = str(wrong[Reversing])
    assert text.startswith("conformance of 'Reversing': ")
    assert "splits           FAILS" in text
    assert "is right, got" in text
