"""Losses in the styles of libraries, with loss classes, closures and dictionaries: right as they are, wrong negated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

HELPERS = """
import collections

def masked_sum(x, mask, dim=None):
    return (x * mask).sum() if dim is None else (x * mask).sum(dim)

def token_mean(x, mask, dim=None):
    return masked_sum(x, mask, dim) / mask.sum(dim) if dim is not None else masked_sum(x, mask) / mask.sum()

class ModulePolicyLoss(torch.nn.Module):
    def __init__(self, low: float = 0.2, high: float = 0.28, dual: float = 3.0, token_level: bool = True) -> None:
        super().__init__()
        self.clip_eps_low, self.clip_eps_high, self.dual_clip, self.token_level = low, high, dual, token_level

    def forward(self, log_probs, old_log_probs, advantages, action_mask=None):
        ratio = (log_probs - old_log_probs).exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        if self.dual_clip is None:
            loss = -torch.min(surr1, surr2)
        else:
            clip1 = torch.min(surr1, surr2)
            clip2 = torch.max(clip1, self.dual_clip * advantages)
            loss = -torch.where(advantages < 0, clip2, clip1)
        mean = token_mean(loss, action_mask) if self.token_level else token_mean(loss, action_mask, dim=-1).mean()
        clip_ratio = token_mean(torch.lt(surr2, surr1).float(), action_mask)
        return mean, clip_ratio.detach()

class ConfiguredLoss:
    def __init__(self, cfg: dict) -> None:
        self.ratio_clip_min, self.ratio_clip_max = cfg["ratio_clip_min"], cfg["ratio_clip_max"]
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]

    def __call__(self, curr_logprobs, data):
        mask, prev_logprobs = data["token_mask"], data["prev_logprobs"]
        kl = self.reference_policy_kl_penalty * self.penalty(curr_logprobs, data["reference_policy_logprobs"])
        kl_loss = token_mean(kl, mask)
        ratios = (curr_logprobs - prev_logprobs).exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        loss1 = -data["advantages"] * ratios
        loss2 = -data["advantages"] * ratios_clamped
        clip_loss = torch.max(loss1, loss2)
        actor_loss = token_mean(clip_loss, mask)
        loss = actor_loss + kl_loss
        with torch.no_grad():
            probs_ratio = token_mean(ratios.detach(), mask).item()
        return loss, {"loss": loss.item(), "probs_ratio": probs_ratio}

    def penalty(self, logprobs, reference):
        r = reference - logprobs
        return torch.exp(r) - r - 1

class Losses(dict):
    pass

class ClipObjective(torch.nn.Module):
    def __init__(self, net, clip_epsilon=0.2, entropy_coeff=0.01) -> None:
        super().__init__()
        self.net, self.clip_epsilon, self.entropy_coeff = net, clip_epsilon, entropy_coeff

    def log_weight(self, now, data):
        return now - data["sample_log_prob"]

    def forward(self, now, data):
        data = dict(data)
        log_weight = self.log_weight(now, data)
        advantage = data.get("advantage")
        gain1 = log_weight.exp() * advantage
        log_weight_clip = log_weight.clamp(torch.tensor(1 - self.clip_epsilon).log(), torch.tensor(1.2).log())
        gain2 = log_weight_clip.exp() * advantage
        gain = torch.stack([gain1, gain2], -1).min(dim=-1).values
        return {"loss_objective": -gain.mean()}

class Estimator:
    def __init__(self, coef: float = 0.5) -> None:
        self.coef = coef

    def actor(self, now, old, advantages):
        return -torch.min(advantages * (now - old).exp(), advantages * (now - old).exp().clamp(0.8, 1.2)).mean()

    def __call__(self, now, old, advantages, values, returns, entropy):
        return self.actor(now, old, advantages) + self.coef * (values - returns).pow(2).mean() - 0.01 * entropy.mean()

def policy_loss(old_log_prob, log_prob, advantages, response_mask, cliprange=0.2, clip_ratio_c=3.0):
    negative_approx_kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(negative_approx_kl)
    ppo_kl = token_mean(-negative_approx_kl, response_mask)
    pg_losses1 = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1 - cliprange, 1 + cliprange)
    clip_pg_losses1 = torch.maximum(pg_losses1, pg_losses2)
    pg_clipfrac = token_mean(torch.gt(pg_losses2, pg_losses1).float(), response_mask)
    pg_losses3 = -advantages * clip_ratio_c
    clip_pg_losses2 = torch.min(pg_losses3, clip_pg_losses1)
    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)
    return token_mean(pg_losses, response_mask), pg_clipfrac, ppo_kl

