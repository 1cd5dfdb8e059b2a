"""The metrics of every update, against plain Python over the tokens of the whole batch.

Rows have responses of unlike lengths, none too, so that ranks and micro-batches have unlike numbers of tokens: a mean
of their means would be another number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl import workers as w
from hfdsl.rl.batches import (
    ActorMetrics,
    B,
    CriticMetrics,
    Experience,
    ImitationMetrics,
    P,
    PreferenceMetrics,
    Preferences,
    R,
    Sequences,
    ValueExperience,
)
from hfdsl.rl.corrections import Correction
from hfdsl.rl.losses import DPO, Clip, ClippedValue, PolicyLoss, Reinforce, SequenceClip
from hfdsl.rl.models.loading import load
from tests.rl import oracle
from tests.rl.workers import tiny
from tests.rl.workers.programs import numbers

Rows = list[list[float]]
ROWS = 8
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: tiny.PROMPT, R: tiny.RESPONSE}
AGGREGATIONS = "token-mean", "sequence-mean-token-mean", "sequence-mean-token-sum"


@hf.dataflow
def policy_step(experience: Experience, actor: w.Actor, *, loss: PolicyLoss = Clip()) -> ActorMetrics:
    return actor.update(experience, loss=loss)


@hf.dataflow
def value_step(experience: ValueExperience, critic: w.Critic, *, loss: ClippedValue = ClippedValue()) -> CriticMetrics:
    return critic.update(experience, loss=loss)


@hf.dataflow
def preference_step(preferences: Preferences, actor: w.Actor, *, loss: DPO = DPO()) -> PreferenceMetrics:
    return actor.prefer(preferences, loss=loss)


@hf.dataflow
def imitation_step(sequences: Sequences, actor: w.Actor) -> ImitationMetrics:
    return actor.imitate(sequences)


class Alone(AxisGroup):
    size, rank = 1, 0

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


@dataclass(frozen=True)
class Case:
    """Sequences with some columns of random numbers."""

    lengths: tuple[int, ...]
    seed: int
    dp: int
    batching: w.BatchingConfig

    @property
    def mask(self) -> torch.Tensor:
        return torch.arange(tiny.RESPONSE) < torch.tensor(self.lengths)[:, None]

    @property
    def columns(self) -> dict[str, Any]:
        prompts = tiny.prompts(ROWS, self.seed)
        draw = torch.Generator().manual_seed(self.seed)
        response = torch.randint(1, tiny.VOCABULARY, (ROWS, tiny.RESPONSE), generator=draw) * self.mask
        return {
            "ids": torch.cat([prompts.ids.tensor, response], 1),
            "mask": torch.cat([prompts.mask.tensor, self.mask], 1),
            "response_mask": self.mask,
        }

    def noise(self, name: int, scale: float = 1.0) -> torch.Tensor:
        draw = torch.Generator().manual_seed(self.seed * 100 + name)
        return scale * torch.randn(ROWS, tiny.RESPONSE, generator=draw)

    def tokens(self, column: torch.Tensor) -> Rows:
        """The numbers of every row's own tokens."""
        return [row[:length].tolist() for row, length in zip(column, self.lengths, strict=True)]

    @cache  # noqa: B019  # few cases live, and a frozen one stays the same
    def policy(self) -> tuple[Rows, Rows]:
        """The log-probs of the responses' tokens, and the entropies, from the model's logits."""
        model, columns = load(tiny.MODEL, Alone()), self.columns
        position = (columns["mask"].long().cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            logits = model(
                input_ids=columns["ids"], attention_mask=columns["mask"].long(), position_ids=position
            ).logits[:, tiny.PROMPT - 1 : -1]
        log_probs, entropies = list[list[float]](), list[list[float]]()
        for row, length in enumerate(self.lengths):
            chosen = columns["ids"][row, tiny.PROMPT :].tolist()
            log_softmaxes = [log_softmax(logits[row, r].tolist()) for r in range(length)]
            log_probs.append([logs[chosen[r]] for r, logs in enumerate(log_softmaxes)])
            entropies.append([-math.fsum(math.exp(x) * x for x in logs) for logs in log_softmaxes])
        return log_probs, entropies

    def near(self, rows: Rows, name: int) -> torch.Tensor:
        """A column near the numbers of the rows."""
        column = self.noise(name, 0.2)
        column[self.mask] += torch.tensor([x for row in rows for x in row])
        return column * self.mask

    def ran(self, flow: Any, batch: hf.Batch, **roles: Any) -> dict[str, float]:
        deployment = tiny.deployment(
            self.dp, **{name: replace(config, batching=self.batching) for name, config in roles.items()}
        )
        with flow.compile(deployment, SIZES).launch("local") as running:
            return numbers(running.step(batch))


def log_softmax(logits: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def mean(rows: Rows) -> float:
    return oracle.mean([x for row in rows for x in row])


def by_token(function: Callable[..., float], *columns: Rows) -> Rows:
    return [[function(*token) for token in zip(*row, strict=True)] for row in zip(*columns, strict=True)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = draw(st.lists(st.integers(0, tiny.RESPONSE), min_size=ROWS, max_size=ROWS).filter(any))
    batching = draw(st.sampled_from([w.BatchingConfig(rows=2), w.BatchingConfig(rows=3), w.BatchingConfig(tokens=25)]))
    return Case(tuple(lengths), draw(st.integers(0, 99)), draw(st.sampled_from([1, 2, 4])), batching)


aggregations = st.sampled_from(AGGREGATIONS)
policy_losses = st.one_of(
    st.builds(Clip, st.just(0.1), st.just(0.2), st.sampled_from([None, 1.1]), kl=st.just(0.1), entropy=st.just(0.01)),
    st.builds(SequenceClip, st.just(0.05), st.just(0.1), kl=st.just(0.1)),
    st.builds(Reinforce, kl=st.just(0.1), entropy=st.just(0.01)),
)


def clipping(loss: PolicyLoss, new: Rows, old: Rows, advantage: Rows) -> tuple[Rows, Rows]:
    """The surrogate of every token, and 1 where it is not that of the ratio itself."""
    if isinstance(loss, Reinforce):
        return by_token(lambda x, _, a: -a * x, new, old, advantage), by_token(lambda *_: 0.0, new, old, advantage)
    if isinstance(loss, SequenceClip):
        ratios = [math.log(oracle.sequence_ratio(a, b)) if a else 0.0 for a, b in zip(new, old, strict=True)]
        new, old = [[ratio] * len(row) for ratio, row in zip(ratios, new, strict=True)], [[0.0] * len(x) for x in old]
    assert isinstance(loss, (Clip, SequenceClip))
    dual = loss.dual if isinstance(loss, Clip) else None
    terms = by_token(lambda x, y, a: oracle.clip_loss(x, y, a, loss.low, loss.high, dual), new, old, advantage)
    plain = by_token(lambda x, y, a: -math.exp(x - y) * a, new, old, advantage)
    return terms, by_token(lambda x, y: float(abs(x - y) > 1e-9), terms, plain)


@settings(max_examples=30)
@given(cases(), policy_losses, aggregations, st.sampled_from(["k1", "k2", "k3", "abs"]))
def test_of_a_policy(case: Case, loss: PolicyLoss, aggregation: Any, estimator: Any) -> None:
    loss = replace(loss, aggregation=aggregation, estimator=estimator, constant=7.0)
    new, entropies = case.policy()
    old, reference, advantage = case.near(new, 1), case.near(new, 2), case.noise(3)
    if isinstance(loss, SequenceClip):  # the advantages of responses
        advantage = advantage[:, :1].expand_as(advantage).contiguous()
    batch = Experience(**case.columns, log_probs=old, advantage=advantage, ref_log_probs=hf.f32(reference))
    metrics = case.ran(policy_step.given(loss=loss), batch, actor=tiny.ACTOR)
    olds, references = case.tokens(old), case.tokens(reference)
    terms, clipped = clipping(loss, new, olds, case.tokens(advantage))
    distance = by_token(lambda x, y: oracle.kl(estimator, x, y), new, references)
    total = by_token(lambda x, d, h: x + loss.kl * d - loss.entropy * h, terms, distance, entropies)
    expected = {
        "loss": oracle.aggregated(total, aggregation, 7.0),
        "tokens": sum(case.lengths),
        "clipped": mean(clipped),
        "kl": mean(by_token(lambda x, y: oracle.kl("k3", y, x), new, olds)),
        "reference_kl": mean(distance),
        "entropy": mean(entropies),
        **dict.fromkeys(("engine_gap", "engine_gap_max", "engine_kl", "engine_outside"), 0.0),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=2e-6)
    assert 0 <= metrics["clipped"] <= 1
    assert metrics["entropy"] <= math.log(tiny.VOCABULARY) + 1e-6


@settings(max_examples=10)
@given(cases(), aggregations, st.sampled_from(["token", "sequence"]), st.sampled_from(["truncate", "mask"]))
def test_of_a_policy_whose_engine_is_another(case: Case, aggregation: Any, level: Any, outside: Any) -> None:
    correction = Correction(level=level, outside=outside, low=0.9, high=1.1)
    loss = Reinforce(aggregation=aggregation, constant=7.0, correction=correction)
    new, _ = case.policy()
    old, advantage = case.near(new, 1), case.noise(3)
    engine = old + case.noise(4, 0.1) * case.mask
    batch = Experience(**case.columns, log_probs=old, advantage=advantage, engine_log_probs=hf.f32(engine))
    metrics = case.ran(policy_step.given(loss=loss), batch, actor=tiny.ACTOR)
    olds, engines, advantages = case.tokens(old), case.tokens(engine), case.tokens(advantage)
    weights = [
        oracle.importance_weights(trainer, sampled, level, outside, 0.9, 1.1)
        for trainer, sampled in zip(olds, engines, strict=True)
    ]
    ratios = by_token(lambda p, q: math.exp(p - q), olds, engines)
    if level == "sequence":
        ratios = [[math.prod(row)] * len(row) for row in ratios]
    gaps = by_token(lambda p, q: abs(p - q), olds, engines)
    terms = by_token(lambda x, a, w: 0.0 if math.isnan(w) else -w * a * x, new, advantages, weights)
    expected = {
        "loss": oracle.aggregated(terms, aggregation, 7.0),
        "engine_gap": mean(gaps),
        "engine_gap_max": max(gap for row in gaps for gap in row),
        "engine_kl": mean(by_token(lambda p, q: oracle.kl("k3", q, p), olds, engines)),
        "engine_outside": mean([[float(not 0.9 <= ratio <= 1.1) for ratio in row] for row in ratios]),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=2e-6)


@settings(max_examples=10)
@given(cases(), aggregations)
def test_of_a_critic(case: Case, aggregation: Any) -> None:
    loss = ClippedValue(0.2, aggregation=aggregation, constant=7.0)
    old, returns = case.noise(1), case.noise(2)
    batch = ValueExperience(**case.columns, values=old, returns=returns)
    metrics = case.ran(value_step.given(loss=loss), batch, critic=tiny.CRITIC)
    pairs = case.tokens(old), case.tokens(returns)  # the head of a new critic is zero, so its values are
    terms = by_token(lambda v, g: oracle.value_loss(0.0, v, g, 0.2), *pairs)
    clipped = by_token(lambda x, g: float(x > g * g / 2), terms, pairs[1])
    expected = {
        "loss": oracle.aggregated(terms, aggregation, 7.0),
        "tokens": sum(case.lengths),
        "clipped": mean(clipped),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=2e-6)


@settings(max_examples=10)
@given(cases())
def test_of_imitation(case: Case) -> None:
    log_probs, entropies = case.policy()
    metrics = case.ran(imitation_step, Sequences(**case.columns), actor=tiny.ACTOR)
    expected = {"loss": -mean(log_probs), "tokens": sum(case.lengths), "entropy": mean(entropies)}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=2e-6)


@settings(max_examples=10)
@given(cases(), st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=ROWS // 2, max_size=ROWS // 2))
def test_of_preferences(case: Case, signs: list[float]) -> None:
    log_probs, _ = case.policy()
    reference = case.near(log_probs, 1)
    preference = torch.tensor([side for sign in signs for side in (sign, -sign)])
    batch = Preferences(**case.columns, ref_log_probs=reference, preference=preference)
    metrics = case.ran(preference_step.given(loss=DPO(0.3, 0.1)), batch, actor=tiny.ACTOR)
    gains = [math.fsum(a) - math.fsum(b) for a, b in zip(log_probs, case.tokens(reference), strict=True)]
    margins = [0.3 * sign * (gains[2 * i] - gains[2 * i + 1]) for i, sign in enumerate(signs) if sign]
    losses = [0.9 * math.log1p(math.exp(-margin)) + 0.1 * math.log1p(math.exp(margin)) for margin in margins]
    expected = {
        "loss": oracle.mean(losses),
        "tokens": sum(case.lengths),
        "margin": oracle.mean(margins),
        "correct": oracle.mean([float(margin > 0) for margin in margins]),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=2e-6)
