"""Ratios without the log-probs of sampling: reported where a step is no policy gradient, or no clip acts."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

CLIPPED = "\nloss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()"
PLAIN = "\nloss = -(ratio * advantages).mean()"
PROBABILITIES = {
    "a ratio by name": "ratio = now.exp()" + PLAIN,
    "by torch": "ratio = torch.exp(now)" + PLAIN,
    "a minus before": "importance_ratio = torch.exp(now)\nloss = (-importance_ratio * advantages).mean()",
    "by a method": "ratio = now.exp()\nloss = -ratio.mul(advantages).mean()",
    "clipped": "probs = now.exp()\nloss = -torch.min(probs * advantages, probs.clamp(0.8, 1.2) * advantages).mean()",
    "clipped around one": (
        "ratio = now.exp()\nheld = torch.clamp(ratio, 1 - self.clip, 1 + self.clip)\n"
        "loss = -torch.min(ratio * advantages, held * advantages).mean()"
    ),
    "in a function": "loss = clipped_loss(torch.exp(now), advantages).mean()",
    "an objective": "loss = -masked_average(objective(now.exp(), advantages), mask)",
    "of responses": "level = (now * mask).sum(-1) / mask.sum(-1)\nratio = level.exp()[:, None]" + CLIPPED,
    "of chosen tokens": (
        "probs = self.logits(experience).softmax(-1)\n"
        "ratio = probs.gather(-1, experience.ids.tensor[..., None])[..., 0]" + CLIPPED
    ),
    "with a KL": "ratio = now.exp()" + CLIPPED + " + 0.0 * ((ref - now).exp() - (ref - now) - 1).mean()",
}
RIGHT = {
    "to the log-probs of a record": PLAIN,
    "clipped": CLIPPED,
    "to its own, detached": "ratio = (now - now.detach()).exp()" + CLIPPED,
    "to its own, under a name": "old = now.detach()\nratio = torch.exp(now - old)" + CLIPPED,
    "a quotient": "ratio = now.exp() / old.exp()" + PLAIN,
    "a quotient, clipped": "ratio = now.exp() / old.exp()" + CLIPPED,
    "to what the check does not know": "before = torch.stack([old, old]).mean(0)\nratio = (now - before).exp()"
    + CLIPPED,
    "a quotient of chosen tokens": (
        "probs = F.softmax(self.logits(experience), -1)\n"
        "ratio = probs.gather(-1, experience.ids.tensor[..., None])[..., 0] / old.exp()" + CLIPPED
    ),
    "logs of chosen tokens": (
        "probs = F.softmax(self.logits(experience), -1).gather(-1, experience.ids.tensor[..., None])[..., 0]\n"
        "ratio = (probs.log() - old).exp()" + CLIPPED
    ),
    "in steps": "gap = now.clone()\ngap -= old\nratio = gap.exp()" + CLIPPED,
    "in place": "gap = now.clone()\ngap.sub_(old)\nratio = gap.exp()" + CLIPPED,
    "log-probs": "loss = -(now * advantages).mean()",
    "probabilities as weights": "weight = now.exp().detach()\nloss = -(now * advantages * weight / weight).mean()",
}
OTHER = {
    "probabilities by name": "probs = now.exp()\nloss = -(probs * advantages).mean()",
    "probabilities, held above 0": "probs = now.exp().clamp(1e-6, 1.0)\nloss = -(probs * advantages).mean()",
    "a metric": "ratio = now.exp()\nself.shown = (ratio * advantages).mean().item()\nloss = -(now * advantages).mean()",
    "weights by probabilities": "ratio = now.exp().detach()\nloss = -(ratio * now * advantages).mean()",
    "less a number of its own": "ratio = (now + self.entropy_coef).exp()" + PLAIN,
}
LOOP = "for _ in range({count}):\n"
BODY = (
    "    now = self.chosen(experience)\n{old}    ratio = (now - {base}).exp()\n"
    "    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()\n    self.take_step(loss)\n"
)
EPOCHS = {
    "detached in place": LOOP + BODY.format(old="", base="now.detach()"),
    "detached under a name": LOOP + BODY.format(old="    old = now.detach()\n", base="old"),
    "computed again": LOOP
    + BODY.format(old="    with torch.no_grad():\n        old = self.chosen(experience)\n", base="old"),
    "in a constant": LOOP.format(count="EPOCHS") + BODY.format(old="", base="now.detach()"),
    "of the role": LOOP.format(count="self.epochs") + BODY.format(old="", base="now.detach()"),
    "in mini-batches": LOOP
    + "    for start in range(0, 4, 2):\n        part = experience[start : start + 2]\n"
    + textwrap.indent(BODY.format(old="", base="now.detach()"), "    ")
    .replace("chosen(experience)", "chosen(part)")
    .replace("advantages", "advantages[start : start + 2]"),
}
ONCE = {
    "before the loop": "first = self.before(experience)\n" + LOOP + BODY.format(old="", base="first"),
    "before the loop, by the same call": (
        "with torch.no_grad():\n    first = self.chosen(experience)\n" + LOOP + BODY.format(old="", base="first")
    ),
    "of the record": LOOP + BODY.format(old="", base="old"),
    "in the first pass": (
        "first = None\n" + LOOP + BODY.format(old="    if first is None:\n        first = now.detach()\n", base="first")
    ),
    "a response's level": LOOP + BODY.format(old="    level = (now - old).detach()\n", base="now.detach() + level"),
}
UNKNOWN = {
    "once": LOOP.format(count="1") + BODY.format(old="", base="now.detach()"),
    "a number that is not known": LOOP.format(count="self.ids_of(experience)")
    + BODY.format(old="", base="now.detach()"),
    "other rows": "parts = iter(experience[i : i + 1] for i in range(4))\n"
    + LOOP.format(count="4")
    + "    part = next(parts)\n"
    + BODY.format(old="", base="now.detach()").replace("chosen(experience)", "chosen(part)"),
    "rows by number": LOOP.format(count="2").replace("_", "k")
    + "    part = experience[2 * k : 2 * k + 2]\n"
    + BODY.format(old="", base="now.detach()").replace("chosen(experience)", "chosen(part)"),
    "gradients that are added up": LOOP.format(count="4")
    + BODY.format(old="", base="now.detach()").replace("self.take_step(loss)", "loss.backward()")
    + "self.optimizer.step()\n",
}


def program(folder: Path, body: str, epochs: int = 400) -> Any:
    """A program with a module constant and a number of the role that say how often it learns."""
    text = Path(signs.program(folder, body).__file__).read_text("utf-8")
    text = text.replace("CLIP, BETA = 0.2, 0.05", f"CLIP, BETA, EPOCHS = 0.2, 0.05, {epochs}")
    return loaded(
        folder, text.replace("self.clip, self.kl_coef", f"self.epochs = {epochs}\n        self.clip, self.kl_coef")
    )


def is_policy_gradient(module: Any) -> bool:
    """Whether a step on samples of the policy is one along the gradient of log-probs times advantages."""
    policy = module.Policy()
    rows = signs.experience_of(module, policy, 1.0)
    rows = module.Experience(
        ids=rows.ids,
        mask=rows.mask,
        log_probs=policy.before(rows),
        ref_log_probs=rows.ref_log_probs,
        advantages=rows.advantages,
    )
    gain = (policy.chosen(rows) * rows.advantages.tensor[:, None]).mean()
    [gradient] = torch.autograd.grad(gain, [policy.model.weight])
    before = policy.model.weight.detach().clone()
    module.step(rows, policy)
    step = policy.model.weight.detach() - before
    return bool(torch.cosine_similarity(step.flatten(), gradient.flatten(), dim=0) > 0.999)


def most_changed(module: Any) -> float:
    """The greatest ratio of probabilities after many steps on the same rows, whose advantages are all positive."""
    policy = module.Policy()
    rows = signs.experience_of(module, policy, 1.0)
    before = policy.before(rows)
    rows = module.Experience(
        ids=rows.ids, mask=rows.mask, log_probs=before, ref_log_probs=before, advantages=torch.ones(4)
    )
    module.step(rows, policy)
    return float((policy.before(rows) - before).exp().max())


@pytest.mark.parametrize("name", PROBABILITIES)
def test_probabilities_that_are_taken_for_a_ratio_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, PROBABILITIES[name])
    assert not is_policy_gradient(module)
    assert signs.codes(module) == ("HF366",)


@pytest.mark.parametrize("name", RIGHT)
def test_ratios_to_the_policy_that_sampled_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert is_policy_gradient(module)
    assert signs.codes(module) == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_probabilities_that_may_be_meant(tmp_path: Path, name: str) -> None:
    assert signs.codes(program(tmp_path, OTHER[name])) == ()


@pytest.mark.parametrize("name", EPOCHS)
def test_a_ratio_that_is_always_one_is_reported_in_epochs(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, EPOCHS[name].format(count=400) + "return")
    assert most_changed(module) > 1.3
    assert signs.codes(module) == ("HF366",)


@pytest.mark.parametrize("name", ONCE)
def test_a_ratio_to_log_probs_from_before_the_epochs_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, ONCE[name].format(count=400) + "return")
    assert most_changed(module) < 1.3
    assert signs.codes(module) == ()


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_said_of_what_may_be_a_single_step(tmp_path: Path, name: str) -> None:
    assert "HF366" not in signs.codes(program(tmp_path, UNKNOWN[name] + "return"))


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_number_of_epochs_decides(tmp_path: Path, epochs: int) -> None:
    module = program(tmp_path, EPOCHS["of the role"] + "return", epochs)
    assert signs.codes(module) == ("HF366",) * (epochs > 1)
