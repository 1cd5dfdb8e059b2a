"""Vocabularies: which models read which tokens, on the ready-made roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.dataflows.distillation import distillation
from hfdsl.rl.dataflows.dpo import dpo
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.mutual import mutual
from hfdsl.rl.dataflows.ppo import ppo
from hfdsl.rl.workers import ModelConfig, Verifier, VerifierConfig
from tests.check.test_ready_roles import check, places


def of(tokens: int, *others: str, other: int) -> dict[str, hf.Placement[Any]]:
    """The roles with a vocabulary, and some of them with another."""
    sizes = {role: other if role in others else tokens for role in places()}
    return {
        role: hf.place(place.role, replace(place.args[0], model=model(sizes[role])), pool=place.pool)
        for role, place in places().items()
    }


def model(tokens: int) -> ModelConfig:
    return ModelConfig(config={"model_type": "llama", "pad_token_id": 0, "vocab_size": tokens})


@pytest.mark.parametrize(
    ("flow", "role", "whose"),
    [
        (ppo, "critic", "whose token ids 'critic.values' reads"),
        (ppo, "reward", "whose token ids 'reward.score' reads"),
        (grpo, "reference", "whose token ids 'reference.log_probs' reads"),
        (distillation, "teacher", "whose token ids 'teacher.log_probs' reads"),
        (dpo, "reference", "which reads the same token ids"),
    ],
)
@pytest.mark.parametrize("tokens", [49_152, 151_936])
def test_a_reader_has_the_vocabulary(flow: Dataflow[..., Any], role: str, whose: str, tokens: int) -> None:
    roles = of(tokens, role, other=128_256)
    [finding] = check(flow, roles).without("HF967").findings  # of models without files
    assert finding.code == "HF341"
    assert finding.message == (f"'{role}' has a vocabulary of 128,256 tokens, and 'actor', {whose}, of {tokens:,}")
    assert finding.primary.span == roles[role].span


def test_two_policies_that_read_each_other_have_one_vocabulary() -> None:
    findings = check(mutual, of(32_000, "right", other=64_000)).without("HF967").findings
    assert {finding.code for finding in findings} == {"HF341"}
    assert [finding.message.split("'")[1] for finding in findings] == ["reward", "right", "left"]


@pytest.mark.parametrize(("tokens", "other", "differ"), [(10_000, 10_100, False), (10_000, 10_102, True)])
def test_padding_is_no_other_vocabulary(tokens: int, other: int, *, differ: bool) -> None:
    assert check(dpo, of(tokens, "reference", other=other)).codes == ("HF341",) * differ


def test_what_decodes_tokens_has_no_vocabulary() -> None:
    roles = of(32_000, other=0)
    verifier = hf.place(Verifier, VerifierConfig(function="math:fsum"), pool=roles["reward"].pool)
    assert check(ppo, {**roles, "reward": verifier}).findings == ()
    unknown = hf.place(
        roles["reference"].role, replace(roles["reference"].args[0], model=ModelConfig("x")), pool=verifier.pool
    )
    assert check(dpo, {**roles, "reference": unknown}).findings == ()
