"""Roles that remember a number: the KL penalty and the Lagrange multiplier; and updates on preferences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, Costs, P, PreferenceMetrics, Preferences, R, ReferenceLogProbs, Rewards, Rollout, Scores
from hfdsl.rl.kl import AdaptiveKL, FixedKL
from hfdsl.rl.lagrangian import Multiplier
from hfdsl.rl.losses import DPO
from tests.rl.workers.tiny import ACTOR, PROMPT, RESPONSE, demonstrations

SIZES: dict[type[hf.Dim], int] = {B: 4, P: PROMPT, R: RESPONSE}


def rollout(rows: int, gap: float) -> tuple[Rollout, ReferenceLogProbs, Scores]:
    """Responses that the reference finds e**gap times less likely, token by token."""
    sequences = demonstrations(rows)
    columns = {name: getattr(sequences, name).tensor for name in ("ids", "mask", "response_mask")}
    log_probs = torch.full((rows, RESPONSE), -1.0) * columns["response_mask"]
    responses = Rollout(**columns, log_probs=log_probs)
    return responses, ReferenceLogProbs(ref_log_probs=log_probs - gap), Scores(score=torch.arange(float(rows)))


@hf.dataflow
def rewarded(responses: Rollout, reference: ReferenceLogProbs, scores: Scores, penalty: w.KLPenalty) -> Rewards:
    return penalty.rewards(responses, reference, scores)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_penalty_follows_the_kl_of_whole_responses(ranks: int) -> None:
    control = AdaptiveKL(0.5, target=1.0)
    places = hf.Deployment(penalty=hf.place(w.KLPenalty, control, pool=hf.ResourcePool([ranks], use_gpu=False)))
    responses, reference, scores = rollout(4, gap=0.25)
    mask = responses.response_mask.tensor
    kl = 0.25 * float(mask.sum()) / 4
    with rewarded.compile(places, SIZES).launch("local") as running:
        for coefficient in (0.5, control.after(kl).coefficient):
            rewards = running.step(responses, reference, scores).rewards.tensor
            expected = -coefficient * 0.25 * mask.float()
            expected[torch.arange(4), mask.sum(1) - 1] += scores.score.tensor
            torch.testing.assert_close(rewards, expected)
    assert control.after(kl) != control


def test_a_fixed_penalty_stays() -> None:
    penalty = w.KLPenalty(FixedKL(0.5))
    first = rewarded(*rollout(4, gap=1.0), penalty)
    assert torch.equal(rewarded(*rollout(4, gap=1.0), penalty).rewards.tensor, first.rewards.tensor)


def test_memories_are_saved_and_loaded() -> None:
    penalty, restored = w.KLPenalty(AdaptiveKL(0.5)), w.KLPenalty(AdaptiveKL(0.1))
    rewarded(*rollout(4, gap=2.0), penalty)
    restored.load_state(penalty.state())
    assert restored.control == penalty.control != AdaptiveKL(0.5)
    multiplier, second = w.LagrangeMultiplier(Multiplier(2.0)), w.LagrangeMultiplier(Multiplier(1.0))
    priced(Costs(cost=torch.ones(4)), multiplier)
    second.load_state(multiplier.state())
    assert second.multiplier == multiplier.multiplier != Multiplier(2.0)


@hf.dataflow
def priced(costs: Costs, multiplier: w.LagrangeMultiplier) -> float:
    return multiplier.after(costs)


def test_the_multiplier_follows_the_mean_cost_of_the_whole_batch() -> None:
    pool = hf.ResourcePool([2], use_gpu=False)
    places = hf.Deployment(multiplier=hf.place(w.LagrangeMultiplier, Multiplier(1.0, rate=0.1), pool=pool))
    with priced.compile(places, {B: 4}).launch("local") as running:
        first = running.step(Costs(cost=torch.tensor([0.0, 0.0, 0.0, 4.0])))
        second = running.step(Costs(cost=torch.tensor([0.0, 0.0, 0.0, 4.0])))
    assert first == pytest.approx(math.exp(0.1))
    assert math.log(second) == pytest.approx(0.1 + 0.1 * first)


# -- preferences


@hf.dataflow
def preferred(pairs: Preferences, actor: w.Actor) -> PreferenceMetrics:
    return actor.prefer(pairs, loss=DPO(0.5))


def pairs(choices: list[float]) -> Preferences:
    responses, _, _ = rollout(len(choices), gap=0.0)
    columns: dict[str, Any] = {name: getattr(responses, name).tensor for name in ("ids", "mask", "response_mask")}
    ref = torch.full((len(choices), RESPONSE), -2.0) * columns["response_mask"]
    return Preferences(**columns, ref_log_probs=ref, preference=torch.tensor(choices))


def direct(preferences: Preferences, actor: w.Actor) -> tuple[float, float, float, dict[str, torch.Tensor]]:
    """Loss, margin, correct, and the gradient, from one pass over all rows with gradients."""
    ids, mask, response = (getattr(preferences, name).tensor for name in ("ids", "mask", "response_mask"))
    log_probs, _ = actor.policy(ids, mask, RESPONSE)
    gains = ((log_probs - preferences.ref_log_probs.tensor) * response).sum(1)
    margins = [
        0.5 * (gains[row] - gains[row + 1]) * preferences.preference.tensor[row]
        for row in range(0, len(ids), 2)
        if preferences.preference.tensor[row] != 0
    ]
    loss = sum(-margin.sigmoid().log() for margin in margins) / len(margins)
    names = dict(actor.policy.named_parameters())
    gradients = torch.autograd.grad(loss, list(names.values()))
    mean = sum(float(margin.detach()) for margin in margins) / len(margins)
    correct = sum(bool(margin > 0) for margin in margins) / len(margins)
    return float(loss.detach()), mean, correct, dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("choices", [[1.0, -1.0, -1.0, 1.0], [0.0, 0.0, -1.0, 1.0]])
@pytest.mark.parametrize("batching", [w.BatchingConfig(rows=1), w.BatchingConfig(tokens=1), w.BatchingConfig()])
def test_an_update_on_preferences_has_the_gradient_of_dpo(choices: list[float], batching: w.BatchingConfig) -> None:
    actor, preferences = w.Actor(replace(ACTOR, batching=batching)), pairs(choices)
    loss, margin, correct, gradients = direct(preferences, actor)
    metrics = preferred(preferences, actor)
    assert metrics.loss.value == pytest.approx(loss, rel=1e-4)
    assert metrics.margin.value == pytest.approx(margin, rel=1e-4)
    assert metrics.correct.value == correct
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert metrics.grad_norm.value == pytest.approx(float(norm), rel=1e-3)


def test_pairs_without_a_better_one_change_nothing() -> None:
    actor = w.Actor(ACTOR)
    before = {name: value.clone() for name, value in actor.policy.state_dict().items()}
    metrics = preferred(pairs([0.0, 0.0, 0.0, 0.0]), actor)
    assert (metrics.loss.value, metrics.grad_norm.value) == (0.0, 0.0)
    for name, value in actor.policy.state_dict().items():
        assert torch.equal(value, before[name])


def test_ranks_prefer_as_one() -> None:
    losses = []
    for ranks in (1, 2):
        places = hf.Deployment(actor=hf.place(w.Actor, ACTOR, pool=hf.ResourcePool([ranks], use_gpu=False)))
        with preferred.compile(places, SIZES).launch("local") as running:
            metrics = [running.step(pairs([1.0, -1.0, -1.0, 1.0])) for _ in range(3)]
        losses.append([step.loss.value for step in metrics])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][0] > losses[0][-1]


def test_pairs_stay_together() -> None:
    places = hf.Deployment(actor=hf.place(w.Actor, ACTOR, pool=hf.ResourcePool([4], use_gpu=False)))
    assert preferred.check(places, {**SIZES, B: 12}).codes == ("HF313",)
