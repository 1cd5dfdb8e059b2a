"""Updates behind a queue with ``late="mask"``: wrong bodies that ignore the mask, and right ones that use it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.queueing import Late
from hfdsl.rl.masked import masked_mean
from tests.check.fixtures.hf765_unused_mask import Actor, B, Engine, Prompts, R, Rollout


class Advantages(hf.Batch):
    advantage: hf.f32[B]


class Renamed(hf.Batch):
    """The mask has another name here."""

    ids: hf.i64[B, R]
    advantage: hf.f32[B]
    log_probs: hf.f32[B, R]
    kept: hf.bool_[B, R]


class Learner(Actor):
    """What the updates below share; none of it reads a mask."""

    def now(self, ids: torch.Tensor) -> torch.Tensor:
        log_probs: torch.Tensor = self.table(ids).log_softmax(-1)
        return log_probs.gather(-1, ids[..., None])[..., 0]

    def learn(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.table.weight.grad = self.axis("dp").all_reduce(self.table.weight.grad, "mean")
        self.optimizer.step()


class NoMask(Learner):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None:
        gain = (self.now(rollout.ids.tensor) - rollout.log_probs.tensor).exp() * rollout.advantage.tensor[:, None]
        self.learn(-gain.mean())


class HelperWithoutMask(Learner):
    def loss(self, rollout: Rollout) -> torch.Tensor:
        gain = (self.now(rollout.ids.tensor) - rollout.log_probs.tensor).exp() * rollout.advantage.tensor[:, None]
        return -gain.mean()

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None:
        self.learn(self.loss(rollout))

    def entropy(self, rollout: Rollout) -> torch.Tensor:
        """It reads the mask, and no update calls it."""
        return self.now(rollout.ids.tensor)[rollout.response_mask.tensor]


def masked(gain: torch.Tensor, rollout: Any) -> torch.Tensor:
    mask = rollout.response_mask.tensor
    mean: torch.Tensor = (gain * mask).sum() / mask.sum().clamp(min=1)
    return mean


class HelperWithMask(Learner):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None:
        gain = (self.now(rollout.ids.tensor) - rollout.log_probs.tensor).exp() * rollout.advantage.tensor[:, None]
        self.learn(-masked(gain, rollout))


class LibraryMean(Learner):
    """A helper of hfdsl could read the mask of what it gets."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None:
        gain = (self.now(rollout.ids.tensor) - rollout.log_probs.tensor).exp() * rollout.advantage.tensor[:, None]
        self.learn(-masked_mean(gain, torch.ones_like(gain)))


class ByVersions(Learner):
    """It leaves late rows out by their versions."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None:
        call = hf.current_call()
        versions = torch.tensor(call.row_versions or [call.rows_version] * len(rollout))
        gain = (self.now(rollout.ids.tensor) - rollout.log_probs.tensor).exp() * rollout.advantage.tensor[:, None]
        self.learn(-gain[(call.version or 0) - versions <= 2].mean())


class ByAnyName(Learner):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None:
        columns = {name: getattr(rollout, name).tensor for name in type(rollout).__annotations__}
        gain = (self.now(columns["ids"]) - columns["log_probs"]).exp() * rollout.advantage.tensor[:, None]
        self.learn(-(gain * columns[[*columns][-1]]).mean())


class Stub(Actor):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update(self, rollout: Rollout) -> None: ...


@hf.dataflow
def flow(prompts: Prompts, engine: Engine, actor: Actor, *, late: Late = "mask") -> None:
    actor.update(hf.queue(engine.generate(prompts), lag=2, late=late))
    hf.sync(actor, engine)


def report(role: type[Actor], program: hf.Dataflow[..., Any] = flow) -> hf.Report:
    pools = {name: hf.ResourcePool([2], name=name) for name in ("engine", "actor")}
    deployment = hf.Deployment(engine=hf.place(Engine, pool=pools["engine"]), actor=hf.place(role, pool=pools["actor"]))
    return program.check(deployment, {B: 4, R: 8})


@pytest.mark.parametrize("role", [NoMask, HelperWithoutMask])
def test_an_update_that_ignores_its_mask_is_reported(role: type[Actor]) -> None:
    [error] = report(role).errors
    assert error.code == "HF765"
    assert "no code of 'actor.update' reads it: it would train on late rows" in error.message
    assert report(role, flow.given(late="drop")).ok


@pytest.mark.parametrize("role", [HelperWithMask, LibraryMean, ByVersions, ByAnyName, Stub])
def test_an_update_that_may_use_a_mask_is_not_reported(role: type[Actor]) -> None:
    assert report(role).ok


@hf.function
def masked_advantages(rollout: Rollout) -> Advantages:
    return Advantages(advantage=rollout.advantage.tensor * rollout.response_mask.tensor.any(1))


@hf.function
def halved_advantages(rollout: Rollout) -> Advantages:
    return Advantages(advantage=rollout.advantage.tensor / 2)


@hf.dataflow
def masked_before(prompts: Prompts, engine: Engine, actor: Actor) -> None:
    batch = hf.queue(engine.generate(prompts), lag=2, late="mask")
    advantage = masked_advantages(batch).advantage
    rollout = Rollout(ids=batch.ids, advantage=advantage, log_probs=batch.log_probs, response_mask=batch.response_mask)
    actor.update(rollout)
    hf.sync(actor, engine)


@hf.dataflow
def halved_before(prompts: Prompts, engine: Engine, actor: Actor) -> None:
    batch = hf.queue(engine.generate(prompts), lag=2, late="mask")
    advantage = halved_advantages(batch).advantage
    rollout = Rollout(ids=batch.ids, advantage=advantage, log_probs=batch.log_probs, response_mask=batch.response_mask)
    actor.update(rollout)
    hf.sync(actor, engine)


def test_a_call_in_front_of_the_update_may_use_the_mask() -> None:
    assert report(NoMask, masked_before).ok
    assert [finding.code for finding in report(NoMask, halved_before).errors] == ["HF765"]


class OfRenamed(Learner):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    @hf.corrects("policy", lag=4)
    def update_renamed(self, rows: Renamed) -> None:
        gain = (self.now(rows.ids.tensor) - rows.log_probs.tensor).exp() * rows.advantage.tensor[:, None]
        self.learn(-(gain * rows.kept.tensor).sum() / rows.kept.tensor.sum().clamp(min=1))


@hf.dataflow
def renamed(prompts: Prompts, engine: Engine, actor: OfRenamed) -> None:
    batch = hf.queue(engine.generate(prompts), lag=2, late="mask")
    rows = Renamed(ids=batch.ids, advantage=batch.advantage, log_probs=batch.log_probs, kept=batch.response_mask)
    actor.update_renamed(rows)
    hf.sync(actor, engine)


def test_a_mask_may_have_another_name_in_the_record_of_an_update() -> None:
    assert report(OfRenamed, renamed).ok
