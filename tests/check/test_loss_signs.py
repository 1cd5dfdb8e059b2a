"""Signs in losses of the user's: reported where an update moves the policy the wrong way, and nowhere else."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.check.bodies.flow import FlowInterpretation
from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import functools
from types import SimpleNamespace
import torch
import torch.nn.functional as F
import hfdsl as hf
from torch.distributions import Categorical
from hfdsl.rl.kl import kl_estimate
from hfdsl.rl.losses.tokens import entropy as token_entropy
from hfdsl.rl.masked import masked_mean

CLIP, BETA = 0.2, 0.05

OPTIONS = {{"maximize": True}}
SETTINGS = SimpleNamespace(entropy_coef=-0.01)

class Config:
    entropy_coef = -0.01

def negated(number):
    return -number

class B(hf.Dim): ...
class T(hf.Dim): ...

class Experience(hf.Batch):
    ids: hf.i64[B, T]
    mask: hf.bool_[B, T]
    log_probs: hf.f32[B, T]
    ref_log_probs: hf.f32[B, T]
    advantages: hf.f32[B]

def masked_average(x, mask):
    return (x * mask).sum() / mask.sum().clamp(min=1)

def clipped_loss(ratio, gains, low=CLIP, high=CLIP):
    first = -gains * ratio
    second = -gains * torch.clamp(ratio, 1 - low, 1 + high)
    return torch.max(first, second)

def objective(ratio, gains):
    return torch.min(gains * ratio, gains * ratio.clamp(1 - CLIP, 1 + CLIP))

class Policy(hf.Worker):
    def __init__(self, clip: float = 0.2, kl_coef: float = 0.5, entropy_coef: float = 0.5, micro: int = 2) -> None:
        self.clip, self.kl_coef, self.entropy_coef, self.micro = clip, kl_coef, entropy_coef, micro
        self.model = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.model.weight, generator=torch.Generator().manual_seed(1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01{options})

    def logits(self, experience: Experience) -> torch.Tensor:
        return self.model((experience.ids.tensor + 1) % 8)

    def chosen(self, experience: Experience) -> torch.Tensor:
        log_probs = F.log_softmax(self.logits(experience), dim=-1)
        return log_probs.gather(-1, experience.ids.tensor.unsqueeze(-1)).squeeze(-1)

    def chosen_and_entropy(self, experience: Experience):
        log_probs = self.logits(experience).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return torch.gather(log_probs, -1, experience.ids.tensor[..., None])[..., 0], entropy

    @torch.no_grad()
    def before(self, experience: Experience) -> torch.Tensor:
        return self.chosen(experience)

    def take_step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, experience: Experience) -> None:
        mask = experience.mask.tensor
        old, ref = experience.log_probs.tensor, experience.ref_log_probs.tensor
        advantages = experience.advantages.tensor[:, None]
        now = self.chosen(experience)
        ratio = (now - old).exp()
{body}

@hf.dataflow
def step(experience: Experience, policy: Policy) -> None:
    policy.update(experience)
"""
STEP = "\nself.take_step(loss)"
LOWERS = {
    "policy gradient": "loss = (advantages * now).mean()",
    "twice negated in place": "losses = -(ratio * advantages) * mask\nlosses.mul_(-1)\nloss = losses.mean()",
    "reinforce, masked": "loss = (advantages * now * mask).sum() / mask.sum()",
    "ratio": "loss = masked_mean(ratio * advantages, mask)",
    "surrogate of PPO": (
        "first = ratio * advantages\n"
        "second = torch.clamp(ratio, 1 - self.clip, 1 + self.clip) * advantages\n"
        "loss = torch.min(first, second).mean()"
    ),
    "negated twice": "loss = -clipped_loss(ratio, advantages).mean()",
    "an objective of a function": "loss = masked_average(objective(ratio, advantages), mask)",
    "the ratio upside down": "loss = -((old - now).exp() * advantages).mean()",
    "the ratio upside down, clipped": "loss = clipped_loss(torch.exp(old - now), advantages).mean()",
    "the ratio of detached log-probs": "loss = ((now - now.detach()).exp() * advantages).mean()",
    "normalized advantages": (
        "gains = (advantages - advantages.mean()) / (advantages.std() + 1e-8)\n"
        "loss = masked_average(ratio * gains, mask)"
    ),
    "whitened advantages": (
        "spread = ((advantages - advantages.mean()) ** 2).mean()\n"
        "gains = (advantages - advantages.mean()) * torch.rsqrt(spread + 1e-8)\n"
        "loss = (ratio * gains * mask).sum() / mask.sum()"
    ),
    "cross entropy": (
        "nll = F.cross_entropy(self.logits(experience).flatten(0, 1), experience.ids.tensor.flatten(), "
        "reduction='none')\nloss = -(nll.view_as(old) * advantages).mean()"
    ),
    "a distribution": (
        "policy = Categorical(logits=self.logits(experience))\n"
        "loss = (policy.log_prob(experience.ids.tensor) * advantages).mean()"
    ),
    "a clipped weight": (
        "weight = ratio.detach().clamp(max=2.0)\nloss = (weight * advantages * now * mask).sum() / mask.sum()"
    ),
    "in parts": (
        "self.optimizer.zero_grad()\n"
        "for part, gain in zip(ratio.split(2), advantages.split(2)):\n"
        "    ((part * gain).mean() / self.micro).backward(retain_graph=True)\n"
        "self.optimizer.step()\nreturn"
    ),
    "of rows that are cut": (
        "self.optimizer.zero_grad()\n"
        "for start in range(0, len(old), self.micro):\n"
        "    part = experience[start : start + self.micro]\n"
        "    ratio = (self.chosen(part) - part.log_probs.tensor).exp()\n"
        "    loss = (ratio * part.advantages.tensor[:, None]).mean() / self.micro\n"
        "    loss.backward()\n"
        "self.optimizer.step()\nreturn"
    ),
    "an objective that partial has given its clip range": (
        "surrogate = functools.partial(clipped_loss, low=0.1, high=self.clip)\n"
        "loss = -surrogate(ratio, gains=advantages).mean()"
    ),
    "an objective that partial has given a ratio": (
        "surrogate = functools.partial(objective, ratio)\nloss = surrogate(advantages).mean()"
    ),
    "named within an expression": "loss = ((now := self.chosen(experience)) * advantages).mean() + 0 * now.mean()",
    "with a KL": "loss = (ratio * advantages).mean() + self.kl_coef * ((now - ref) ** 2).mean()",
    "where a test of terms holds": (
        "kept = ((now - old).abs() < 5.0) & mask\nloss = (ratio * advantages * kept).sum() / kept.sum()"
    ),
    "a weight or none": ("weight = torch.where(ratio < 5.0, ratio, 0.0)\nloss = (weight * advantages).mean()"),
    "advantages less a KL": (
        "with torch.no_grad():\n    gains = advantages - BETA * (now - ref)\nloss = (gains * now).mean()"
    ),
    "summed": (
        "total = 0.0\nfor part, gain in zip(ratio.split(2), advantages.split(2)):\n"
        "    total = total + (part * gain).sum()\n"
        "loss = total / mask.sum()"
    ),
    "in a list": (
        "losses = []\nfor part, gain in zip(ratio, advantages):\n    losses.append((part * gain).mean())\n"
        "loss = torch.stack(losses).mean()"
    ),
    "by autograd": (
        "loss = (ratio * advantages).mean()\n"
        "[gradient] = torch.autograd.grad(loss, [self.model.weight])\n"
        "self.model.weight.grad = gradient\nself.optimizer.step()\nreturn"
    ),
    "in a branch": (
        "if self.clip:\n    loss = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()\n"
        "else:\n    loss = (ratio * advantages).mean()"
    ),
}
RAISES = {
    "a partial that is given another loss": (
        "surrogate = functools.partial(objective, ratio)\nsurrogate = functools.partial(clipped_loss, ratio)\n"
        "loss = surrogate(advantages).mean()"
    ),
    "a partial of a name that changes": (
        "gains = advantages\nsurrogate = functools.partial(objective, ratio, gains)\ngains = -advantages\n"
        "loss = -surrogate().mean()"
    ),
    "policy gradient": "loss = -(advantages * now).mean()",
    "negated in place": "losses = (ratio * advantages) * mask\nlosses.mul_(-1)\nloss = losses.sum() / mask.sum()",
    "a negated advantage": "loss = (-advantages * now).mean()",
    "a negated sum": "loss = -1.0 * (advantages * now * mask).sum() / mask.sum()",
    "a difference": "loss = 0.0 - (ratio * advantages).mean()",
    "a negated objective": "loss = -masked_average(objective(ratio, advantages), mask)",
    "a loss of a function": "loss = masked_mean(clipped_loss(ratio, advantages), mask)",
    "negated at the end": "loss = (ratio * advantages).mean()\nself.take_step(-loss)\nreturn",
    "negated by torch": "loss = torch.neg((ratio * advantages).mean())",
    "of costs": "costs = -advantages\nloss = (costs * now).mean()",
    "a baseline above": "loss = ((advantages.mean() * 0.0 - advantages) * now).mean()",
    "the ratio upside down, detached": (
        "weight = (old - now).exp().detach()\nloss = -(now * advantages / weight).mean()"
    ),
    "cross entropy": (
        "nll = F.cross_entropy(self.logits(experience).flatten(0, 1), experience.ids.tensor.flatten(), "
        "reduction='none')\nloss = (nll.view_as(old) * advantages).mean()"
    ),
    "a distribution": (
        "policy = Categorical(logits=self.logits(experience))\n"
        "loss = -(policy.log_prob(experience.ids.tensor) * advantages).mean()"
    ),
    "two clips": (
        "first, second = -advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)\n"
        "held = torch.max(first, second)\n"
        "loss = torch.where(advantages < 0, torch.min(-advantages * 3.0, held), held).mean()"
    ),
    "a clip of PPO by cases": (
        "bound = torch.where(advantages > 0, (1 + CLIP) * advantages, (1 - CLIP) * advantages)\n"
        "loss = -torch.min(ratio * advantages, bound).mean()"
    ),
    "gradients that are turned": (
        "loss = (ratio * advantages).mean()\n"
        "[gradient] = torch.autograd.grad(loss, [self.model.weight])\n"
        "self.model.weight.grad = -gradient\nself.optimizer.step()\nreturn"
    ),
    "gradients that are turned in place": (
        "self.optimizer.zero_grad()\n(ratio * advantages).mean().backward()\n"
        "for p in self.model.parameters():\n    p.grad.neg_()\nself.optimizer.step()\nreturn"
    ),
    "a step by hand": (
        "objective = (ratio * advantages).mean()\n"
        "[gradient] = torch.autograd.grad(objective, [self.model.weight])\n"
        "with torch.no_grad():\n    self.model.weight += 0.01 * gradient\nreturn"
    ),
    "in parts": (
        "self.optimizer.zero_grad()\n"
        "for part, gain in zip(ratio.split(2), advantages.split(2)):\n"
        "    (-(part * gain).mean() / self.micro).backward(retain_graph=True)\n"
        "self.optimizer.step()\nreturn"
    ),
    "a metric beside it": "gained = (ratio * advantages).mean()\nloss = -gained\nself.gained = gained.item()",
    "weighted imitation": "loss = -(torch.exp(advantages) * now).mean()",
    "a parabola": "loss = (advantages.abs() * (ratio - 1) ** 2 / 0.4 - ratio * advantages).mean()",
    "a squashed ratio": "loss = -(torch.sigmoid(4.0 * (ratio - 1)) * advantages).mean()",
}
BONUS = "-(ratio * advantages).mean()"
HARMS = {
    "entropy is added": (
        "HF946",
        f"now, entropy = self.chosen_and_entropy(experience)\nloss = {BONUS} + 0.5 * entropy.mean()",
    ),
    "entropy by alpha": (
        "HF946",
        f"_, entropy = self.chosen_and_entropy(experience)\nloss = torch.add({BONUS}, entropy.mean(), alpha=0.5)",
    ),
    "entropy by a coefficient": (
        "HF946",
        f"ent = Categorical(logits=self.logits(experience)).entropy()\nloss = {BONUS} + self.entropy_coef * ent.mean()",
    ),
    "entropy of chances and their logarithms": (
        "HF946",
        f"x = self.logits(experience).float()\nloss = {BONUS} - 0.5 * (F.softmax(x, -1) * x.log_softmax(-1)).mean()",
    ),
    "entropy of a formula": (
        "HF946",
        f"loss = {BONUS}\nloss += 0.5 * masked_mean(token_entropy(self.logits(experience)), mask)",
    ),
    "the bonus is negated twice": (
        "HF946",
        f"_, entropy = self.chosen_and_entropy(experience)\nbonus = -entropy.mean()\nloss = {BONUS} - 0.5 * bonus",
    ),
    "KL by its square": ("HF353", f"loss = {BONUS} - self.kl_coef * (0.5 * (now - ref) ** 2).mean()"),
    "KL by k3": (
        "HF353",
        f"gap = ref - now\nkl = gap.exp() - gap - 1\nloss = {BONUS} - self.kl_coef * masked_average(kl, mask)",
    ),
    "KL by k3, in another order": (
        "HF353",
        f"kl = (ref - now).exp() - 1 - (ref - now)\nloss = ({BONUS[1:]} + self.kl_coef * kl.mean()) * -1",
    ),
    "KL by k1": ("HF353", f"loss = {BONUS} - self.kl_coef * (now - ref).mean()"),
    "KL by k1, upside down": ("HF353", f"kl = ref - now\nloss = {BONUS} + self.kl_coef * kl.mean()"),
    "KL of a formula": ("HF353", f"kl = kl_estimate(now, ref, 'k3')\nloss = {BONUS} - BETA * kl.mean()"),
}
HELPS = {
    "entropy": f"now, entropy = self.chosen_and_entropy(experience)\nloss = {BONUS} - 0.5 * entropy.mean()",
    "entropy by alpha": (
        f"_, entropy = self.chosen_and_entropy(experience)\nloss = torch.add({BONUS}, entropy.mean(), alpha=-0.5)"
    ),
    "entropy in the objective": (
        f"_, entropy = self.chosen_and_entropy(experience)\nloss = -({BONUS[1:]} + self.entropy_coef * entropy.mean())"
    ),
    "entropy, negated": (
        f"_, entropy = self.chosen_and_entropy(experience)\nless = -entropy\nloss = {BONUS} + 0.5 * less.mean()"
    ),
    "negative entropy": (
        f"p = self.logits(experience).softmax(-1)\nloss = {BONUS} + 0.5 * (p * p.log()).sum(-1).mean()"
    ),
    "entropy by a negative coefficient": (
        f"_, entropy = self.chosen_and_entropy(experience)\nloss = {BONUS} + -self.entropy_coef * entropy.mean()"
    ),
    "entropy that is watched": (
        f"_, entropy = self.chosen_and_entropy(experience)\nself.entropy = entropy.mean().item()\nloss = {BONUS}"
    ),
    "KL by its square": f"loss = {BONUS} + self.kl_coef * (0.5 * (now - ref) ** 2).mean()",
    "KL by k3": f"gap = ref - now\nkl = gap.exp() - gap - 1\nloss = {BONUS} + self.kl_coef * masked_average(kl, mask)",
    "KL by expm1": f"gap = ref - now\nloss = {BONUS} + self.kl_coef * (torch.expm1(gap) - gap).mean()",
    "KL by k3, the other way": f"gap = ref - now\nkl = gap + 1 - gap.exp()\nloss = {BONUS} - self.kl_coef * kl.mean()",
    "KL by k1": f"loss = {BONUS} + self.kl_coef * (now - ref).mean()",
    "KL by k1, upside down": f"loss = {BONUS} - self.kl_coef * (ref - now).mean()",
    "KL in the objective": f"loss = -({BONUS[1:]} - self.kl_coef * kl_estimate(now, ref, 'k3').mean())",
    "KL per token": "loss = -(ratio * advantages - self.kl_coef * kl_estimate(now, ref, 'k3')).mean()",
    "KL if asked for": f"loss = {BONUS}\nif self.kl_coef:\n    loss = loss + self.kl_coef * ((now - ref) ** 2).mean()",
}
UNCLIPPED = (
    "loss = -torch.max(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()",
    "loss = torch.min(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages).mean()",
    "held = ratio.clamp(1 - CLIP, 1 + CLIP) * advantages\nloss = -torch.maximum(held, ratio * advantages).mean()",
    "loss = masked_mean(torch.minimum(-advantages * ratio, -advantages * ratio.clip(0.8, 1.2)), mask)",
)


