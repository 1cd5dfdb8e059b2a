"""Decoupled losses: reported where a weight and a ratio exchange their policies, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

ENDS = {
    "plain": "loss = -(weight * ratio * advantages).mean()",
    "clipped": (
        "gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)\n"
        "loss = -(weight.clamp(max=5.0) * gain * mask).sum() / mask.sum()"
    ),
    "weighted first": "loss = -(advantages * weight * ratio).mean()",
    "divided": "weight = 1.0 / weight\nlosses = torch.max(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)\n"
    "loss = (losses / weight * mask).sum() / mask.sum()",
    "detached": "weight = weight.detach()\nloss = (-advantages * ratio * torch.clamp(weight, max=2.0) * mask).mean()",
    "kept where it is small": (
        "weight = torch.where((weight < 5.0) & mask, weight, 0.0)\n"
        "loss = masked_mean(-ratio * advantages * weight, mask)"
    ),
}
RIGHT = {
    "of columns": "ratio, weight = (now - prox).exp(), (prox - behavior).exp()",
    "of rollouts": "ratio, weight = (now - old).exp(), torch.exp(old - rollout)",
    "of its own": "own = self.before(experience)\nratio, weight = (now - own).exp(), (own - old).exp()",
    "of its own, detached": (
        "own = self.chosen(experience).detach()\nratio, weight = (now - own).exp(), (own - old).exp()"
    ),
    "of its own to a rollout": (
        "own = self.before(experience)\nratio, weight = (now - own).exp(), (own - rollout).exp()"
    ),
    "without a gradient": (
        "with torch.no_grad():\n    own = self.chosen(experience)\n    weight = (own - behavior).exp()\n"
        "ratio = (now - own).exp()"
    ),
    "of a sequence": (
        "ratio = (now - old).exp()\nweight = ((old - rollout) * mask).sum(-1, keepdim=True).exp().clamp(max=2.0)"
    ),
}
WRONG = {
    "columns exchanged": "ratio, weight = (now - behavior).exp(), (behavior - prox).exp()",
    "columns exchanged in both": "ratio, weight = (now - behavior).exp(), (prox - behavior).exp()",
    "a weight upside down": "ratio, weight = (now - prox).exp(), (behavior - prox).exp()",
    "a weight of rollouts upside down": "ratio, weight = (now - old).exp(), torch.exp(rollout - old)",
    "rollouts exchanged": "ratio, weight = (now - rollout).exp(), (rollout - old).exp()",
    "rollouts twice": "ratio, weight = (now - rollout).exp(), (old - rollout).exp()",
    "its own exchanged": "own = self.before(experience)\nratio, weight = (now - old).exp(), (old - own).exp()",
    "its own exchanged, detached": (
        "own = self.chosen(experience).detach()\nratio, weight = (now - old).exp(), (old - own).exp()"
    ),
    "its own to a rollout exchanged": (
        "own = self.before(experience)\nratio, weight = (now - rollout).exp(), (rollout - own).exp()"
    ),
}
OTHER = {
    "on policy by a weight": "ratio, weight = (now - old).exp(), (old - now.detach()).exp()",
    "a ratio over itself": "ratio = (now - old).exp()\nweight = 1.0 / ratio.detach()",
    "its square": "ratio = (now - old).exp()\nweight = ratio.detach()",
    "flipped": "ratio = (now - old).exp()\nweight = 1.0 / ratio.detach() ** 2",
    "to the reference": "ratio, weight = (now - old).exp(), (ref - old).exp()",
    "of the reference": "ratio, weight = (now - old).exp(), (old - ref).exp()",
    "a reference for the policy of sampling": "ratio, weight = (now - ref).exp(), (ref - old).exp()",
    "of two rollouts": "ratio, weight = (now - rollout).exp(), (rollout - behavior).exp()",
    "one or the other": (
        "base = old if self.micro else rollout\nratio = (now - base).exp()\nweight = (rollout - old).exp()"
    ),
    "of an engine that the update asks": (
        "with torch.no_grad():\n    other = self.engine_log_probs(experience)\n"
        "ratio, weight = (now - old).exp(), (old - other).exp()"
    ),
    "without a ratio": "ratio, weight = now, (now.detach() - old).exp()",
    "of log-probs, upside down": "ratio, weight = now, (rollout - old).exp()",
}
COLUMNS = {"rollout": "rollout_log_probs", "prox": "prox_log_probs", "behavior": "behavior_log_probs"}


def codes(folder: Path, body: str) -> tuple[str, ...]:
    setup = "".join(f"{name} = experience.{column}.tensor\n" for name, column in COLUMNS.items())
    text = Path(signs.program(folder, setup + body).__file__).read_text("utf-8")
    field = "    ref_log_probs: hf.f32[B, T]\n"
    fields = "".join(f"    {column}: hf.f32[B, T]\n" for column in COLUMNS.values())
    return signs.codes(loaded(folder, text.replace(field, field + fields, 1)))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("ending", ENDS)
def test_a_decoupled_loss_is_right(tmp_path: Path, name: str, ending: str) -> None:
    assert codes(tmp_path, f"{RIGHT[name]}\n{ENDS[ending]}") == ()


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("ending", ENDS)
def test_exchanged_policies_are_reported(tmp_path: Path, name: str, ending: str) -> None:
    assert codes(tmp_path, f"{WRONG[name]}\n{ENDS[ending]}") == ("HF366",)


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("ending", ["plain", "weighted first", "detached"])
def test_other_weights_may_be_meant(tmp_path: Path, name: str, ending: str) -> None:
    assert codes(tmp_path, f"{OTHER[name]}\n{ENDS[ending]}") == ()
