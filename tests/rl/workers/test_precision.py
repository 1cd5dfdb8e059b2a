"""A sampler in bfloat16 beside an actor in float32: what it costs, and that the actor's own log-probs correct it."""

from __future__ import annotations

import pytest

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, Experience, Prompts, ReferenceLogProbs, Rollout
from hfdsl.rl.functions import with_log_probs
from tests.rl.workers import tiny
from tests.rl.workers.programs import ALONE, ROWS, SIZES, advantages


@hf.dataflow
def both(
    prompts: Prompts, actor: w.Actor, sampler: w.Sampler, reward: w.Reward, *, corrected: bool = False
) -> tuple[ActorMetrics, Rollout, ReferenceLogProbs]:
    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts)
    of_actor = actor.log_probs(rollout)
    trained = with_log_probs(rollout, of_actor) if corrected else rollout
    experience = hf.merge(Experience, trained, advantages(rollout, reward.score(prompts, rollout)))
    return actor.update(experience, loss=ALONE), rollout, of_actor


@pytest.mark.parametrize("corrected", [False, True])
def test_the_first_update_is_at_a_ratio_of_one_with_the_actors_log_probs(corrected: bool) -> None:
    sampler = w.SamplerConfig(tiny.MODEL, tiny.GENERATION, autocast="bfloat16", batching=tiny.FIXED)
    roles = tiny.deployment(2, actor=tiny.ACTOR, sampler=sampler, reward=tiny.VERIFIER)
    flow = both.given(corrected=corrected)
    assert flow.check(roles, SIZES).codes == (() if corrected else ("HF942",))
    with flow.compile(roles, SIZES).launch("local") as running:
        metrics, rollout, of_actor = running.step(tiny.prompts(ROWS))
    gap = (rollout.log_probs.tensor - of_actor.ref_log_probs.tensor).abs()
    assert 0 < gap.max() < 0.2
    assert (metrics.kl.value == 0) == corrected