def program(folder: Path, body: str, options: str = "") -> Any:
    body = body if "return" in body else body + STEP
    return loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8), options=options))


def experience_of(module: Any, policy: Any, advantage: float) -> Any:
    """Tokens, half of them with an advantage above 0, that the policy finds likelier than its reference."""
    rows = module.Experience(
        ids=torch.arange(16).view(4, 4) % 8,
        mask=torch.ones(4, 4, dtype=torch.bool),
        log_probs=torch.zeros(4, 4),
        ref_log_probs=torch.zeros(4, 4),
        advantages=torch.tensor([1.0, -0.5, 0.5, -1.0]) * advantage,
    )
    with torch.no_grad():
        now = policy.chosen(rows)
    return module.Experience(
        ids=rows.ids, mask=rows.mask, log_probs=now - 0.01, ref_log_probs=now - 0.5, advantages=rows.advantages
    )


def gained(module: Any) -> float:
    """By how much an update raises the log-probs of tokens times their advantages."""
    policy = module.Policy()
    experience = experience_of(module, policy, 1.0)
    before = (policy.chosen(experience) * experience.advantages.tensor[:, None]).sum().item()
    module.step(experience, policy)
    after = (policy.chosen(experience) * experience.advantages.tensor[:, None]).sum().item()
    return float(after - before)


