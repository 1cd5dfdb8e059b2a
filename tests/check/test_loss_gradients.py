"""Terms of losses without a gradient: reported where an update does nothing with them, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check import test_loss_signs as signs

BONUS = signs.BONUS
K3 = "gap = ref - now\nkl = gap.exp() - gap - 1\n"
CONSTANT = {
    "a KL": K3 + f"loss = {BONUS} + self.kl_coef * kl.detach().mean()",
    "a KL, masked": K3 + f"loss = {BONUS} + self.kl_coef * masked_average(kl.detach(), mask)",
    "a KL that is detached in steps": K3 + f"kl = kl.mean()\nkl = kl.detach()\nloss = {BONUS} + BETA * kl",
    "log-probs of a KL": f"gap = ref - now.detach()\nloss = {BONUS} + self.kl_coef * (gap.exp() - gap - 1).mean()",
    "log-probs of a square": f"loss = {BONUS} + self.kl_coef * ((now.detach() - ref) ** 2).mean()",
    "a KL of old log-probs": f"loss = {BONUS} + self.kl_coef * (old - ref).mean()",
    "a KL of old log-probs by k3": f"gap = ref - old\nloss = {BONUS} + BETA * masked_mean(gap.exp() - 1 - gap, mask)",
    "a KL of old log-probs by a formula": f"loss = {BONUS} + BETA * kl_estimate(old, ref, 'k3').mean()",
    "a KL of a formula": f"loss = {BONUS} + BETA * kl_estimate(now, ref, 'k3').detach().mean()",
    "a KL without gradients": (
        "with torch.no_grad():\n    gap = ref - self.chosen(experience)\n    kl = gap.exp() - gap - 1\n"
        f"loss = {BONUS} + self.kl_coef * kl.mean()"
    ),
    "a KL of a method without gradients": (
        f"now = self.before(experience)\nloss = {BONUS} + self.kl_coef * ((now - ref) ** 2).mean()"
    ),
    "a KL per token": "loss = -(ratio * advantages - BETA * kl_estimate(now, ref, 'k3').detach()).mean()",
    "a KL that is subtracted": K3 + f"loss = {BONUS} - self.kl_coef * kl.detach().mean()",
    "a KL if asked for": K3 + f"loss = {BONUS}\nif self.kl_coef:\n    loss = loss + self.kl_coef * kl.detach().mean()",
    "an entropy": f"_, entropy = self.chosen_and_entropy(experience)\nloss = {BONUS} - 0.5 * entropy.detach().mean()",
    "an entropy without gradients": (
        "with torch.no_grad():\n    _, entropy = self.chosen_and_entropy(experience)\n"
        f"loss = {BONUS} - self.entropy_coef * masked_mean(entropy, mask)"
    ),
}
RIGHT = {
    "a KL beside its metric": K3 + f"self.kl = kl.detach().mean().item()\nloss = {BONUS} + self.kl_coef * kl.mean()",
    "a KL in the rewards": "gains = advantages - BETA * (now - ref).detach()\nloss = -(ratio * gains).mean()",
    "a KL of old log-probs in the rewards": "gains = advantages - BETA * (old - ref)\nloss = -(ratio * gains).mean()",
    "a KL in the rewards, whitened": (
        "gains = advantages - BETA * (now - ref).detach()\ngains = (gains - gains.mean()) / (gains.std() + 1e-6)\n"
        "loss = -(ratio * gains).mean()"
    ),
    "a KL as a reward of its own": f"loss = {BONUS} + BETA * ((now - ref).detach() * now).mean()",
    "a weight of a KL": K3 + f"loss = {BONUS} + kl.detach() .clamp(max=1.0).mean() * kl.mean()",
    "a weight above a target": K3
    + f"over = kl.detach().mean() > 0.1\nloss = {BONUS} + over * self.kl_coef * kl.mean()",
    "a KL over its size": K3 + f"loss = {BONUS} + (kl / (kl.detach() + 1.0)).mean()",
    "a value of one and the gradient of another": (
        K3 + f"other = 0.5 * (now - ref) ** 2\nloss = {BONUS} + BETA * (other - other.detach() + kl.detach()).mean()"
    ),
    "a loss that is shown": K3 + f"loss = {BONUS}\nself.shown = (loss + self.kl_coef * kl).mean().item()",
    "a sum that is shown": K3
    + f"loss = {BONUS}\nshown = loss + self.kl_coef * kl.detach().mean()\nself.shown = shown.item()",
    "a KL times 0": K3 + f"loss = {BONUS} + 0.0 * kl.detach().mean()",
    "an early stop": K3 + f"if kl.detach().mean() > 100.0:\n    return\nloss = {BONUS}\nself.take_step(loss)",
    "gradients if asked for": (
        "with torch.set_grad_enabled(self.kl_coef > 0):\n    gap = ref - self.chosen(experience)\n"
        f"    kl = gap.exp() - gap - 1\nloss = {BONUS} + self.kl_coef * kl.mean()"
    ),
    "a KL of the one or the other": (
        "first = now.detach() if self.micro > 100 else now\n"
        f"loss = {BONUS} + self.kl_coef * ((first - ref) ** 2).mean()"
    ),
    "an entropy in the advantages": (
        "_, entropy = self.chosen_and_entropy(experience)\ngains = advantages + 0.1 * entropy.detach()\n"
        "loss = -(ratio * gains).mean()"
    ),
    "a bounded entropy in the advantages": (
        "_, entropy = self.chosen_and_entropy(experience)\n"
        "gains = advantages + torch.minimum(0.1 * entropy.detach(), advantages.abs() / 2)\n"
        "loss = -(ratio * gains).mean()"
    ),
    "tokens of high entropy": (
        "_, entropy = self.chosen_and_entropy(experience)\nkept = mask & (entropy.detach() > 0.5)\n"
        "loss = -(ratio * advantages * kept).sum() / kept.sum().clamp(min=1)"
    ),
    "an entropy with a coefficient that adapts": (
        "_, entropy = self.chosen_and_entropy(experience)\nweight = (1.0 - entropy.detach().mean()).clamp(min=0.0)\n"
        f"loss = {BONUS} - weight * entropy.mean()"
    ),
}


def moves(module: Any) -> bool:
    """Whether an update without advantages changes the policy."""
    policy = module.Policy()
    before = policy.model.weight.detach().clone()
    module.step(signs.experience_of(module, policy, 0.0), policy)
    return not torch.equal(policy.model.weight, before)


@pytest.mark.parametrize("name", CONSTANT)
def test_a_term_without_a_gradient_is_reported(tmp_path: Path, name: str) -> None:
    module = signs.program(tmp_path, CONSTANT[name])
    assert not moves(module)
    assert signs.codes(module) == ("HF946",)


@pytest.mark.parametrize("name", RIGHT)
def test_what_needs_no_gradient_is_not(tmp_path: Path, name: str) -> None:
    module = signs.program(tmp_path, RIGHT[name])
    assert signs.gained(module) > 0
    assert signs.codes(module) == ()
