"""What a role keeps is all that it needs to continue bit by bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hfdsl.protocols.mesh import Mesh
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ImitationMetrics
from hfdsl.rl.losses import BradleyTerry
from hfdsl.rl.workers.kept_bytes import kept_bytes
from hfdsl.runtime.saving.state_files import flatten_state
from tests.rl.engines import fake
from tests.rl.workers import tiny
from tests.rl.workers.programs import numbers

SCHEDULED = w.TrainingConfig(w.OptimizerConfig(learning_rate=1e-2, schedule="cosine", warmup_steps=1, total_steps=6))
CONFIG = replace(tiny.ACTOR, training=SCHEDULED)


def imitated(actor: w.Actor, seeds: range) -> list[dict[str, float]]:
    steps: list[ImitationMetrics] = [actor.imitate(tiny.demonstrations(4, seed)) for seed in seeds]
    return [numbers(step) for step in steps]


def test_an_actor_goes_on_where_it_stopped() -> None:
    whole, first, second = w.Actor(CONFIG), w.Actor(CONFIG), w.Actor(replace(CONFIG, model=replace(tiny.MODEL, seed=5)))
    uninterrupted = imitated(whole, range(6))
    before = imitated(first, range(3))
    second.load_state(first.state())
    assert [*before, *imitated(second, range(3, 6))] == uninterrupted
    assert len({step["learning_rate"] for step in uninterrupted}) > 4
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[name])


def test_a_sampler_keeps_its_weights() -> None:
    saved, loaded = (w.Sampler(w.SamplerConfig(replace(tiny.MODEL, seed=seed), tiny.GENERATION)) for seed in (0, 1))
    loaded.load_state(saved.state())
    assert all(torch.equal(value, loaded.state()[name]) for name, value in saved.state().items())


def test_a_critic_goes_on_where_it_stopped() -> None:
    saved, loaded = w.Critic(tiny.CRITIC), w.Critic(tiny.CRITIC)
    with torch.no_grad():
        saved.critic.score.weight.fill_(0.5)
    loaded.load_state(saved.state())
    sequences = tiny.demonstrations(4)
    values: Any = saved.values(sequences).values
    assert values.tensor.abs().max() > 0
    assert torch.equal(values.tensor, loaded.values(sequences).values.tensor)


@pytest.mark.parametrize("lora", [None, w.Lora(rank=5, targets=("q_proj", "down_proj"))], ids=["whole", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("role", [w.Actor, w.RewardLearner, w.Sampler])
def test_the_bytes_of_a_state_are_those_that_the_role_states(role: Any, dtype: Any, lora: w.Lora | None) -> None:
    if lora is not None:
        pytest.importorskip("peft")
    model = replace(tiny.MODEL, dtype=dtype)
    config: Any = replace(tiny.ACTOR, lora=lora, model=model)
    if role is w.Sampler:
        config = w.SamplerConfig(model, tiny.GENERATION, lora=lora)
    if role is w.RewardLearner:
        config = replace(tiny.CRITIC, lora=lora, model=model)
    _check_bytes(role, config)


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_the_bytes_beside_an_engine_are_in_the_dtype_of_the_engine(autocast: Any) -> None:
    generation = replace(tiny.GENERATION, engine="vllm")
    with fake.installed():
        _check_bytes(w.Sampler, w.SamplerConfig(tiny.MODEL, generation, autocast=autocast))


def _check_bytes(role: Any, config: Any) -> None:
    worker = role(config)
    if role is w.Actor:
        worker.imitate(tiny.demonstrations(4))  # from the first update on there are moments
    if role is w.RewardLearner:
        worker.prefer(tiny.pairs(4), loss=BradleyTerry())
    tensors = flatten_state(worker.state(), "the state").tensors.values()
    assert sum(tensor.nbytes for tensor in tensors if tensor.ndim) == sum(kept_bytes(Mesh(), config).values())