def codes(module: Any) -> tuple[str, ...]:
    report: Any = module.step.check(dims={module.B: 4})
    return tuple(report.codes)


@pytest.mark.parametrize("name", LOWERS)
def test_a_loss_that_lowers_advantages_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, LOWERS[name])
    assert gained(module) < 0
    assert codes(module) == ("HF358",)


@pytest.mark.parametrize("name", RAISES)
def test_a_loss_that_raises_advantages_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RAISES[name])
    assert gained(module) > 0
    assert codes(module) == ()


def test_an_optimizer_that_maximizes_may_have_an_objective(tmp_path: Path) -> None:
    for body in LOWERS.values():
        module = program(tmp_path, body, options=", maximize=True")
        assert gained(module) > 0
        assert codes(module) == ()


def moved(module: Any) -> tuple[float, float]:
    """By how much an update without advantages raises the entropy, and the gap to the reference."""
    policy = module.Policy()
    experience = experience_of(module, policy, 0.0)
    now, entropy = policy.chosen_and_entropy(experience)
    module.step(experience, policy)
    later, later_entropy = policy.chosen_and_entropy(experience)
    return (later_entropy - entropy).sum().item(), (later - now).sum().item()


@pytest.mark.parametrize("name", HARMS)
def test_a_term_of_the_wrong_sign_is_reported(tmp_path: Path, name: str) -> None:
    code, body = HARMS[name]
    module = program(tmp_path, body)
    more_entropy, more_gap = moved(module)
    assert more_entropy < 0 if code == "HF946" else more_gap > 0
    assert codes(module) == (code,)


