"""Dropout of updates that form ratios, and of others, on the ready-made roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.dataflows.dpo import dpo
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.dataflows.remax import remax
from hfdsl.rl.dataflows.supervised import supervised
from hfdsl.rl.workers.lora import Lora
from tests.check.test_ready_roles import MODEL, check, places


def dropping(role: str, *, adapter: float = 0.0, **shares: float) -> dict[str, hf.Placement[Any]]:
    """The roles, one of which has an adapter, and a model with other dropouts."""
    roles = places()
    old = roles[role]
    model = replace(MODEL, config={**(MODEL.config or {}), **shares})
    config = replace(old.args[0], model=model, lora=Lora(rank=2, dropout=adapter))
    return {**roles, role: hf.place(old.role, config, pool=old.pool)}


@pytest.mark.parametrize("flow", [grpo, ppo])
@pytest.mark.parametrize(
    ("roles", "settings"),
    [
        (dropping("actor", adapter=0.05), "lora.dropout = 0.05"),
        (dropping("actor", attention_dropout=0.1), "model.config.attention_dropout = 0.1"),
        (dropping("actor", adapter=0.5, resid_pdrop=0.1), "lora.dropout = 0.5, model.config.resid_pdrop = 0.1"),
    ],
)
def test_an_update_with_a_ratio_drops_nothing(
    flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]], settings: str
) -> None:
    [finding] = check(flow, roles).findings
    assert (finding.code, finding.primary.span) == ("HF945", roles["actor"].span)
    assert finding.message == (
        f"'actor.update' computes with dropout ({settings}), but divides by log-probs without it: ratios do not start "
        "at 1"
    )


@pytest.mark.parametrize(
    ("flow", "roles"),
    [
        (ppo, dropping("critic", adapter=0.1)),
        (grpo, dropping("actor", attention_dropout=0.0)),
        (remax, dropping("actor", adapter=0.1)),
        (supervised, dropping("actor", adapter=0.1)),
        (dpo, dropping("actor", adapter=0.1)),
    ],
)
def test_other_updates_may_drop(flow: Dataflow[..., Any], roles: dict[str, hf.Placement[Any]]) -> None:
    assert check(flow, roles).findings == ()
