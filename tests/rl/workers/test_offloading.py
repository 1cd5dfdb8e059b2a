"""What lies on the host comes back as it was, wherever it lay meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hfdsl as hf
from hfdsl.protocols.offloading import PARTS, not_offloadable, parts_of
from hfdsl.rl import workers as w
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, everything, numbers, policy, tensors

SCORER = w.RewardConfig(tiny.MODEL, batching=tiny.FIXED)
SAMPLER = w.SamplerConfig(tiny.MODEL, tiny.GENERATION, batching=tiny.FIXED)
MADE: dict[str, Callable[[], Any]] = {
    "actor": lambda: w.Actor(tiny.ACTOR),
    "critic": lambda: w.Critic(tiny.CRITIC),
    "reference": lambda: w.Reference(tiny.REFERENCE),
    "reward": lambda: w.RewardModel(SCORER),
    "sampler": lambda: w.Sampler(SAMPLER),
}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Moves give everything another place in memory, as between a GPU and its host; what was there is overwritten."""
    moved: list[int] = []

    def other(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.numel())
        copy = tensor.detach().clone()
        if tensor.is_floating_point():
            tensor.detach().fill_(torch.nan)
        return copy

    as_it_was = nn.Module.to

    def to(self: nn.Module, *target: Any, non_blocking: bool = False) -> nn.Module:
        return self._apply(other) if non_blocking else as_it_was(self, *target)

    monkeypatch.setattr("hfdsl.rl.models.offloading.moved_tensor", lambda value, target: other(value))
    monkeypatch.setattr(nn.Module, "to", to)
    return moved


def worked(role: Any, between: Callable[[], None]) -> list[Any]:
    """What a role says in three rounds of its work."""
    results: list[Any] = []
    for seed in range(3):
        sequences = tiny.demonstrations(4, seed)
        match role:
            case w.Actor():
                results += [numbers(role.imitate(sequences)), tensors(role.log_probs(sequences))]
            case w.Critic():
                results += [tensors(role.values(sequences))]
            case w.Reference():
                results += [tensors(role.log_probs(sequences))]
            case w.RewardModel():
                results += [tensors(role.score(tiny.prompts(4, seed), sequences))]
            case _:
                results += [{name: value.clone() for name, value in role.state().items()}]
        between()
    return results


@pytest.mark.parametrize("name", MADE)
def test_a_role_works_on_with_what_came_back(name: str, elsewhere: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    stays, moves = MADE[name](), MADE[name]()

    def there_and_back() -> None:
        for part in parts_of(type(moves)):
            moves.offload(part)
        for part in reversed(parts_of(type(moves))):
            moves.onload(part)

    expected, results = worked(stays, lambda: None), worked(moves, there_and_back)
    for before, after in zip(expected, results, strict=True):
        assert before.keys() == after.keys()
        assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(after[key])) for key, value in before.items())
    copy = getattr(moves, "copy", None)  # of a sampler
    values = (*vars(moves).values(), getattr(moves, "learner", None), getattr(copy, "policy", None))
    model = next(value for value in values if isinstance(value, nn.Module))
    assert sum(elsewhere) >= 6 * sum(p.numel() for p in model.parameters())


def test_gradients_are_dropped_and_both_moments_move(elsewhere: list[int]) -> None:
    actor = w.Actor(tiny.ACTOR)
    actor.imitate(tiny.demonstrations(4))
    assert any(p.grad is not None for p in actor.policy.parameters())
    actor.offload("optimizer")
    assert all(p.grad is None for p in actor.policy.parameters())
    assert sum(elsewhere) == 2 * sum(p.numel() for p in actor.policy.parameters())


@pytest.mark.parametrize("role", [w.Actor, w.Critic, w.Sampler, w.Reference, w.RewardModel])
def test_ready_roles_with_a_model_can_be_offloaded(role: type[hf.Worker]) -> None:
    assert not_offloadable(role) is None
    assert parts_of(role) == (PARTS if role in (w.Actor, w.Critic) else ("weights",))


@pytest.mark.parametrize("role", [w.Verifier, w.KLPenalty, w.LagrangeMultiplier])
def test_roles_without_a_model_cannot(role: type[hf.Worker]) -> None:
    assert not_offloadable(role) == "it has no method 'offload(self, part)'"


def test_a_run_with_offload_has_the_same_bits(elsewhere: list[int]) -> None:
    def ran(offload: bool, optimize: hf.Optimize | None = None) -> tuple[list[Any], dict[str, torch.Tensor]]:
        pool = hf.ResourcePool([2], name="train")
        configs: dict[str, Any] = {
            "actor": tiny.ACTOR,
            "critic": tiny.CRITIC,
            "reference": tiny.REFERENCE,
            "reward": SCORER,
        }
        classes = {**tiny.CLASSES, "reward": w.RewardModel}
        roles: dict[str, Any] = {
            n: hf.place(classes[n], config, pool=pool, offload=offload) for n, config in configs.items()
        }
        deployment = hf.Deployment(**roles)
        with everything.compile(deployment, SIZES, optimize=optimize).launch("local", seed=3) as running:
            steps = [running.step(tiny.prompts(ROWS, seed)) for seed in range(2)]
            weights: dict[str, torch.Tensor] = running.also(policy.compile(deployment, optimize=optimize)).step()
            return [*steps, running.step(tiny.prompts(ROWS, 2))], weights

    (stays, weights), before = ran(False), len(elsewhere)
    assert ran(True, hf.Optimize(offload=False))[1].keys() == weights.keys()
    assert len(elsewhere) == before == 0
    moves, others = ran(True)
    assert elsewhere
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    for here, there in zip(stays, moves, strict=True):
        for ours, actual in zip((*here[:4], *here[4]), (*there[:4], *there[4]), strict=True):
            assert all(torch.equal(column, tensors(actual)[name]) for name, column in tensors(ours).items())
        for ours, actual in zip((*here[5], *here[6]), (*there[5], *there[6]), strict=True):
            assert numbers(ours) == numbers(actual)