@pytest.mark.parametrize("name", HELPS)
def test_a_term_of_the_right_sign_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, HELPS[name])
    more_entropy, more_gap = moved(module)
    assert more_gap < 0 if "KL" in name else more_entropy >= 0
    assert codes(module) == ()


@pytest.mark.parametrize("body", UNCLIPPED)
def test_the_greater_surrogate_is_reported(tmp_path: Path, body: str) -> None:
    assert codes(program(tmp_path, body)) == ("HF946",)


UNKNOWN = {
    "a sign that the role has": "loss = self.sign * (ratio * advantages).mean()",
    "both signs": "loss = (ratio * advantages * (advantages > 0)).mean() - 2.0 * (ratio * advantages).mean()",
    "gradients of its own": (
        "self.optimizer.zero_grad()\n(ratio * advantages).mean().backward(torch.tensor(-1.0))\n"
        "self.optimizer.step()\nreturn"
    ),
    "no surrogate": "loss = self.chosen_and_entropy(experience)[1].mean()",
    "a branch that negates": "loss = (ratio * advantages).mean()\nif self.minimizes:\n    loss = -loss",
    "unknown advantages": "gains = self.estimate(experience)\nloss = (ratio * gains).mean()",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_said_of_what_is_not_certain(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, UNKNOWN[name])) == ()


