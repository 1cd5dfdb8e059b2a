"""A sampler in every dataflow: it has the actor's weights of now whenever it samples, from the first step on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P
from hfdsl.rl.training.evaluation import evaluate
from tests.rl.dataflows.programs import PROGRAMS, ROLES, SIZES, Program, numbers
from tests.rl.workers.tiny import FIXED, GENERATION, MODEL, prompts

OTHER_WEIGHTS = w.SamplerConfig(replace(MODEL, seed=9), GENERATION, batching=FIXED)
"""What a sampler starts with: weights that no actor has, so that it cannot do without the sync."""

GAPS = ("engine_gap", "engine_gap_max", "engine_kl", "engine_outside")


def placed(
    flow: hf.Dataflow[..., Any],
    roles: tuple[str, ...],
    sampler: w.SamplerConfig = OTHER_WEIGHTS,
    mesh: hf.Mesh | None = None,
) -> hf.Deployment:
    trained, engines = (hf.ResourcePool([2], use_gpu=False, name=name) for name in ("trained", "engines"))
    places = {role: hf.place(ROLES[role][0], *ROLES[role][1], pool=trained) for role in roles}
    samplers = {role: hf.place(kind, sampler, pool=engines, mesh=mesh) for role, kind in flow.optional_roles.items()}
    return hf.Deployment(**places, **samplers)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_dataflow_is_clean_with_samplers(program: Program) -> None:
    for mesh in (None, hf.Mesh(tp=2)):
        assert program.flow.check(placed(program.flow, program.roles, mesh=mesh), SIZES).codes == ()
    vllm = replace(OTHER_WEIGHTS, generation=replace(GENERATION, engine="vllm"))
    places = placed(program.flow, program.roles, vllm)
    report = program.flow.check(places, SIZES)
    # Reinforce and Clip correct; no update of online DPO reads log-probs of the engine.
    assert report.codes == ()
    too_short = ("HF718",) if program.name == "dapo" else ()  # its default penalty is that of 20,480 tokens
    assert program.plain.check(placed(program.plain, program.roles), {**SIZES, B: 512, P: 64}).codes == too_short
    loads = [step.label for step in program.flow.compile(places, SIZES).steps if step.label.endswith(".load")]
    assert loads == [f"{role}.load" for role in program.flow.optional_roles]  # once a step, also for two generates


@pytest.mark.parametrize("name", ["grpo", "remax", "mutual"])
def test_it_samples_from_the_weights_of_the_actor(name: str) -> None:
    """Log-probs of both agree in every step. The engine is the same, so a gap could only be one of weights."""
    torch.set_num_threads(1)
    program = PROGRAMS[name]
    with program.flow.compile(placed(program.flow, program.roles), SIZES).launch("local") as running:
        for step in range(2):
            results = running.step(*program.inputs(step))
            updates = [result for result in results if hasattr(result, GAPS[0])]
            assert updates
            for metrics in updates:
                assert all(float(getattr(metrics, gap).value) < 1e-5 for gap in GAPS)


def test_an_evaluation_samples_from_the_weights_of_the_actor() -> None:
    torch.set_num_threads(1)
    flow, roles = PROGRAMS["grpo"].flow, PROGRAMS["grpo"].roles
    places = placed(flow, roles)
    with flow.compile(places, SIZES).launch("local") as running:
        looking = running.also(evaluate.compile(places, SIZES))
        running.step(prompts(8, 0))
        _, engine_rows, _ = looking.step(prompts(8, 1))
    alone = hf.Deployment(**{role: places[role] for role in roles})
    with flow.compile(alone, SIZES).launch("local") as running:
        looking = running.also(evaluate.compile(alone, SIZES))
        _, first_rows, _ = looking.step(prompts(8, 1))
    assert engine_rows.ids.tensor.shape == first_rows.ids.tensor.shape
    with evaluate.compile(placed(evaluate, ("actor", "reward")), SIZES).launch("local") as running:
        _, rows, _ = running.step(prompts(8, 1))
    assert torch.equal(rows.ids.tensor, first_rows.ids.tensor)  # greedy rows of the actor's own weights


def test_an_eager_call_takes_a_sampler() -> None:
    program = PROGRAMS["grpo"]
    workers: dict[str, Any] = {role: kind(*args) for role, (kind, args) in ROLES.items() if role in program.roles}
    sampler = w.Sampler(OTHER_WEIGHTS)
    metrics, _ = program.flow(*program.inputs(0), **workers, sampler=sampler)
    assert float(metrics.engine_gap.value) < 1e-5
    assert numbers(metrics)
