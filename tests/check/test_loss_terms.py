"""Numbers of losses that turn a term around, or a clip off, on the ready-made dataflows."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, Experience
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.gspo import gspo
from hfdsl.rl.dataflows.remax import remax
from hfdsl.rl.losses import Clip, Reinforce, SequenceClip
from hfdsl.rl.losses.policy import PolicyTerms
from hfdsl.rl.workers import Actor
from tests.check.test_ready_roles import check, places


@pytest.mark.parametrize(
    ("loss", "number"),
    [
        (Clip(entropy=-0.01), "entropy = -0.01"),
        (Clip(20.0, 28.0), "low = 20"),
        (Clip(0.0, 0.0), "low = 0 and high = 0"),
        (Clip(kl=0.04, estimator="k1"), "kl = 0.04 and estimator = 'k1'"),
    ],
)
def test_a_number_does_what_it_says(loss: Clip, number: str) -> None:
    [finding] = check(grpo.given(loss=loss), places()).findings
    assert finding.code == "HF946"
    assert finding.message.startswith(f"the loss of 'actor.update' has {number}: ")


def test_losses_of_other_classes() -> None:
    [finding] = check(gspo.given(loss=SequenceClip(0.0, 0.0)), places()).findings
    assert finding.code == "HF946"
    [finding] = check(remax.given(loss=Reinforce(entropy=-0.1)), places()).findings
    assert finding.notes == ("for a bonus set entropy to 0.1",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted(Clip):
    """Weights its KL by the ratio, which gives k1 the gradient of the KL."""

    def __call__(self, *arguments: Any, **named: Any) -> PolicyTerms:
        raise NotImplementedError


@pytest.mark.parametrize(
    "loss",
    [
        Clip(entropy=0.01),
        Clip(inf, inf),
        Clip(1.0, 1.0),
        Clip(0.0, 0.2),
        Clip(0.3, 0.2),
        Clip(kl=0.04, estimator="k2"),
        Clip(kl=0.04, estimator="abs"),
        Weighted(kl=0.04, estimator="k1"),
    ],
)
def test_numbers_that_are_meant(loss: Clip) -> None:
    assert check(grpo.given(loss=loss), places()).findings == ()


def without_terms(*_: Any) -> Any:
    """A function in the place of a loss."""
    raise NotImplementedError


@hf.dataflow
def step(experience: Experience, actor: Actor) -> ActorMetrics:
    return actor.update(experience, loss=without_terms)  # type: ignore[arg-type]  # the mistake


def test_a_function_in_the_place_of_a_loss_is_a_finding_and_no_crash() -> None:
    assert [finding.code for finding in step.check().errors] == ["HF206"]