@pytest.mark.parametrize(
    "coefficient",
    [
        "self.entropy_coef = -0.01",
        "self.entropy_coef: float = -abs(clip)",
        "self.weights = [-1.0]",
        "self.entropy_coef = 0.0 - 0.01",
        "sign = -1\n        self.entropy_coef = sign * 0.01",
        "self.entropy_coef = negated(0.01)",
        "self.config = Config()",
        "self.config = SETTINGS",
        "self.config = Config",
    ],
)
def test_a_coefficient_that_may_be_negative_is_not_taken_for_positive(tmp_path: Path, coefficient: str) -> None:
    _, body = HARMS["entropy by a coefficient"]
    text = MODULE.format(body=textwrap.indent(body + STEP, " " * 8), options="")
    changed = text.replace("        self.model = torch", f"        {coefficient}\n        self.model = torch")
    if "config" in coefficient:
        changed = changed.replace("loss + self.entropy_coef", "loss + self.config.entropy_coef")
    assert codes(loaded(tmp_path, changed)) == ()
    assert codes(program(tmp_path, body)) == ("HF946",)


@pytest.mark.parametrize(
    "coefficient",
    [
        "self.entropy_coef = max(float(clip) - 0.1, 0.0)",
        "self.entropy_coef = torch.tensor(0.01)",
        "self.warmup_steps = 100 - micro",
        "self.kl_weight = 1.0 - 0.9",
        "self.config = {'entropy': 0.01, 'pad': -1}['entropy']",
    ],
)
def test_a_coefficient_that_is_not_negative_is_taken_for_positive(tmp_path: Path, coefficient: str) -> None:
    _, body = HARMS["entropy by a coefficient"]
    text = MODULE.format(body=textwrap.indent(body + STEP, " " * 8), options="")
    changed = text.replace("        self.model = torch", f"        {coefficient}\n        self.model = torch")
    assert codes(loaded(tmp_path, changed)) == ("HF946",)


