"""The configurations of ready-made algorithms have what their dataflows have, and a run can be written in Python."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_type_hints

import pytest

from hfdsl.errors import ConfigError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl import dataflows
from hfdsl.rl.corrections import Correction
from hfdsl.rl.data.prompts import Prompt
from hfdsl.rl.data.sources import JsonLines
from hfdsl.rl.data.tokenizers import Characters
from hfdsl.rl.training.algorithms import GRPO, READY, READY_OPTIONS, DAPORounds, DAPOUpdate, GRPOOptions
from hfdsl.rl.training.config import from_config, from_table
from hfdsl.rl.training.config_names import READY_ROOM, by_name, read_names
from hfdsl.rl.training.json_schema import field_docs
from hfdsl.rl.training.placement import DeploymentConfig, PlacementConfig, PoolConfig
from hfdsl.rl.training.run_config import DataConfig, RunConfig
from hfdsl.rl.training.typed import hints
from hfdsl.rl.workers import (
    Actor,
    ActorConfig,
    GenerationConfig,
    ModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    Reward,
    SamplerConfig,
    TrainingConfig,
    VerifierConfig,
)

VERIFIER = {"reward": "hfdsl.rl.workers:Verifier"}


def grpo(**changes: Any) -> GRPO:
    model = ModelConfig(path="model")
    values: dict[str, Any] = {
        "options": GRPOOptions(group=4),
        "roles": VERIFIER,
        "deployment": DeploymentConfig({"all": PoolConfig((2,), gpu=False)}, default=PlacementConfig("all")),
        "dims": {"B": 8, "P": 4, "R": 4},
        "data": DataConfig(JsonLines("rows.jsonl"), Characters("abc"), Prompt("{word}")),
        "steps": 3,
        "output": "run",
        "actor": ActorConfig(model, GenerationConfig(4), TrainingConfig(OptimizerConfig(learning_rate=1e-4))),
        "reference": ReferenceConfig(model),
        "reward": VerifierConfig(function="math:fsum"),
    }
    return GRPO(**values | changes)


def test_ready_names_are_those_of_their_room() -> None:
    assert all(name.startswith(READY_ROOM) for name in {*READY, *READY_OPTIONS})


@pytest.mark.parametrize("text", sorted(READY_OPTIONS))
def test_options_are_those_of_the_dataflow(text: str) -> None:
    flow, kind = by_name(text), READY_OPTIONS[text]
    annotations = get_type_hints(flow.body)
    assert {field.name: field.default for field in fields(kind)} == flow.options
    assert hints(kind) == {name: annotations[name] for name in flow.options}


@pytest.mark.parametrize("text", sorted(READY))
def test_every_policy_that_generates_can_have_a_sampler(text: str) -> None:
    flow = by_name(text)
    policies = [name for name, role in flow.trace().roles.items() if issubclass(role, Actor)]
    samplers = {"actor": "sampler", "left": "left_sampler", "right": "right_sampler"}
    has_none, needs_one = text.endswith((":supervised", ":dpo")), ".asynchronous:" in text
    assert list(flow.optional_roles) == ([] if has_none or needs_one else [samplers[name] for name in policies])
    assert needs_one == ("sampler" in flow.trace().roles)


@pytest.mark.parametrize("text", sorted(READY))
def test_roles_are_those_of_the_dataflow(text: str) -> None:
    flow = by_name(text)
    roles = {field.name for field in fields(READY[text])} - {field.name for field in fields(RunConfig)}
    assert roles == {*flow.trace().roles, *flow.optional_roles}
    assert set(flow.given(**flow.optional_roles).trace().roles) == roles
    named = VERIFIER if flow.trace().roles.get("reward") is Reward else {}
    parts, _ = read_names({"algorithm": text, "roles": named}, (), by_name)
    assert issubclass(parts.kind, READY[text])
    assert (parts.kind is READY[text]) == (not named)


def test_every_dataflow_that_a_run_can_feed_is_ready() -> None:
    names = [f"{dataflows.__name__}.{module.name}" for module in iter_modules(dataflows.__path__)]
    flows = {
        f"{module}:{name}"
        for module in names
        for name, flow in vars(import_module(module)).items()
        if isinstance(flow, Dataflow)
    }
    update = DAPOUpdate(rows=1).algorithm
    assert flows - {update} - READY.keys() == {"hfdsl.rl.dataflows.safe_rlhf:safe_rlhf"}  # it takes two batches


@pytest.mark.parametrize("kind", sorted({*READY.values(), *READY_OPTIONS.values()}, key=str))
def test_every_field_is_documented(kind: type) -> None:
    assert field_docs(kind).keys() == {field.name for field in fields(kind)}


def test_a_run_is_written_in_python() -> None:
    loaded = from_config(grpo())
    assert isinstance(loaded.config, GRPO)
    assert loaded.roles["reward"].__name__ == "Verifier"
    assert loaded.deployment()["actor"].args == (loaded.config.actor,)
    assert loaded.algorithm.options["group"] == 4
    assert loaded.experiment().check().codes == ()
    assert loaded.table() == from_config(loaded.config).table()


def test_a_sampler_has_a_table_and_a_pool() -> None:
    actor = grpo().actor
    pools = {"all": PoolConfig((2,), gpu=False), "engines": PoolConfig((4,), gpu=False)}
    places = DeploymentConfig(pools, {"sampler": PlacementConfig("engines")}, default=PlacementConfig("all"))
    loaded = from_config(grpo(sampler=SamplerConfig(actor.model, actor.generation), deployment=places))
    assert isinstance(loaded.config, GRPO)
    assert loaded.deployment()["sampler"].mesh.dp == 4
    assert {"sampler.load", "sampler.generate"} <= {step.label for step in loaded.experiment().compile().steps}
    assert from_table(loaded.table()).table() == loaded.table()
    with pytest.raises(ConfigError, match=r"role 'sampler' has a placement, but no table \[sampler\]"):
        from_config(grpo(deployment=places)).deployment()


def test_a_role_that_does_not_go_with_its_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="'reward' takes a table of RewardConfig, got VerifierConfig"):
        from_config(grpo(roles={"reward": "hfdsl.rl.workers:RewardModel"}))
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        grpo(steps=0)


def test_rounds_have_the_options_of_both_dataflows() -> None:
    table = {"algorithm": DAPORounds.algorithm, "roles": VERIFIER, "update": {"algorithm": DAPOUpdate.algorithm}}
    parts, remaining = read_names(
        table, ["options.group=4", "update.options.updates=2", "update.rows=32", "B=3"], by_name
    )
    assert issubclass(parts.kind, DAPORounds)
    assert (parts.options.group, parts.update_options.updates, remaining) == (4, 2, ["B=3"])
    with_own_update = {**table, "update": {"algorithm": "tests.rl.training.toy:learning"}}
    parts, _ = read_names(with_own_update, ["update.options.parts=3"], by_name)
    assert (issubclass(parts.kind, DAPORounds), parts.update_options.parts) == (False, 3)


def test_options_refer_to_options_only() -> None:
    table = {"algorithm": "hfdsl.rl.dataflows.grpo:grpo", "options": {"group": "$options.updates", "updates": 4}}
    assert read_names(table, (), by_name)[0].options.group == 4
    table = {"algorithm": "hfdsl.rl.dataflows.grpo:grpo", "options": {"group": "$dims.B"}, "dims": {"B": 4}}
    with pytest.raises(ConfigError, match=r"HF901: options: '\$dims.B' refers .*: options can refer only to options"):
        read_names(table, (), by_name)


def test_the_correction_of_a_loss_is_a_table() -> None:
    def correction(*changes: str) -> Any:
        loss = {"correction": {"level": "sequence", "outside": "mask", "low": 0.5}}
        table = {"algorithm": GRPO.algorithm, "roles": VERIFIER, "options": {"loss": loss}}
        return read_names(table, list(changes), by_name)[0].options.loss.correction

    assert correction() == Correction(level="sequence", outside="mask", low=0.5, high=2.0)
    assert correction("options.loss.correction=none") is None
    with pytest.raises(ConfigError, match=r"^HF901: 'options.loss.correction.high' must be at least 1, got 0.5"):
        correction("options.loss.correction.high=0.5")
