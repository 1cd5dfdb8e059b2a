"""PPO and GRPO with the ready-made roles: checked, and run on the local backend."""

from __future__ import annotations

import pytest

import hfdsl as hf
from hfdsl.rl.batches import B, P, R
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.ppo import ppo
from tests.rl.workers.tiny import ACTOR, CRITIC, PROMPT, REFERENCE, RESPONSE, VERIFIER, deployment, prompts

SIZES: dict[type[hf.Dim], int] = {B: 8, P: PROMPT, R: RESPONSE}


@pytest.mark.nightly
def test_ppo_learns() -> None:
    roles = deployment(2, actor=ACTOR, critic=CRITIC, reference=REFERENCE, reward=VERIFIER)
    assert ppo.check(roles, SIZES).codes == ()
    with ppo.compile(roles, SIZES).launch("local") as running:
        outcomes = [running.step(prompts(8, seed)) for seed in range(12)]
    actor, critic, _ = outcomes[0]
    assert actor.tokens.value == critic.tokens.value > 0
    assert actor.grad_norm.value > 0
    assert critic.loss.value > 0
    assert outcomes[-1][2].score.value > outcomes[0][2].score.value


def test_grpo_learns() -> None:
    roles = deployment(2, actor=ACTOR, reference=REFERENCE, reward=VERIFIER)
    assert grpo.check(roles, SIZES).codes == ()
    with grpo.compile(roles, SIZES).launch("local") as running:
        outcomes = [running.step(prompts(8, seed)) for seed in range(8)]
    assert outcomes[0][0].reference_kl.value >= 0
    assert outcomes[-1][1].score.value > outcomes[0][1].score.value
