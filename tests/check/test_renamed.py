"""Columns under the name of another one, on the ready records and on those of a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import f32
from hfdsl.check.repair.edits import apply
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import AdvantagesAndReturns, B, ReferenceLogProbs, Rollout, ValueExperience, Values


class Shaped(hf.Batch):
    score: f32[B]
    shaped: f32[B]


class Judged(hf.Batch):
    score: f32[B]


@hf.dataflow
def targets(rollout: Rollout, values: Values, estimates: AdvantagesAndReturns) -> ValueExperience:
    return ValueExperience(
        ids=rollout.ids,
        mask=rollout.mask,
        response_mask=rollout.response_mask,
        values=values.values,
        returns=estimates.advantage,
    )


@hf.dataflow
def both(estimates: AdvantagesAndReturns) -> AdvantagesAndReturns:
    return AdvantagesAndReturns(advantage=estimates.returns, returns=estimates.returns)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (targets, "'ValueExperience' gets 'advantage' of 'estimates' as its column 'returns'"),
        (both, "'AdvantagesAndReturns' gets 'returns' of 'estimates' as its column 'advantage'"),
    ],
)
def test_a_column_keeps_its_name(flow: Dataflow[..., Any], message: str) -> None:
    [finding] = flow.check(None, {}).without("HF301").findings
    assert finding.code == "HF232"
    assert finding.message.startswith(f"{message}, and 'estimates' has a column ")


def test_the_column_of_its_own_name_is_an_edit() -> None:
    [finding] = both.check(None, {}).without("HF301").findings
    assert finding.help == ("write .advantage",)
    [fix] = finding.fixes
    text = apply(Path(__file__).read_text("utf-8"), fix.edits)
    assert "    return AdvantagesAndReturns(advantage=estimates.advantage, returns=estimates.returns)\n" in text


@hf.dataflow
def exchanged(estimates: AdvantagesAndReturns) -> AdvantagesAndReturns:
    return AdvantagesAndReturns(advantage=estimates.returns, returns=estimates.advantage)


@hf.dataflow
def named_otherwise(shaped: Shaped) -> Judged:
    """The names of a user's records mean what the user says."""
    return Judged(score=shaped.shaped)


@hf.dataflow
def recomputed(rollout: Rollout, policy: ReferenceLogProbs) -> Rollout:
    """The source has no column of that name."""
    return Rollout(
        ids=rollout.ids, mask=rollout.mask, response_mask=rollout.response_mask, log_probs=policy.ref_log_probs
    )


@pytest.mark.parametrize("flow", [exchanged, named_otherwise, recomputed])
def test_other_names_are_meant(flow: Dataflow[..., Any]) -> None:
    assert flow.check(None, {}).without("HF301").findings == ()
