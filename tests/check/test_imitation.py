"""Responses that the ready-made roles imitate: chosen ones, and all that there are."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import bool_
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import B, ImitationMetrics, Pairs, Prompts, Rollout, Scores, Sequences
from hfdsl.rl.dataflows.supervised import supervised
from hfdsl.rl.sampling import sample, synced
from hfdsl.rl.workers import Actor, Reward, Sampler
from tests.check.test_ready_roles import check, places, responses


class Chosen(hf.Batch):
    keep: bool_[B]


@hf.function
def passed(scores: Scores) -> Chosen:
    return Chosen(keep=scores.score.tensor > 0)


@hf.function
def better(pairs: Pairs) -> Chosen:
    return Chosen(keep=pairs.preference.tensor > 0)


@hf.function(rows=hf.Whole)
def shuffled(rollout: Rollout) -> Sequences:
    rows = rollout.ids.tensor.flip(0), rollout.mask.tensor.flip(0), rollout.response_mask.tensor.flip(0)
    return Sequences(ids=rows[0], mask=rows[1], response_mask=rows[2])


@hf.dataflow
def own(
    prompts: Prompts, actor: Actor, sampler: Sampler | None = None, *, greedy: bool = False, parts: int = 1
) -> list[ImitationMetrics]:
    source = synced(actor, sampler)
    rollout = source.generate(prompts, greedy=True) if greedy else sample(prompts, actor, source)
    return [actor.imitate(part) for part in hf.minibatches(rollout, parts)]


@hf.dataflow
def of_pairs(pairs: Pairs, actor: Actor, *, chosen: bool = False) -> ImitationMetrics:
    return actor.imitate(hf.fill(hf.filter(pairs, better(pairs).keep), 4) if chosen else pairs)


@hf.dataflow
def rejected(prompts: Prompts, actor: Actor, reward: Reward) -> ImitationMetrics:
    rollout = actor.generate(prompts)
    return actor.imitate(hf.fill(hf.filter(rollout, passed(reward.score(prompts, rollout)).keep), 4))


@hf.dataflow
def of_another_policy(prompts: Prompts, actor: Actor, left: Actor) -> ImitationMetrics:
    return actor.imitate(left.generate(prompts))


@hf.dataflow
def chosen_by_a_function(prompts: Prompts, actor: Actor) -> ImitationMetrics:
    return actor.imitate(shuffled(actor.generate(prompts)))


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("sampler", [None, Sampler])
def test_a_policy_does_not_imitate_all_that_it_samples(sampler: type[Sampler] | None, parts: int) -> None:
    [finding] = check(own.given(sampler=sampler, parts=parts), places()).findings
    assert finding.code == "HF346"
    assert finding.message == (
        "'actor.imitate' imitates every response that it sampled: nothing has chosen what 'actor' learns"
    )


def test_a_policy_does_not_imitate_the_worse_response_of_a_pair() -> None:
    [finding] = check(of_pairs, places()).findings
    assert finding.code == "HF346"
    assert finding.message == (
        "'actor.imitate' imitates both responses of each pair, the worse one too: nothing has chosen what 'actor' "
        "learns"
    )
    assert check(of_pairs.given(chosen=True), places()).findings == ()


@pytest.mark.parametrize(
    ("flow", "roles"),
    [
        (own.given(greedy=True), places()),
        (own, places(actor=responses(top_p=0.9))),
        (rejected, places()),
        (of_another_policy, places()),
        (chosen_by_a_function, places()),
        (supervised, places()),
    ],
)
def test_other_responses_are_chosen(flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]]) -> None:
    assert check(flow, roles).findings == ()