def test_an_optimizer_may_get_its_direction_from_a_table(tmp_path: Path) -> None:
    module = program(tmp_path, LOWERS["ratio"], options=", **OPTIONS")
    assert gained(module) > 0
    assert codes(module) == ()


def test_a_constructor_with_a_negative_number_may_have_a_penalty(tmp_path: Path) -> None:
    _, body = HARMS["entropy by a coefficient"]
    module = program(tmp_path, body)
    places = module.hf.Deployment(
        policy=module.hf.place(module.Policy, entropy_coef=-0.01, pool=module.hf.ResourcePool([1]))
    )
    assert "HF946" not in module.step.check(places, dims={module.B: 4}).codes


def test_of_two_roles_with_the_same_advantages_one_may_lower_them(tmp_path: Path) -> None:
    text = MODULE.format(body=textwrap.indent(LOWERS["ratio"] + STEP, " " * 8), options="")
    start, end = text.index("@hf.dataflow"), len(text)
    game = """
class Rival(Policy):
    pass

@hf.dataflow
def step(experience: Experience, policy: Policy, rival: Rival) -> None:
    policy.update(experience)
    rival.update(experience)
"""
    assert codes(loaded(tmp_path, text[:start] + game + text[end:])) == ()


LOSS = """
from dataclasses import dataclass
import torch
import hfdsl as hf
from hfdsl.rl.batches import ActorMetrics, B, Experience
from hfdsl.rl.losses import PolicyLoss
from hfdsl.rl.workers import Actor

@dataclass(frozen=True, slots=True)
class Own(PolicyLoss):
    epsilon: float = 0.2
    sign: float = 1.0

    def surrogate(self, log_probs, old, gain, mask):
        ratio = (log_probs - old).exp()
        held = ratio.clamp(1 - self.epsilon, 1 + self.epsilon)
        loss = {loss}
        return loss, torch.zeros_like(loss)

@hf.dataflow
def step(experience: Experience, actor: Actor) -> ActorMetrics:
    return actor.update(experience, loss=Own())
"""


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("-gain * ratio", ()),
        ("gain * ratio", ("HF358",)),
        ("-torch.min(ratio * gain, held * gain)", ()),
        ("torch.min(ratio * gain, held * gain)", ("HF358",)),
        ("torch.max(-ratio * gain, -held * gain)", ()),
        ("torch.min(-ratio * gain, -held * gain)", ("HF946",)),
        ("-torch.maximum(ratio * gain, held * gain)", ("HF946",)),
        ("-self.sign * ratio * gain", ()),
        ("self.sign * ratio * gain", ("HF358",)),
        ("-log_probs * gain", ()),
        ("log_probs * gain", ("HF358",)),
        ("-(old - log_probs).exp() * gain", ("HF358",)),
        ("gain.abs() * (ratio - 1) ** 2 / (2 * self.epsilon) - ratio * gain", ()),
        ("-ratio.detach().clamp(max=5.0) * gain * log_probs", ()),
    ],
)
def test_the_surrogate_of_a_loss_falls_as_tokens_that_are_better_become_likelier(
    tmp_path: Path, loss: str, expected: tuple[str, ...]
) -> None:
    module = loaded(tmp_path, LOSS.format(loss=loss))
    new = torch.tensor([[0.01, -0.01]], requires_grad=True)
    gain, one = torch.tensor([[1.0, -0.5]]), torch.ones(1, 2)
    module.Own().surrogate(new, torch.zeros(1, 2), gain, one)[0].sum().backward()
    assert new.grad is not None
    assert bool((new.grad * gain).sum() > 0) is ("HF358" in expected)
    assert codes(module) == expected


