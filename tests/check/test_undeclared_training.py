"""HF709 for a method that trains and does not declare that it writes: queues and syncs would not count its updates."""

from __future__ import annotations

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model, self.critic = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.AdamW(params=self.model.parameters(), lr=1e-4)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)
        self.cache: dict[str, float] = {}

    def _loss(self, rows: Rows) -> torch.Tensor:
        loss: torch.Tensor = self.model(rows.x.tensor[:, None]).sum()
        return loss

    def _step(self, rows: Rows) -> None:
        self.optimizer.zero_grad()
        self._loss(rows).backward()
        self.optimizer.step()

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Rows:
        self._step(rows)
        return rows


def codes_of(role: type, method: str = "called") -> tuple[str, ...]:
    """The codes of a dataflow that calls a method of a role."""

    def flow(rows: Rows, role: hf.Worker) -> Rows:
        result: Rows = getattr(role, method)(rows)
        return result

    flow.__annotations__["role"] = role
    return hf.dataflow(flow).check(None, dims={B: 8}).codes


class Reads(Policy):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def called(self, rows: Rows) -> Rows:
        self._step(rows)
        return rows


class DeclaresNothing(Policy):
    @register(Dispatch.DP_PROTO)
    def called(self, rows: Rows) -> Rows:
        for _ in range(2):
            self.optimizer.zero_grad()
            self._loss(rows).backward()
            self.optimizer.step()
        return rows


class NestedHelpers(Policy):
    def _epoch(self, rows: Rows) -> None:
        if len(rows.x.tensor) > 0:
            self._step(rows)

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy", staleness=2)
    def called(self, rows: Rows) -> Rows:
        self._epoch(rows)
        return rows


class ReadsAndTrainsTheCritic(Policy):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def called(self, rows: Rows) -> Rows:
        self.critic_optimizer.zero_grad()
        (self.critic(rows.x.tensor[:, None]) - self._loss(rows).detach()).square().mean().backward()
        self.critic_optimizer.step()
        return rows


@pytest.mark.parametrize("role", [Reads, DeclaresNothing, NestedHelpers, ReadsAndTrainsTheCritic])
def test_a_method_that_trains_declares_what_it_writes(role: type) -> None:
    assert codes_of(role) == ("HF709",)


class WritesAnotherState(Policy):
    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    @hf.writes("critic")
    def called(self, rows: Rows) -> Rows:
        self.critic_optimizer.zero_grad()
        (self.critic(rows.x.tensor[:, None]) - self._loss(rows).detach()).square().mean().backward()
        self.critic_optimizer.step()
        return rows


class UpdatesADict(Policy):
    """A method of a dict has the name of one that trains."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def called(self, rows: Rows) -> Rows:
        self.cache.update(loss=float(self._loss(rows)))
        return rows


class TunesNoise(Policy):
    """An optimizer of the call's own tensor leaves the policy as it is."""

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def called(self, rows: Rows) -> Rows:
        noise = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([noise], lr=0.1)
        optimizer.zero_grad()
        (self.model(noise[None]).sum() - 1.0).square().backward()
        optimizer.step()
        return rows


class TrainsWhatNobodyDeclares(Policy):
    """No method declares a state of the critic, so nothing tracks it."""

    @register(Dispatch.DP_PROTO)
    def called(self, rows: Rows) -> Rows:
        self.critic_optimizer.zero_grad()
        self.critic(rows.x.tensor[:, None]).sum().backward()
        self.critic_optimizer.step()
        return rows


@pytest.mark.parametrize("role", [WritesAnotherState, UpdatesADict, TunesNoise, TrainsWhatNobodyDeclares])
def test_other_methods_are_as_they_are_declared(role: type) -> None:
    assert "HF709" not in codes_of(role)


def test_an_update_that_declares_it_is_right() -> None:
    assert codes_of(Policy, "update") == ()
