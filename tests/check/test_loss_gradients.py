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
BOTH = "\nloss = loss + self.kl_coef * ((now - ref) ** 2).mean()"
SURROGATES = {
    "detached log-probs": "ratio = (now.detach() - old).exp()\nloss = -(ratio * advantages).mean()" + BOTH,
    "detached log-probs, clipped": (
        "ratio = torch.exp(now.detach() - old)\nheld = ratio.clamp(0.8, 1.2)\n"
        "loss = -torch.min(ratio * advantages, held * advantages).mean()" + BOTH
    ),
    "log-probs of a method without gradients": (
        "ratio = (self.before(experience) - old).exp()\nloss = masked_mean(clipped_loss(ratio, advantages), mask)"
        + BOTH
    ),
    "log-probs without gradients": (
        "with torch.no_grad():\n    first = self.chosen(experience)\n"
        "ratio = (first - old).exp()\nloss = -(ratio * advantages * mask).sum() / mask.sum()" + BOTH
    ),
    "old log-probs": "loss = -(old * advantages).mean()" + BOTH,
    "old log-probs, masked": "loss = -(advantages * old * mask).sum() / mask.sum()" + BOTH,
    "old log-probs with an entropy": (
        "_, entropy = self.chosen_and_entropy(experience)\n"
        "loss = masked_mean(-experience.log_probs.tensor * advantages, mask) - 0.01 * entropy.mean()"
    ),
    "detached log-probs alone": "loss = -(now.detach() * advantages).mean()" + BOTH,
    "log-probs of a method without gradients alone": "loss = -(self.before(experience) * advantages).mean()" + BOTH,
    "old log-probs over those of a reference": "loss = -((old - ref).exp() * advantages).mean()" + BOTH,
}
RIGHT = {
    "a weight of detached log-probs": "weight = (now.detach() - old).exp()\nloss = -(weight * advantages * now).mean()",
    "a weight of advantages": (
        "weight = (now.detach() - old).exp().clamp(max=2.0)\ngains = weight * advantages\nloss = -(now * gains).mean()"
    ),
    "a weight of a surrogate": (
        "weight = (now.detach() - old).exp().clamp(0.0, 2.0)\n"
        "loss = -(torch.exp(now - now.detach()) * advantages * weight).mean()"
    ),
    "a weight of old log-probs above": (
        "weight = (old - now.detach()).exp()\ngains = advantages * weight\n"
        "loss = -(gains * now * mask).sum() / mask.sum()"
    ),
    "a weight of a reference": "weight = (ref - old).exp()\nloss = -(weight * advantages * now).mean()",
    "old log-probs in a metric": "self.shown = (old * advantages).mean().item()\nloss = -(now * advantages).mean()",
    "old log-probs as a control": "loss = -((now - old) * advantages).mean()",
    "old log-probs beside new ones": "loss = -(now * advantages).mean() + (old * advantages).mean()",
    "advantages of surprising tokens": "gains = advantages * (1 - BETA * old)\nloss = -(ratio * gains).mean()",
    "advantages times old log-probs": "gains = advantages * -old\nloss = -(ratio * gains).mean()",
    "a weight less its mean": (
        "weight = (now.detach() - old).exp()\nweight = weight / weight.mean()\n"
        "loss = -(weight * now * advantages).mean()"
    ),
    "the one or the other": (
        "first = now if self.micro == 2 else now.detach()\nratio = (first - old).exp()\n"
        "loss = -(ratio * advantages).mean()"
    ),
    "old log-probs, or its own": (
        "first = old if self.micro == 2 else now.detach()\nratio = (now - first).exp()\n"
        "loss = -(ratio * advantages).mean()"
    ),
    "gradients in two stages": (
        "leaf = now.detach().requires_grad_(True)\nratio = (leaf - old).exp()\nkl = 0.5 * (leaf - ref) ** 2\n"
        "loss = -(ratio * advantages).mean() + BETA * kl.mean()\nself.optimizer.zero_grad()\nloss.backward()\n"
        "now.backward(leaf.grad)\nself.optimizer.step()\nreturn"
    ),
    "gradients in two stages, in place": (
        "leaf = now.detach()\nleaf.requires_grad_()\nkl = 0.5 * (leaf - ref) ** 2\nratio = (leaf - old).exp()\n"
        "(-(ratio * advantages).mean() + BETA * kl.mean()).backward()\n"
        "self.optimizer.zero_grad()\nnow.backward(leaf.grad)\nself.optimizer.step()\nreturn"
    ),
    "gradients in two stages, by an attribute": (
        "leaf = now.detach()\nleaf.requires_grad = True\nkl = 0.5 * (leaf - ref) ** 2\nratio = (leaf - old).exp()\n"
        "(-(ratio * advantages).mean() + BETA * kl.mean()).backward()\n"
        "self.optimizer.zero_grad()\nnow.backward(leaf.grad)\nself.optimizer.step()\nreturn"
    ),
    "gradients within none": (
        "with torch.no_grad():\n    first = self.chosen(experience)\n    with torch.enable_grad():\n"
        "        kl = 0.5 * (self.chosen(experience) - ref) ** 2\n"
        "loss = -(ratio * advantages).mean() + BETA * kl.mean()"
    ),
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
    "a value of one and the gradient of what is not known": (
        K3 + "p = self.logits(experience).log_softmax(-1)\nother = (p.exp() * (p - p.mean(-1, keepdim=True))).sum(-1)\n"
        f"loss = {BONUS} + BETA * (other - other.detach() + kl.detach()).mean()"
    ),
    "gradients that a name decides": (
        "no_grad = torch.enable_grad()\nwith no_grad:\n    kl = 0.5 * (self.chosen(experience) - ref) ** 2\n"
        f"loss = {BONUS} + BETA * kl.mean()"
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


def learned(module: Any, advantage: float) -> torch.Tensor:
    """What an update leaves of a policy."""
    policy = module.Policy()
    module.step(signs.experience_of(module, policy, advantage), policy)
    weight: torch.Tensor = policy.model.weight.detach()
    return weight


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


@pytest.mark.parametrize("name", SURROGATES)
def test_a_surrogate_without_a_gradient_is_reported(tmp_path: Path, name: str) -> None:
    module = signs.program(tmp_path, SURROGATES[name])
    assert learned(module, 1.0).equal(learned(module, -2.0))
    assert signs.codes(module) == ("HF946",)


@pytest.mark.parametrize("name", RIGHT)
def test_what_needs_no_gradient_is_not(tmp_path: Path, name: str) -> None:
    module = signs.program(tmp_path, RIGHT[name])
    assert signs.gained(module) > 0
    assert signs.codes(module) == ()
