"""Old log-probs under names of the user's: known as what the body of an update divides by, without a declaration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import torch
import hfdsl as hf

class B(hf.Dim): ...
class R(hf.Dim): ...

class Prompts(hf.Batch):
    ids: hf.i64[B, R]
class Scores(hf.Batch):
    rewards: hf.f32[B, R]
class Rollout(Prompts):
    {old}: hf.f32[B, R]
class Estimates(hf.Batch):
    {gain}: hf.f32[B, R]
    returns: hf.f32[B, R]
class Experience(Rollout):
    {gain}: hf.f32[B, R]

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def chosen(self, ids):
        return self.model(ids).log_softmax(-1).gather(-1, ids[..., None])[..., 0]

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout:
        ids = prompts.ids.tensor
        return Rollout(ids=ids, {old}=self.chosen(ids).detach())

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, experience: Experience) -> None:
        ids, old, gain = experience.ids.tensor, experience.{old}.tensor, experience.{gain}.tensor
        for rows in torch.randperm(len(ids)).split(2):
            ratio = (self.chosen(ids[rows]) - old[rows]).exp()
            loss = -torch.min(ratio * gain[rows], ratio.clamp(0.8, 1.2) * gain[rows]).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

@hf.function
def estimate(scores: Scores) -> Estimates:
    returns = scores.rewards.tensor.flip(1).cumsum(1).flip(1)
    return Estimates({gain}=returns - returns.mean(1, keepdim=True), returns=returns)

@hf.dataflow
def step(prompts: Prompts, scores: Scores, policy: Policy) -> None:
    rollout, estimates = policy.generate(prompts), estimate(scores)
    policy.update(Experience(ids=rollout.ids, {old}={taken}, {gain}=estimates.{gain}))
"""
NAMES = [("log_probs", "advantages"), ("old_logps", "gains"), ("behavior_logp", "adv_normalized")]


def codes(folder: Path, old: str, gain: str, taken: str) -> tuple[str, ...]:
    module = loaded(folder, MODULE.format(old=old, gain=gain, taken=taken))
    return tuple(module.step.check(dims={module.B: 4, module.R: 4}).codes)


@pytest.mark.parametrize(("old", "gain"), NAMES)
def test_other_numbers_for_what_a_body_divides_by_are_reported(tmp_path: Path, old: str, gain: str) -> None:
    assert codes(tmp_path, old, gain, f"rollout.{old}") == ()
    assert codes(tmp_path, old, gain, f"estimates.{gain}") == ("HF348",)
