"""End tokens of responses, in deployments written in Python."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl.rl.dataflows.grpo import grpo_without_reference
from hfdsl.rl.workers import Actor, ActorConfig, ModelConfig
from tests.check.test_ready_roles import check, places, responses


def ending(own: Any, ends: tuple[int, ...] | None) -> dict[str, hf.Placement[Any]]:
    model = ModelConfig(
        config={"model_type": "llama", "pad_token_id": 0, "vocab_size": 64, "eos_token_id": own}, end_tokens=ends
    )
    pool = hf.ResourcePool([1], name="pool")
    return {**places(), "actor": hf.place(Actor, ActorConfig(model, responses()), pool=pool)}


@pytest.mark.parametrize(("own", "ends", "missed"), [(2, (7,), 2), (2, (), 2), ([3, 5], (7,), 3)])
def test_a_model_ends_its_responses(own: Any, ends: tuple[int, ...], missed: int) -> None:
    [finding] = check(grpo_without_reference, ending(own, ends)).findings
    assert finding.code == "HF909"
    assert finding.message == (
        f"'actor' continues after token {missed}, with which its model ends a text: what follows is scored and "
        "trained on as part of the response"
    )


@pytest.mark.parametrize(("own", "ends"), [(2, None), (2, (2, 7)), ([3, 5], (5,)), (None, (7,))])
def test_end_tokens_that_suffice(own: Any, ends: tuple[int, ...] | None) -> None:
    assert check(grpo_without_reference, ending(own, ends)).findings == ()
