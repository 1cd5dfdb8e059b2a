"""The ready-made roles on a GPU: captured steps, bfloat16, FSDP2 over NCCL."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ImitationMetrics, Prompts, R, Rollout
from hfdsl.rl.dataflows.grpo import grpo
from hfdsl.rl.dataflows.supervised import supervised
from hfdsl.rl.models import captured_generation, generation, policies
from hfdsl.testing import replay
from tests.gpu.captured_programs import WIDE, ragged, share_memory
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, everything, numbers, policy

pytestmark = pytest.mark.gpu
GPUS = torch.cuda.device_count()
BF16 = replace(tiny.TRAINING, autocast="bfloat16")
BY_TOKENS = w.BatchingConfig(tokens=64)


@hf.dataflow
def rollouts(prompts: Prompts, actor: w.Actor) -> tuple[Rollout, Rollout]:
    return actor.generate(prompts), actor.generate(prompts, greedy=True)


def generated(config: w.ActorConfig) -> tuple[Rollout, Rollout]:
    roles = hf.Deployment(actor=hf.place(w.Actor, config, pool=hf.ResourcePool([1])))
    with rollouts.compile(roles, SIZES).launch("local") as running:
        both: tuple[Rollout, Rollout] = running.step(tiny.prompts(ROWS))
    return both


@hf.dataflow
def learning(prompts: Prompts, actor: w.Actor) -> tuple[Rollout, Rollout, Rollout, ImitationMetrics]:
    first = actor.generate(prompts)
    learned = actor.imitate(first)
    return first, actor.generate(prompts), actor.generate(prompts, greedy=True), learned


def test_captured_steps_sample_what_the_plain_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an update, with the graphs that were captured before it, and over several spans of the cache."""
    monkeypatch.setattr(captured_generation, "SPAN", 8)
    plain, steps = list[Any](), list[Any]()
    engines: Any = (("plain", plain), ("auto", steps))
    for engine, batches in engines:
        generation = replace(tiny.GENERATION, engine=engine, max_tokens=20)
        config = w.ActorConfig(WIDE, generation, tiny.TRAINING, BY_TOKENS)
        roles = hf.Deployment(actor=hf.place(w.Actor, config, pool=hf.ResourcePool([1])))
        with learning.compile(roles, {**SIZES, R: 20}).launch("local") as running:
            for seed in range(3):
                batches.extend(running.step(tiny.prompts(ROWS, seed))[:3])
    for wanted, actual in zip(plain, steps, strict=True):
        assert torch.equal(wanted.ids.tensor, actual.ids.tensor)
        assert torch.equal(wanted.response_mask.tensor, actual.response_mask.tensor)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_rows_that_have_ended_leave_captured_steps(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these few rows, down to the last one; with the graphs of the batch before in the second one."""
    rows, length, end = 32, 40, tiny.VOCABULARY - 1
    monkeypatch.setattr(captured_generation, "SPAN", 16)
    policy, prompts = policies.policy(WIDE, 1.0, SoleRank()), ragged(rows, length)
    steps = captured_generation.CapturedGenerator(policy, w.GenerationConfig(length), [end], tiny.PAD, dtype)
    batches = []
    for fewest in (rows, 1, 1):
        monkeypatch.setattr(captured_generation, "MIN_ROWS", fewest)
        batches.append(steps(*prompts))
    assert len({key[1] for key in steps._shared.graphs._graphs}) > 2
    for tokens, real in batches:
        assert torch.equal(real, batches[0][1])
        if dtype is None:  # bfloat16 rounds sums of other shapes otherwise
            assert torch.equal(tokens, batches[0][0])
    if dtype is None:
        plain = generation.generate(policy, *prompts, w.GenerationConfig(length), [end], tiny.PAD)
        assert torch.equal(plain[0], batches[0][0])
        assert torch.equal(plain[1], batches[0][1])


def test_shapes_of_captured_steps_share_their_memory() -> None:
    """In a process of its own: segments that earlier tests left half empty would hold what is measured here."""
    process = multiprocessing.get_context("spawn").Process(target=share_memory)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_bf16_learns_as_float32_does() -> None:
    def losses(training: w.TrainingConfig) -> list[float]:
        config = w.ActorConfig(WIDE, tiny.GENERATION, replace(training, checkpointing=True), BY_TOKENS)
        roles = hf.Deployment(actor=hf.place(w.Actor, config, pool=hf.ResourcePool([1])))
        with supervised.compile(roles, SIZES).launch("local") as running:
            return [running.step(tiny.demonstrations(ROWS)).loss.value for _ in range(8)]

    exact, rounded = losses(tiny.TRAINING), losses(BF16)
    assert rounded[0] == pytest.approx(exact[0], rel=0.02)
    assert rounded[-1] < rounded[0] / 2


def test_grpo_learns_on_a_gpu(gpu_cluster: Any) -> None:
    pool = hf.ResourcePool([1])
    roles = hf.Deployment(
        actor=hf.place(w.Actor, w.ActorConfig(WIDE, tiny.GENERATION, BF16, BY_TOKENS), pool=pool),
        reference=hf.place(w.Reference, w.ReferenceConfig(WIDE, autocast="bfloat16"), pool=pool),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=pool),
    )
    with grpo.compile(roles, SIZES).launch("ray", timeout=120) as running:
        outcomes = [running.step(tiny.prompts(ROWS, seed))[1] for seed in range(10)]
    assert outcomes[-1].score.value > outcomes[0].score.value + 0.1


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_parts_on_two_gpus_learn_as_whole_copies(gpu_cluster: Any) -> None:
    def ran(sharding: Any) -> Any:
        training, pool = replace(tiny.TRAINING, sharding=sharding), hf.ResourcePool([2])
        roles = hf.Deployment(
            actor=hf.place(w.Actor, replace(tiny.ACTOR, training=training, batching=BY_TOKENS), pool=pool),
            critic=hf.place(w.Critic, replace(tiny.CRITIC, training=training, batching=BY_TOKENS), pool=pool),
            reference=hf.place(w.Reference, tiny.REFERENCE, pool=pool),
            reward=hf.place(w.Verifier, tiny.VERIFIER, pool=pool),
        )
        with everything.compile(roles, SIZES).launch("ray", seed=3, timeout=120) as running:
            return running.step(tiny.prompts(ROWS)), running.also(policy.compile(roles)).step()

    (replicated, weights), (parts, others) = ran("none"), ran("fsdp")
    for wanted, actual in zip((*replicated[5], *replicated[6]), (*parts[5], *parts[6]), strict=True):
        assert numbers(actual) == pytest.approx(numbers(wanted), rel=1e-2, abs=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name].cpu(), weight.cpu(), rtol=1e-2, atol=1e-3, msg=name)


def on_mesh(mesh: hf.Mesh, sharding: Any = "none") -> hf.Deployment:
    training, pool = replace(tiny.TRAINING, sharding=sharding), hf.ResourcePool([mesh.world_size])
    configs: dict[str, Any] = {
        "actor": replace(tiny.ACTOR, training=training, batching=BY_TOKENS),
        "critic": replace(tiny.CRITIC, training=training, batching=BY_TOKENS),
        "reference": tiny.REFERENCE,
        "reward": tiny.VERIFIER,
    }
    return hf.Deployment(
        **{name: hf.place(tiny.CLASSES[name], arguments, pool=pool, mesh=mesh) for name, arguments in configs.items()}
    )


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
@pytest.mark.parametrize(
    ("mesh", "sharding"), [(hf.Mesh(tp=2), "none"), (hf.Mesh(dp=2, tp=2), "fsdp")], ids=["tp", "dp and tp"]
)
def test_slices_on_gpus_learn_as_the_whole_on_one(gpu_cluster: Any, mesh: hf.Mesh, sharding: Any) -> None:
    if mesh.world_size > GPUS:
        pytest.skip(f"needs {mesh.world_size} GPUs")

    def ran(mesh: hf.Mesh, sharding: Any) -> Any:
        roles = on_mesh(mesh, sharding)
        with everything.compile(roles, SIZES).launch("ray", seed=3, timeout=120) as running:
            return running.step(tiny.prompts(ROWS)), running.also(policy.compile(roles)).step()

    (unsliced, weights), (slices, others) = ran(hf.Mesh(), "none"), ran(mesh, sharding)
    assert torch.equal(slices[1].ids.tensor.cpu(), unsliced[1].ids.tensor.cpu())
    for wanted, actual in zip((*unsliced[5], *unsliced[6]), (*slices[5], *slices[6]), strict=True):
        assert numbers(actual) == pytest.approx(numbers(wanted), rel=1e-2, abs=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(others[name].cpu(), weight.cpu(), rtol=1e-2, atol=1e-3, msg=name)


@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_a_recorded_call_of_slices_is_repeated_on_one_gpu(gpu_cluster: Any, tmp_path: Path) -> None:
    """Autograd has a thread of its own for a GPU; what peers said there is on the recording too."""
    plan = everything.compile(on_mesh(hf.Mesh(tp=2)), SIZES)
    with plan.launch("ray", seed=3, timeout=120) as running, running.record(tmp_path / "step"):
        running.step(tiny.prompts(ROWS))
    for call in ("actor.generate#1", "reference.log_probs", "actor.update#2", "critic.update#3"):
        for rank in (0, 1):
            replayed = replay(tmp_path / "step", call, rank)
            assert replayed.same, replayed
