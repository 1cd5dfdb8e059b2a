"""Losses in other objects than the role, and in functions that a method defines: followed where they are certain."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

CLASSES = """
class ClipLoss:
    def __init__(self, clip: float = 0.2, beta: float = 0.1) -> None:
        self.clip, self.beta = clip, beta

    def ratio(self, now, old):
        return torch.exp(now - old)

    def surrogate(self, ratio, gains):
        return {sign}torch.min(ratio * gains, ratio.clamp(1 - self.clip, 1 + self.clip) * gains)

    @staticmethod
    def mean(x, mask):
        return (x * mask).sum() / mask.sum()

    def __call__(self, now, old, gains, mask):
        return self.mean(self.surrogate(self.ratio(now, old), gains), mask)

class ModuleLoss(torch.nn.Module):
    def __init__(self, inner=None) -> None:
        super().__init__()
        self.inner = ClipLoss(0.1)

    def forward(self, now, old, gains, mask):
        return self.inner(now, old, gains, mask)

class SpecialLoss(ClipLoss):
    def surrogate(self, ratio, gains):
        return super().surrogate(ratio, gains) * 1.0

class Losses:
    @staticmethod
    def clipped(ratio, gains):
        return {sign}torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains)

    @classmethod
    def mean(cls, ratio, gains):
        return cls.clipped(ratio, gains).mean()

class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 8)

    def log_probs(self, experience):
        logits = self.table((experience.ids.tensor + 1) % 8)
        return logits.log_softmax(-1).gather(-1, experience.ids.tensor[..., None])[..., 0]

    def loss(self, experience):
        ratio = (self.log_probs(experience) - experience.log_probs.tensor).exp()
        gains = experience.advantages.tensor[:, None]
        return {sign}torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()

def of_function(now, old, gains, mask):
    ratio = torch.exp(now - old)
    return {sign}masked_average(torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains), mask)

def of_ratios_alone(now, old, gains, mask):
    return {sign}masked_average(torch.exp(now - old) * gains, mask)

def scored(loss_fn, now, old, gains, mask):
    return loss_fn(now, old, gains, mask)

SHARED = ClipLoss()
LOSSES = {"ppo": of_function, "plain": of_ratios_alone}
REGISTRY = {}

def registered(name):
    def register(function):
        REGISTRY[name] = function
        return function
    return register

@registered("vanilla")
def of_registered(now, old, gains, mask):
    return of_function(now, old, gains, mask)

def get_loss(name):
    if name not in REGISTRY:
        raise ValueError(name)
    return REGISTRY[name]
