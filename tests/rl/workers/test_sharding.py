"""FSDP2 between processes gives what whole copies of the parameters give; whole copies give the same bits on Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import RoleError
from hfdsl.rl import workers as w
from hfdsl.rl.dataflows.supervised import supervised
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, Weighed, apart, everything, numbers, policy, tensors, weighed

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def roles(sharding: Any, batching: w.BatchingConfig, *, compiled: bool = False) -> hf.Deployment:
    training = replace(tiny.TRAINING, sharding=sharding, checkpointing=True)
    model = replace(tiny.MODEL, compile=compiled)
    return tiny.deployment(
        2,
        actor=replace(tiny.ACTOR, model=model, training=training, batching=batching),
        critic=replace(tiny.CRITIC, model=model, training=training, batching=batching),
        reference=replace(tiny.REFERENCE, batching=batching),
        reward=tiny.VERIFIER,
    )


def ran(deployment: hf.Deployment, backend: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    with everything.compile(deployment, SIZES).launch(backend, seed=3, worker_env=NO_GPU) as running:
        values = [running.step(tiny.prompts(ROWS, seed)) for seed in range(2)][-1]
        return values, running.also(policy.compile(deployment)).step()


@pytest.mark.nightly
def test_whole_copies_give_the_same_bits_on_ray(ray_cluster: Any) -> None:
    (local_step, weights), (ray_step, others) = (
        ran(roles("none", tiny.FIXED), backend) for backend in ("local", "ray")
    )
    for local, remote in zip((*local_step[:4], *local_step[4]), (*ray_step[:4], *ray_step[4]), strict=True):
        assert all(torch.equal(column, tensors(remote)[name]) for name, column in tensors(local).items())
    for local, remote in zip((*local_step[5], *local_step[6]), (*ray_step[5], *ray_step[6]), strict=True):
        assert numbers(local) == numbers(remote)
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())


@pytest.mark.nightly_besides("padded")
@pytest.mark.timeout(900)  # each of several processes compiles all blocks
@pytest.mark.parametrize(
    ("packing", "compiled"),
    [(False, False), (True, False), (True, True)],  # compiled without packing: in ``test_lora``
    ids=["padded", "packed", "both"],
)
def test_parts_give_what_whole_copies_give(packing: bool, compiled: bool, ray_cluster: Any) -> None:
    """Of unlike many micro-batches: one rank's rows are longer than the other's; activations are recomputed."""
    (whole_step, weights), (sharded_step, others) = (
        ran(roles("none", w.BatchingConfig(tokens=25)), "local"),
        ran(roles("fsdp", w.BatchingConfig(tokens=25, packing=packing), compiled=compiled), "ray"),
    )
    assert torch.equal(whole_step[0].ids.tensor, sharded_step[0].ids.tensor)
    for whole, sharded in zip((*whole_step[5], *whole_step[6]), (*sharded_step[5], *sharded_step[6]), strict=True):
        assert numbers(sharded) == pytest.approx(numbers(whole), rel=1e-3, abs=1e-5)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-4, msg=name)


def test_parts_need_processes() -> None:
    with pytest.raises(RoleError, match="needs a process for every rank") as error:
        ran(roles("fsdp", tiny.FIXED), "local")
    assert error.value.code == "HF812"


@pytest.mark.nightly
def test_parts_are_parts_and_are_kept_as_such(ray_cluster: Any, tmp_path: Path) -> None:
    def plan(sharding: Any) -> Any:
        config = replace(tiny.ACTOR, training=replace(tiny.TRAINING, sharding=sharding))
        pool = hf.ResourcePool([2], use_gpu=False)
        return weighed.compile(hf.Deployment(actor=hf.place(Weighed, config, pool=pool)), SIZES)

    batches = [tiny.demonstrations(ROWS, seed) for seed in range(3)]
    with plan("none").launch("local") as running:
        whole = [running.step(batch) for batch in batches]
    with plan("fsdp").launch("ray", worker_env=NO_GPU) as running:
        first = running.step(batches[0])
        running.save(tmp_path)
        rest = [running.step(batch) for batch in batches[1:]]
    with plan("fsdp").launch("ray", worker_env=NO_GPU) as running:
        running.load(tmp_path)
        again = [running.step(batch) for batch in batches[1:]]
    assert 0.5 <= max(first[1]) / max(whole[0][1]) < 0.51
    assert [numbers(metrics) for metrics, _ in again] == [numbers(metrics) for metrics, _ in rest]
    for (metrics, _), (others, _) in zip(whole, [first, *rest], strict=True):
        assert numbers(others) == pytest.approx(numbers(metrics), rel=1e-3)


@pytest.mark.nightly
def test_parts_in_float32_of_parameters_in_16_bits(ray_cluster: Any) -> None:
    """They learn as copies in float32 do, and other roles get 16 bits of them."""
    model, batches = replace(tiny.MODEL, dtype="bfloat16"), [tiny.demonstrations(ROWS, seed) for seed in range(3)]

    def learned(sharding: Any, backend: Any) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
        training = replace(tiny.TRAINING, sharding=sharding, master_weights=True)
        deployment = tiny.deployment(2, actor=replace(tiny.ACTOR, model=model, training=training))
        with supervised.compile(deployment, SIZES).launch(backend, worker_env=NO_GPU) as running:
            metrics = [numbers(running.step(batch)) for batch in batches]
            return metrics, running.also(policy.compile(deployment)).step()

    (whole, weights), (parts, others) = learned("none", "local"), learned("fsdp", "ray")
    for metrics, expected in zip(parts, whole, strict=True):
        assert metrics == pytest.approx(expected, rel=0.02)
    for name, weight in weights.items():
        assert others[name].dtype == weight.dtype == torch.bfloat16
        torch.testing.assert_close(others[name], weight, rtol=0.02, atol=0.02, msg=name)


@pytest.mark.nightly
def test_a_sampler_gets_the_whole_of_what_ranks_hold_parts_of(ray_cluster: Any) -> None:
    train, roll = hf.ResourcePool([2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)
    config = replace(tiny.ACTOR, training=replace(tiny.TRAINING, sharding="fsdp"))
    sampler = w.SamplerConfig(replace(tiny.MODEL, seed=9), tiny.GENERATION, batching=tiny.FIXED)
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, config, pool=train),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=train),
        sampler=hf.place(w.Sampler, sampler, pool=roll),
    )
    with apart.compile(deployment, SIZES).launch("ray", worker_env=NO_GPU) as running:
        steps = [running.step(tiny.prompts(ROWS)) for _ in range(2)]
    for _, likeliest, of_actor, _ in steps:
        assert torch.equal(likeliest.ids.tensor, of_actor.ids.tensor)
    assert not torch.equal(steps[0][2].ids.tensor, steps[1][2].ids.tensor)