class Policy(hf.Worker):
"""
DATA = "gains = advantages.expand_as(old).clone()\n"
STYLES = {
    "a module with a dual clip": ("ModulePolicyLoss()", "loss, _ = self.loss_fn(now, old, advantages, mask)"),
    "a module by sequences": (
        "ModulePolicyLoss(token_level=False)",
        "loss = self.loss_fn(now, old, advantages, action_mask=mask)[0]",
    ),
    "a loss with a configuration": (
        "ConfiguredLoss({'ratio_clip_min': 0.2, 'ratio_clip_max': 0.2, 'reference_policy_kl_penalty': 0.0})",
        DATA + "data = {'advantages': gains, 'prev_logprobs': old, 'reference_policy_logprobs': ref, "
        "'token_mask': mask}\nloss, metrics = self.loss_fn(now, data)",
    ),
    "an objective of a dictionary": (
        "ClipObjective(self.model)",
        DATA + "out = self.loss_fn(now, {'advantage': gains, 'sample_log_prob': old})\nloss = out['loss_objective']",
    ),
    "objectives that are summed": (
        "ClipObjective(self.model)",
        DATA + "out = self.loss_fn(now, {'advantage': gains, 'sample_log_prob': old})\n"
        "loss = sum(value for key, value in out.items() if key.startswith('loss'))",
    ),
    "an estimator with a value and an entropy": (
        "Estimator()",
        (
            "logits = self.logits(experience)\np = Categorical(logits=logits)\n"
            "loss = self.loss_fn(now, old, advantages, logits.mean(-1), advantages, p.entropy()) * 1.0"
        ),
    ),
    "a function of a registry": (
        "policy_loss",
        "loss, clipfrac, kl = self.loss_fn(old_log_prob=old, log_prob=now, advantages=advantages, response_mask=mask)",
    ),
    "a function in a table": (
        "None",
        "losses = {'ppo': policy_loss}\nloss, _, _ = losses['ppo'](old, now, advantages, mask)",
    ),
    "a dictionary of mini-batches": (
        "None",
        DATA + "data = {'input_ids': experience.ids.tensor, 'logprobs': old, 'advantages': gains, 'loss_mask': mask}\n"
        "def loss_fn(logprobs, batch):\n"
        "    ratio = torch.where(batch['loss_mask'], torch.exp(logprobs - batch['logprobs']), 0)\n"
        "    clipped_ratio = torch.clamp(ratio, 1.0 - self.clip, 1.0 + self.clip)\n"
        "    pg_loss1, pg_loss2 = -batch['advantages'] * ratio, -batch['advantages'] * clipped_ratio\n"
        "    pg_loss = torch.max(pg_loss1, pg_loss2)\n"
        "    return torch.where(batch['loss_mask'], pg_loss, 0).sum() / batch['loss_mask'].count_nonzero()\n"
        "self.optimizer.zero_grad()\nfor rows in torch.arange(len(old)).split(2):\n"
        "    batch = {key: value[rows] for key, value in data.items()}\n"
        "    loss_fn(now[rows], batch).backward(retain_graph=True)\nself.optimizer.step()\nreturn",
    ),
    "closures of an update": (
        "None",
        (
            "def ratio_of(rows):\n    return (now[rows] - old[rows]).exp()\n"
            "def update_minibatch(rows):\n    r, a = ratio_of(rows), advantages[rows]\n"
            "    return torch.max(-a * r, -a * torch.clamp(r, 1 - self.clip, 1 + self.clip)).mean()\n"
            "loss = torch.stack([update_minibatch(rows) for rows in torch.arange(len(old)).split(2)]).mean()"
        ),
    ),
    "a lambda for the aggregation": (
        "None",
        (
            "agg = lambda x: (x * mask).sum() / mask.sum()\nloss = agg(-torch.min(ratio * advantages, "
            "ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)) + self.kl_coef * 0 * agg((now - ref) ** 2)"
        ),
    ),
    "metrics beside losses": (
        "None",
        (
            "stats = {'ratio': ratio.mean().item()}\nlosses = {'pg': -(ratio * advantages).mean()}\n"
            "stats.update({f'loss/{key}': value.item() for key, value in losses.items()})\nloss = losses['pg']"
        ),
    ),
    "a default dictionary": (
        "None",
        "sums = collections.defaultdict(float)\nsums['pg'] += -(ratio * advantages).mean()\nloss = sums['pg']",
    ),
}


@pytest.mark.parametrize("name", STYLES)
def test_a_loss_in_the_style_of_a_library_is_right(tmp_path: Path, name: str) -> None:
    loss, body = STYLES[name]
    module = program(tmp_path, loss, body)
    assert signs.gained(module) > 0
    assert signs.codes(module) == ()


UNREAD = ("objectives that are summed", "a function in a table", "a default dictionary")


@pytest.mark.parametrize("name", STYLES)
def test_of_costs_it_is_wrong_if_it_can_be_read(tmp_path: Path, name: str) -> None:
    loss, body = STYLES[name]
    text = Path(program(tmp_path, loss, body).__file__).read_text("utf-8")
    gains = "advantages = experience.advantages.tensor"
    module = loaded(tmp_path, text.replace(gains, gains.replace("= ", "= -"), 1))
    assert signs.gained(module) < 0
    assert signs.codes(module) == (() if name in UNREAD else ("HF358",))


def program(folder: Path, loss: str, body: str) -> Any:
    body = body if body.endswith("return") else body + signs.STEP
    text = Path(signs.program(folder, body + ("" if body.endswith("return") else "\nreturn")).__file__).read_text()
    place = "        torch.nn.init"
    text = text.replace(place, f"        self.loss_fn = {loss}\n{place}", 1)
    return loaded(folder, text.replace("\nclass Policy(hf.Worker):\n", HELPERS, 1))
