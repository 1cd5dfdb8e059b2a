"""Entropies and rates that need not be what they seem: of attention, and of groups of parameters that ascend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

HIDDEN = "hidden = self.model.weight[experience.ids.tensor]\n"
ADDED = f"\nloss = {signs.BONUS} + 0.01 * spread.mean()"
ATTENTION = {
    "a product": "x = hidden @ hidden.transpose(1, 2)\nw = x.softmax(-1)\nspread = -(w * w.log()).sum(-1)",
    "by log_softmax": (
        "x = hidden @ hidden.transpose(1, 2)\nw, log_w = F.softmax(x, -1), F.log_softmax(x, -1)\n"
        "spread = -(w * log_w).sum(-1)"
    ),
    "a distribution": "w = (hidden @ hidden.transpose(1, 2)).softmax(-1)\nspread = Categorical(w).entropy()",
    "a distribution by torch": (
        "w = (hidden @ hidden.transpose(1, 2)).softmax(-1)\nspread = torch.distributions.Categorical(probs=w).entropy()"
    ),
    "a function of logits": "spread = entropy_of(hidden @ hidden.transpose(1, 2))",
    "a lambda of logits": (
        "of = lambda logits: -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)\n"
        "spread = of(hidden @ hidden.transpose(1, 2))"
    ),
    "positions": "w = hidden.mean(-1).softmax(-1)\nspread = -(w * (w + 1e-8).log()).sum(-1)",
}
TOKENS = {
    "picked from": (
        "x = self.model((experience.ids.tensor + 1) % 8)\np = x.log_softmax(-1)\n"
        "now = p.gather(-1, experience.ids.tensor[..., None])[..., 0]\nspread = -(p.exp() * p).sum(-1)"
    ),
    "picked from later": (
        "x = self.model((experience.ids.tensor + 1) % 8)\np = x.log_softmax(-1)\nspread = -(p.exp() * p).sum(-1)\n"
        "now = p.gather(-1, experience.ids.tensor[..., None])[..., 0]"
    ),
    "a distribution that is asked": (
        "policy = Categorical(logits=self.model((experience.ids.tensor + 1) % 8))\n"
        "now, spread = policy.log_prob(experience.ids.tensor), policy.entropy()"
    ),
    "logits of a name": "logits = self.model(experience.ids.tensor)\nspread = Categorical(logits=logits).entropy()",
    "logits of a method": "x = self.logits(experience)\nspread = -(x.softmax(-1) * x.log_softmax(-1)).sum(-1)",
    "a function of logits": "spread = entropy_of(self.logits(experience))",
    "a function of logits of a name": "logits = self.model(experience.ids.tensor)\nspread = entropy_of(logits)",
}
FUNCTION = """
def entropy_of(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)

class Policy(hf.Worker):
"""


def codes(folder: Path, body: str, extra: str = "") -> tuple[str, ...]:
    text = Path(signs.program(folder, body).__file__).read_text("utf-8")
    module = loaded(folder, text.replace("\nclass Policy(hf.Worker):\n", f"{extra}{FUNCTION}", 1))
    assert signs.gained(module) != 0
    return signs.codes(module)


@pytest.mark.parametrize("name", ATTENTION)
def test_an_entropy_of_anything_else_may_be_added(tmp_path: Path, name: str) -> None:
    assert codes(tmp_path, HIDDEN + ATTENTION[name] + ADDED) == ()


@pytest.mark.parametrize("name", TOKENS)
def test_an_entropy_of_tokens_may_not(tmp_path: Path, name: str) -> None:
    assert codes(tmp_path, TOKENS[name] + ADDED) == ("HF946",)
    assert codes(tmp_path, TOKENS[name] + ADDED.replace("+ 0.01", "- 0.01")) == ()


RATES = {
    "a group": "self.optimizer.param_groups[0]['lr'] = -0.01",
    "each group": "for group in self.optimizer.param_groups:\n    group['lr'] = -group['lr']",
    "a factor": "for group in self.optimizer.param_groups:\n    group['lr'] *= -1.0",
    "a name": "rate = -0.01\nself.optimizer.param_groups[0]['lr'] = rate",
    "a constant": "self.optimizer.param_groups[0]['lr'] = ASCENT",
    "an update": "self.optimizer.param_groups[0].update(lr=-0.01)",
    "an attribute": "self.rate = -0.01\nself.optimizer.param_groups[0]['lr'] = self.rate",
    "groups of a table": "self.optimizer.param_groups[0]['lr'] = GROUPS[0]['lr']",
    "groups of an optimizer": (
        "self.optimizer = torch.optim.SGD([{'params': [*self.model.parameters()], 'lr': -0.01}], lr=0.01)"
    ),
    "a schedule": "schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: -1.0)",
}
DESCENTS = {
    "a group": "self.optimizer.param_groups[0]['lr'] = 0.01",
    "a schedule": "for group in self.optimizer.param_groups:\n    group['lr'] = 0.01 * min(1.0, (self.micro + 1) / 10)",
    "a decay": "for group in self.optimizer.param_groups:\n    group['lr'] *= 0.9",
    "a cosine": "schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0, last_epoch=-1)",
}
ASCENT = "\nASCENT, GROUPS = -0.01, [{'lr': -0.01}]\n"
OBJECTIVE = "\nloss = (ratio * advantages).mean()"


@pytest.mark.parametrize("name", RATES)
def test_a_negative_rate_of_a_group_ascends(tmp_path: Path, name: str) -> None:
    assert codes(tmp_path, RATES[name] + OBJECTIVE, ASCENT) == ()


@pytest.mark.parametrize("name", DESCENTS)
def test_other_rates_descend(tmp_path: Path, name: str) -> None:
    assert codes(tmp_path, DESCENTS[name] + OBJECTIVE) == ("HF358",)
