"""Losses of papers and libraries, as these write them: each raises tokens of better rows, and none has a finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

SEQUENCE = "seq = ((now - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)\n"
KNOWN = {
    "DAPO": (
        "clipped = torch.clamp(ratio, 1 - self.clip_ratio_low, 1 + self.clip_ratio_high)\n"
        "losses = torch.maximum(-advantages * ratio, -advantages * clipped)\nloss = (losses * mask).sum() / mask.sum()"
    ),
    "Dr. GRPO": (
        "losses = -torch.min(ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages)\n"
        "loss = (losses * mask).sum(-1).mean() / 16"
    ),
    "GRPO with k3": (
        "kl = torch.exp(ref - now) - (ref - now) - 1\n"
        "gain = torch.min(ratio * advantages, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages)\n"
        "loss = (-((gain - BETA * kl) * mask).sum(-1) / mask.sum(-1)).mean()"
    ),
    "GSPO": (
        SEQUENCE + "ratio = seq.exp()\nheld = torch.clamp(ratio, 1 - self.clip_ratio_low, 1 + self.clip_ratio_high)\n"
        "losses = -torch.min(ratio * advantages, held * advantages)\n"
        "loss = ((losses * mask).sum(-1) / mask.sum(-1)).mean()"
    ),
    "GSPO of tokens": (
        SEQUENCE + "log_ratio = (now - now.detach() + seq.detach()).clamp(max=10.0)\nratio = log_ratio.exp()\n"
        "held = torch.clamp(ratio, 1 - 3e-4, 1 + 4e-4)\n"
        "losses = torch.maximum(-advantages * ratio, -advantages * held)\nloss = masked_mean(losses, mask)"
    ),
    "CISPO": (
        "weight = torch.clamp(ratio, max=self.clip_ratio_high + 1.0).detach()\n"
        "loss = -(weight * advantages * now * mask).sum() / mask.sum()"
    ),
    "CISPO with both bounds": (
        "weight = torch.clamp(ratio, min=0.0, max=self.epsilon_max).detach()\n"
        "loss = masked_mean(-weight * advantages * now, mask)"
    ),
    "dual clip": (
        "first, second = -advantages * ratio, -advantages * torch.clamp(ratio, 1 - self.clip, 1 + self.clip)\n"
        "third = -advantages * self.clip_ratio_c\nheld = torch.maximum(first, second)\n"
        "losses = torch.where(advantages < 0, torch.min(third, held), held)\nloss = masked_mean(losses, mask)"
    ),
    "bounded log-ratios": (
        "negative_approx_kl = torch.clamp(now - old, min=-20.0, max=20.0)\nratio = torch.exp(negative_approx_kl)\n"
        "ppo_kl = masked_mean(-negative_approx_kl, mask)\nself.ppo_kl = ppo_kl.item()\n"
        "losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28))\n"
        "loss = masked_mean(losses, mask)"
    ),
    "decoupled PPO": (
        "proximal = self.before(experience)\nratio = (now - proximal).exp()\n"
        "gain = torch.min(ratio * advantages, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * advantages)\n"
        "behavior = (proximal - old).exp().clamp(max=5.0)\nloss = -(behavior * gain * mask).sum() / mask.sum()"
    ),
    "decoupled PPO, recomputed if need be": (
        "proximal = old if self.micro > 100 else self.chosen(experience).detach()\nratio = torch.exp(now - proximal)\n"
        "losses = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))\n"
        "loss = (losses * (proximal - old).exp().clamp(0.0, 2.0) * mask).sum() / mask.sum()"
    ),
    "truncated importance sampling": (
        "weight = torch.clamp(torch.exp(old - ref), max=2.0)\n"
        "losses = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)\n"
        "loss = (losses * weight * mask).sum() / mask.sum()"
    ),
    "masked importance sampling": (
        "level = torch.exp((old - ref).clamp(-20, 20))\nkept = mask & (level > 0.5) & (level < 2.0) | mask\n"
        "losses = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)\n"
        "loss = (losses * kept).sum() / kept.sum()"
    ),
    "REINFORCE++": (
        "gains = advantages - BETA * (old - ref)\ncount = mask.sum()\nmean = (gains * mask).sum() / count\n"
        "spread = (((gains - mean) ** 2 * mask).sum() / count).clamp(min=1e-8).rsqrt()\n"
        "gains = (gains - mean) * spread\nheld = torch.clamp(ratio, 1 - self.clip, 1 + self.clip)\n"
        "loss = -(torch.min(ratio * gains, held * gains) * mask).sum() / mask.sum()"
    ),
    "RLOO": (
        "groups = experience.advantages.tensor.view(-1, 2)\n"
        "others = (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)\n"
        "gains = (groups - others).flatten()[:, None] * 0 + advantages\n"
        "loss = -(now * mask).sum(-1).mul(gains[:, 0]).mean()"
    ),
    "on policy": "loss = -(torch.exp(now - now.detach()) * advantages * mask).sum() / mask.sum()",
    "on policy, or not": (
        "old_per_token_logps = now.detach() if self.micro == 2 else old\n"
        "coef_1 = torch.exp(now - old_per_token_logps)\n"
        "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)\n"
        "per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)\n"
        "per_token_loss = per_token_loss + self.kl_coef * (torch.exp(ref - now) - (ref - now) - 1)\n"
        "loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)"
    ),
    "a delta above the clip": (
        "first = torch.clamp(ratio, max=self.delta)\n"
        "second = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)\n"
        "loss = -(torch.min(first * advantages, second * advantages) * mask).sum() / mask.sum()"
    ),
    "a geometric mean": (
        "signed = torch.sign(advantages) * (now - old)\nheld = torch.clamp(signed, -0.4, 0.4)\n"
        "change = torch.sign(advantages) * torch.min(signed, held)\n"
        "level = ((change * mask).sum(-1) / mask.sum(-1)).exp()\nloss = -(level * advantages[:, 0]).mean()"
    ),
    "a soft gate": "loss = -(torch.sigmoid(2.0 * (ratio - 1)) * (4 / 2.0) * advantages * mask).sum() / mask.sum()",
    "a simple policy": (
        "penalty = advantages.abs() / (2 * self.clip) * (ratio - 1) ** 2\n"
        "loss = -((ratio * advantages - penalty) * mask).sum() / mask.sum()"
    ),
    "a change that is clipped": (
        "held = 1 + torch.clamp(ratio - 1, -self.clip, self.clip)\n"
        "loss = -(torch.min(ratio * advantages, held * advantages) * mask).sum() / mask.sum()"
    ),
    "clips of NeMo RL": (
        "held = ratio.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)\n"
        "clip_loss = torch.max(-advantages * ratio, -advantages * held)\n"
        "importance_weights = torch.exp(old - ref).detach().nan_to_num()\n"
        "loss = masked_mean(importance_weights * clip_loss, mask)"
    ),
    "a KL as a metric, without a gradient": (
        "with torch.no_grad():\n    log_ratio = now - old\n    approx_kl = ((log_ratio.exp() - 1) - log_ratio).mean()\n"
        "    clipfrac = ((ratio - 1.0).abs() > CLIP).float().mean()\n"
        "    entropy = self.chosen_and_entropy(experience)[1]\n"
        "self.metrics = (approx_kl.item(), clipfrac.item(), entropy.mean().item())\n"
        "loss = -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()"
    ),
    "a KL with a controller": (
        "kl = 0.5 * (now - ref) ** 2\nerror = torch.clamp(kl.detach().mean() / 6.0 - 1, -0.2, 0.2)\n"
        "loss = -(ratio * advantages).mean() + self.kl_coef * (1 + 0.1 * error) * kl.mean()"
    ),
    "a KL with weights of the ratio": (
        "kl = (ref - now).exp() - (ref - now) - 1\n"
        "loss = -(ratio * advantages).mean() + self.kl_coef * (ratio.detach() * kl * mask).sum() / mask.sum()"
    ),
}
ATTRIBUTES = """
class Policy(hf.Worker):
    clip_ratio_low, clip_ratio_high, clip_ratio_c, epsilon_max, delta = 0.2, 0.28, 3.0, 5.0, 4.0
    epsilon_low, epsilon_high, ratio_clip_min, ratio_clip_max = 0.2, 0.28, 0.2, 0.2
"""


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_loss_is_right(tmp_path: Path, name: str) -> None:
    text = Path(signs.program(tmp_path, KNOWN[name]).__file__).read_text("utf-8")
    of_attributes = loaded(tmp_path, text.replace("\nclass Policy(hf.Worker):\n", ATTRIBUTES, 1))
    assert signs.gained(of_attributes) > 0
    assert signs.codes(of_attributes) == ()
    of_arguments: Any = loaded(tmp_path, text)  # whose numbers are not known
    assert signs.codes(of_arguments) == ()
