"""The log-probs of another engine on their way from a rollout, through ready-made dataflows, to the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.corrections import Correction
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.losses import Clip
from tests.rl import oracle
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES

GAP = 0.125


class Engine(w.Actor):
    """An actor whose engine finds every token e**GAP times likelier than the trainer does."""

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts, *, greedy: bool = False) -> Rollout:
        rollout = super().generate(prompts, greedy=greedy)
        columns: dict[str, Any] = {name: getattr(rollout, name).tensor for name in ("ids", "mask", "response_mask")}
        log_probs = rollout.log_probs.tensor
        engine = log_probs + GAP * columns["response_mask"]
        return Rollout(**columns, log_probs=log_probs, engine_log_probs=hf.f32(engine))


def metrics(actor: type[w.Actor], correction: Correction | None, ranks: int = 2) -> Any:
    flow = grpo.given(group=2, updates=1, loss=Clip(0.2, correction=correction))
    roles = {"reference": tiny.REFERENCE, "reward": tiny.VERIFIER}
    pool = hf.ResourcePool([ranks], use_gpu=False)
    places = {role: hf.place(tiny.CLASSES[role], config, pool=pool) for role, config in roles.items()}
    deployment = hf.Deployment(actor=hf.place(actor, tiny.ACTOR, pool=pool), **places)
    with flow.compile(deployment, SIZES).launch("local", seed=3) as running:
        result, _ = running.step(tiny.prompts(ROWS))
    return result


def test_the_gap_between_the_engines_is_reported() -> None:
    result = metrics(Engine, Correction(outside="mask", low=0.5))
    assert result.engine_gap.value == pytest.approx(GAP, rel=1e-4)
    assert result.engine_gap_max.value == pytest.approx(GAP, rel=1e-4)
    assert result.engine_kl.value == pytest.approx(oracle.kl("k3", GAP, 0.0), rel=1e-3)
    assert result.engine_outside.value == 0
    assert metrics(Engine, Correction(outside="mask", low=0.9)).engine_outside.value == 1


def test_a_correction_scales_the_gradient_and_a_mask_ends_it() -> None:
    truncated, at_bound, uncorrected, masked = (
        metrics(Engine, correction).grad_norm.value
        for correction in (Correction(), Correction(low=1.0), None, Correction(outside="mask", low=0.9))
    )
    assert at_bound == uncorrected > 0
    assert truncated == pytest.approx(math.exp(-GAP) * uncorrected, rel=1e-4)
    assert masked == 0


def test_an_engine_of_the_trainers_own_needs_no_correction() -> None:
    results = [metrics(w.Actor, correction) for correction in (Correction(), None)]
    assert results[0].engine_gap.value == results[0].engine_gap_max.value == results[0].engine_outside.value == 0
    assert results[0].grad_norm.value == results[1].grad_norm.value > 0