"""
CALL = "self.loss_fn(now, old, advantages, mask)"
BODIES = {
    "an object": ("self.loss_fn = ClipLoss(clip)", f"loss = {CALL}"),
    "an object with a type": ("self.loss_fn: ClipLoss = ClipLoss(clip)", f"loss = {CALL}"),
    "a method of an object": (
        "self.losses = ClipLoss()",
        "loss = self.losses.surrogate(self.losses.ratio(now, old), advantages).mean()",
    ),
    "a module": ("self.loss_fn = ModuleLoss()", f"loss = {CALL}"),
    "a module somewhere": ("self.loss_fn = ModuleLoss().to('cpu').train()", f"loss = {CALL}"),
    "a class with super()": ("self.loss_fn = SpecialLoss()", f"loss = {CALL}"),
    "a function": ("self.loss_fn = of_function", f"loss = {CALL}"),
    "an object of the method": ("", "loss_fn = ClipLoss(self.clip)\nloss = loss_fn(now, old, advantages, mask)"),
    "an object under another name": (
        "self.loss_fn = ClipLoss(clip)",
        "loss_fn = self.loss_fn\nloss = loss_fn(now, old, advantages, mask)",
    ),
    "an object at once": ("", "loss = ClipLoss(self.clip)(now, old, advantages, mask)"),
    "an object of the module": ("", "loss = SHARED(now, old, advantages, mask)"),
    "an object that a function takes": (
        "self.loss_fn = ClipLoss(clip)",
        "loss = scored(self.loss_fn, now, old, advantages, mask)",
    ),
    "a namespace": ("", "loss = Losses.clipped(ratio, advantages).mean()"),
    "a class method": ("", "loss = Losses.mean(ratio, advantages)"),
    "a model": (
        "self.model = Net()",
        "loss = self.model.loss(experience)",
    ),
    "a table, by a key": ("", "loss = LOSSES['plain'](now, old, advantages, mask)"),
    "a table, by the key of an attribute": (
        "self.kind = 'ppo'",
        "loss = LOSSES[self.kind](now, old, advantages, mask)",
    ),
    "a table, by a name": (
        "self.kind = 'plain'",
        "loss_fn = LOSSES[self.kind]\nloss = loss_fn(now=now, old=old, gains=advantages, mask=mask)",
    ),
    "a table, by get": ("", "loss = LOSSES.get('ppo')(now, old, advantages, mask)"),
    "a registry": ("", "loss_fn = get_loss('vanilla')\nloss = loss_fn(now, old, advantages, mask)"),
    "a registry, at once": ("self.kind = 'vanilla'", "loss = get_loss(self.kind)(now, old, advantages, mask)"),
    "a registry in the constructor": ("self.loss_fn = get_loss('vanilla')", f"loss = {CALL}"),
    "an entry that the constructor takes": ("self.loss_fn = LOSSES['ppo']", f"loss = {CALL}"),
    "an entry by an argument": ("self.loss_fn = LOSSES['ppo' if clip else 'plain']", f"loss = {CALL}"),
    "an entry that a function takes": (
        "self.kind = 'ppo'",
        "loss = scored(LOSSES[self.kind], now, old, advantages, mask)",
    ),
    "a local function": (
        "",
        (
            "def clipped(x):\n    held = x.clamp(1 - CLIP, 1 + CLIP)\n"
            "    return {sign}torch.min(x * advantages, held * advantages)\nloss = clipped(ratio).mean()"
        ),
    ),
    "a lambda": ("", "gain = lambda x: {sign}x * advantages\nloss = gain(ratio).mean()"),
    "a lambda at once": ("", "loss = (lambda x, y: {sign}(x * y).mean())(ratio, advantages)"),
    "a local function that collects": (
        "",
        (
            "losses = []\ndef add(x):\n    losses.append({sign}(x * advantages).mean())\nadd(ratio)\n"
            "loss = torch.stack(losses).mean()"
        ),
    ),
    "a closure of an optimizer": (
        "",
        (
            "def closure():\n    self.optimizer.zero_grad()\n    ratio = (self.chosen(experience) - old).exp()\n"
            "    loss = {sign}(ratio * advantages).mean()\n    loss.backward()\n    return loss\n"
            "self.optimizer.step(closure)\nreturn"
        ),
    ),
}


UNREAD = ("self.loss_fn = LOSSES.get('ppo', made(clip))", "self.loss_fn = MIXED['ppo' if clip else 'other']")


@pytest.mark.parametrize("attribute", UNREAD)
def test_a_table_with_anything_else_says_nothing(tmp_path: Path, attribute: str) -> None:
    mixed = "\nMIXED = {'ppo': of_function, 'other': functools.partial(of_function, mask=None)}\n"
    module = program(tmp_path, attribute, f"loss = {CALL}", "", OTHERS + mixed)
    assert signs.gained(module) < 0
    assert signs.codes(module) == ()


GIVEN = {
    "an object": ("ClipLoss(0.1)", CALL),
    "a module": ("ModuleLoss()", CALL),
    "a method": ("ClipLoss()", "self.loss_fn.surrogate(self.loss_fn.ratio(now, old), advantages).mean()"),
    "a function": ("of_function", CALL),
    "an object within an object": ("SpecialLoss()", "scored(self.loss_fn, now, old, advantages, mask)"),
}


def given_codes(module: Any, loss: str, by_name: bool) -> tuple[str, ...]:
    """The codes of a program whose role is placed with a loss."""
    argument = eval(loss, vars(module))
    pool = hf.ResourcePool([1])
    policy = (
        hf.place(module.Policy, loss_fn=argument, pool=pool)
        if by_name
        else hf.place(module.Policy, argument, pool=pool)
    )
    report: Any = module.step.check(hf.Deployment(policy=policy), dims={module.B: 4})
    return tuple(report.codes)


@pytest.mark.parametrize("name", GIVEN)
def test_a_loss_that_a_role_is_placed_with_is_followed(tmp_path: Path, name: str) -> None:
    loss, call = GIVEN[name]
    for sign, expected in (("", ("HF358",)), ("-", ())):
        module = program(tmp_path, "self.loss_fn = loss_fn", f"loss = {call}", sign, "", f"loss_fn=({loss}), ")
        assert (signs.gained(module) < 0) is bool(expected)
        assert given_codes(module, loss, by_name=True) == given_codes(module, loss, by_name=False) == expected


UNCERTAIN_GIVEN = {
    "an object that is exchanged": "self.loss_fn = loss_fn\n        self.loss_fn = Negated()",
    "another argument": "loss_fn = Negated()\n        self.loss_fn = loss_fn",
    "a helper of it": "self.loss_fn = turned(loss_fn)",
}


@pytest.mark.parametrize("name", UNCERTAIN_GIVEN)
def test_a_role_may_keep_something_else_than_it_is_placed_with(tmp_path: Path, name: str) -> None:
    body, loss = f"loss = {CALL}", "loss_fn=ClipLoss(), "
    module = program(tmp_path, UNCERTAIN_GIVEN[name], body, "", OTHERS, loss)
    assert signs.gained(module) > 0
    assert given_codes(module, "ClipLoss()", by_name=True) == ()


def test_a_loss_with_a_negative_number_may_be_meant(tmp_path: Path) -> None:
    body, weighted = "loss = self.loss_fn(ratio, advantages).mean()", "Weighted(weight=-1.0)"
    for loss in (weighted, "Lowered()"):
        module = program(tmp_path, "self.loss_fn = loss_fn", body, "", OTHERS, f"loss_fn={loss}, ")
        assert signs.gained(module) > 0
        assert given_codes(module, loss, by_name=True) == ()


def program(folder: Path, attribute: str, body: str, sign: str, others: str = "", parameter: str = "") -> Any:
    body = body.replace("{sign}", sign)
    body = body if "step(closure)" in body else body + signs.STEP
    text = signs.MODULE.format(body=textwrap.indent(body, " " * 8), options="")
    text = text.replace(
        "class Policy(hf.Worker)", CLASSES.replace("{sign}", sign) + others + "\nclass Policy(hf.Worker)"
    )
    made = "        self.model = torch.nn.Embedding(8, 8)\n"
    if "self.model" in attribute:
        text = text.replace(made, "").replace("self.model.weight", "self.model.table.weight")
        text = text.replace("self.model((experience", "self.model.table((experience")
    text = text.replace(
        "def __init__(self, clip: float = 0.2, kl", f"def __init__(self, {parameter}clip: float = 0.2, kl"
    )
    place = "        torch.nn.init"
    return loaded(folder, text.replace(place, f"        {attribute}\n{place}" if attribute else place, 1))


@pytest.mark.parametrize("name", BODIES)
def test_a_loss_that_is_followed_has_its_sign(tmp_path: Path, name: str) -> None:
    attribute, body = BODIES[name]
    wrong, right = program(tmp_path, attribute, body, ""), program(tmp_path, attribute, body, "-")
    assert signs.gained(wrong) < 0 < signs.gained(right)
    assert signs.codes(wrong) == ("HF358",)
    assert signs.codes(right) == ()


UNCERTAIN = {
    "one of two objects": ("self.loss_fn = ClipLoss() if clip > 5 else Negated()", f"loss = {CALL}"),
    "an object that is exchanged": ("self.loss_fn = ClipLoss()\n        self.loss_fn = Negated()", f"loss = {CALL}"),
    "an object by a name": ("self.loss_fn = ClipLoss()\n        setattr(self, 'loss_fn', Negated())", f"loss = {CALL}"),
    "an object of a helper": ("self.loss_fn = made(clip)", f"loss = {CALL}"),
    "an object with another method": (
        "self.loss_fn = ClipLoss()\n        self.loss_fn.surrogate = Negated().surrogate",
        f"loss = {CALL}",
    ),
    "a decorated method": ("self.loss_fn = Turned()", "loss = self.loss_fn.surrogate(ratio, advantages).mean()"),
    "a class that makes others": ("self.loss_fn = Making()", f"loss = {CALL}"),
    "one of two local functions": (
        "",
        (
            "if self.clip > 5:\n    def gain(x):\n        return x * advantages\nelse:\n    def gain(x):\n"
            "        return -x * advantages\nloss = gain(ratio).mean()"
        ),
    ),
    "a local name of a class": (
        "",
        "ClipLoss = Negated\nloss = ClipLoss()(now, old, advantages, mask)",
    ),
    "a decorated local function": (
        "",
        "@turned\ndef gain(x):\n    return x * advantages\nloss = gain(ratio).mean()",
    ),
    "a local function that another replaces": (
        "",
        "gain = lambda x: x * advantages\ngain = lambda x: -x * advantages\nloss = gain(ratio).mean()",
    ),
    "a name that changes after the function": (
        "",
        "sign = 1.0\ndef gain(x):\n    return sign * x * advantages\nsign = -1.0\nloss = gain(ratio).mean()",
    ),
    "an object with a negative number": (
        "self.loss_fn = Weighted(weight=-1.0)",
        "loss = self.loss_fn(ratio, advantages).mean()",
    ),
    "an object with a negative default": ("self.loss_fn = Lowered()", "loss = self.loss_fn(ratio, advantages).mean()"),
}
OTHERS = """
import functools

def turned(method):
    @functools.wraps(method)
    def negated(*arguments):
        return -method(*arguments)
    return negated

class Negated(ClipLoss):
    def surrogate(self, ratio, gains):
        return -super().surrogate(ratio, gains)

class Turned(ClipLoss):
    @turned
    def surrogate(self, ratio, gains):
        return ratio * gains

class Making(ClipLoss):
    def __new__(cls):
        return Negated()

class Weighted:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, ratio, gains):
        return self.weight * ratio * gains

class Lowered:
    def __init__(self, weight: float = -1.0) -> None:
        self.weight = weight

    def __call__(self, ratio, gains):
        return self.weight * ratio * gains

def made(clip):
    return Negated(clip)
"""


@pytest.mark.parametrize("name", UNCERTAIN)
def test_nothing_is_said_where_it_is_not_certain_what_runs(tmp_path: Path, name: str) -> None:
    attribute, body = UNCERTAIN[name]
    module = program(tmp_path, attribute, body, "", OTHERS)
    assert signs.gained(module) > 0
    assert signs.codes(module) == ()