LEVELS, CALLS = 5, 8
"""So many helpers of each level, each of which calls all of the next level, twice."""


def test_a_role_of_many_helpers_is_not_followed_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helpers = [
        f"    def f{level}_{i}(self, x):\n        for _ in range(2):\n"
        + "".join(f"            x = x + self.f{level + 1}_{j}(x)\n" for j in range(CALLS))
        + "        return x\n"
        for level in range(LEVELS - 1)
        for i in range(CALLS)
    ]
    helpers += [f"    def f{LEVELS - 1}_{i}(self, x):\n        return x\n" for i in range(CALLS)]
    body = textwrap.indent("loss = self.f0_0(ratio * advantages).mean()" + STEP, " " * 8)
    text = MODULE.format(body=body, options="").replace("    def logits(", "".join(helpers) + "    def logits(", 1)
    followed = list[ast.AST]()
    completed = FlowInterpretation.completed

    def counted(self: FlowInterpretation[Any]) -> FlowInterpretation[Any]:
        followed.append(self.definition)
        return completed(self)

    monkeypatch.setattr(FlowInterpretation, "completed", counted)
    assert codes(loaded(tmp_path, text)) == ()
    assert len(followed) < 1_000


STYLES = {
    **{
        f"an entropy of another part, {made}": (
            "router_logits = self.logits(experience).detach() * self.model.weight.mean()\n"
            f"spread = {made}\nloss = {BONUS} + 0.01 * spread.mean()"
        )
        for made in (
            "-(router_logits.softmax(-1) * router_logits.log_softmax(-1)).sum(-1)",
            "Categorical(logits=router_logits).entropy()",
            "token_entropy(router_logits)",
        )
    },
    "a cross entropy to a teacher": (
        "teacher = torch.linspace(-1.0, 1.0, 64).view(8, 8)[experience.ids.tensor]\n"
        "goal = F.softmax(teacher, dim=-1)\n"
        "imitation = -(goal * F.log_softmax(self.logits(experience), dim=-1)).sum(-1)\n"
        f"loss = {BONUS} + 0.1 * imitation.mean()"
    ),
    "a KL from a reference, over the vocabulary": (
        "with torch.no_grad():\n    others = self.model(experience.ids.tensor)\n"
        "goal = others.softmax(-1)\n"
        "kl = (goal * (others.log_softmax(-1) - self.logits(experience).log_softmax(-1))).sum(-1)\n"
        f"loss = {BONUS} + 0.1 * kl.mean()"
    ),
    "one name for logits of two models": (
        "logits = self.model(experience.ids.tensor).detach()\ngoal = logits.softmax(-1)\n"
        "logits = self.logits(experience)\nimitation = -(goal * logits.log_softmax(-1)).sum(-1)\n"
        f"loss = {BONUS} + 0.1 * imitation.mean()"
    ),
    "the greater surrogate as a metric": (
        "held = ratio.clamp(1 - CLIP, 1 + CLIP)\n"
        "with torch.no_grad():\n    most = torch.max(ratio * advantages, held * advantages).mean()\n"
        "self.most = most.item()\nloss = -torch.min(ratio * advantages, held * advantages).mean()"
    ),
    "a loop of epochs": (
        "for _ in range(2):\n"
        "    for part in torch.randperm(len(old)).split(2):\n"
        "        now = self.chosen(experience)[part]\n"
        "        log_ratio = now - old[part]\n"
        "        ratio = log_ratio.exp()\n"
        "        with torch.no_grad():\n"
        "            approx_kl = ((ratio - 1) - log_ratio).mean()\n"
        "        gains = advantages[part]\n"
        "        gains = (gains - gains.mean()) / (gains.std() + 1e-8)\n"
        "        first = -gains * ratio\n"
        "        second = -gains * torch.clamp(ratio, 1 - self.clip, 1 + self.clip)\n"
        "        policy_loss = torch.max(first, second).mean()\n"
        "        entropy_loss = self.chosen_and_entropy(experience)[1][part].mean()\n"
        "        loss = policy_loss - self.entropy_coef * entropy_loss + approx_kl * 0\n"
        "        self.take_step(loss)\n"
        "return"
    ),
    "an early stop": (
        "log_ratio = torch.clamp(now - old, min=-20.0, max=20.0)\n"
        "ratio = torch.exp(log_ratio)\n"
        "kl_to_old = masked_mean(-log_ratio, mask)\n"
        "if kl_to_old > 100.0:\n    return\n"
        "losses1 = -advantages * ratio\n"
        "losses2 = -advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)\n"
        "clipped = torch.maximum(losses1, losses2)\n"
        "losses3 = -advantages * 3.0\n"
        "clipped = torch.where(advantages < 0, torch.min(losses3, clipped), clipped)\n"
        "self.take_step(masked_mean(clipped, mask) - kl_to_old.detach() * 0.0)"
    ),
    "a KL per token of an objective": (
        "per_token_kl = torch.exp(ref - now) - (ref - now) - 1\n"
        "per_token_loss = torch.exp(now - now.detach()) * advantages\n"
        "per_token_loss = -(per_token_loss - self.kl_coef * per_token_kl)\n"
        "loss = ((per_token_loss * mask).sum(dim=1) / mask.sum(dim=1)).mean()"
    ),
    "sequence ratios": (
        "log_ratio = ((now - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1)\n"
        "ratio = log_ratio.exp()[:, None]\n"
        "loss = -torch.min(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages).mean()"
    ),
    "a Lagrangian of costs": (
        "cost_advantages = 0.1 * advantages.abs()\n"
        "loss = (0.5 * ratio * cost_advantages - ratio * advantages).mean() / 1.5"
    ),
    "truncated importance weights": (
        "weight = torch.clamp((old - ref).exp(), max=2.0).detach()\n"
        "loss = -(torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * weight * mask).sum() / mask.sum()"
    ),
    "a value loss beside it": (
        "values = self.logits(experience).mean(-1)\n"
        "value_loss = 0.5 * ((values - advantages) ** 2).mean()\n"
        "loss = -(ratio * advantages).mean() + 0.0 * value_loss"
    ),
    "a dictionary of losses": ("parts = {'policy': -(ratio * advantages).mean()}\nloss = sum(parts.values())"),
    "positive and negative rows apart": (
        "good, bad = advantages.clamp(min=0), (-advantages).clamp(min=0)\nloss = (-(good * ratio) + bad * ratio).mean()"
    ),
    "accumulated": (
        "self.optimizer.zero_grad()\n"
        "count = old.shape[0]\n"
        "for i in range(count):\n"
        "    loss = -(ratio[i] * advantages[i]).mean() / count\n"
        "    loss.backward(retain_graph=True)\n"
        "self.optimizer.step()\nreturn"
    ),
    "mixed precision": (
        "with torch.autocast('cpu', enabled=False):\n    loss = -(ratio * advantages).mean()\n"
        "scaler = torch.amp.GradScaler('cpu', enabled=False)\nself.optimizer.zero_grad()\n"
        "scaler.scale(loss).backward()\nscaler.step(self.optimizer)\nscaler.update()\nreturn"
    ),
}


@pytest.mark.parametrize("name", STYLES)
def test_losses_as_other_libraries_write_them_are_right(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, STYLES[name])
    assert gained(module) > 0
    assert codes(module) == ()
