"""Bases of ratios: reported where an update is by a ratio to a reference, or to itself, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.check.repair.edits import apply
from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

LOSS = "\nloss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()"
PLAIN = "\nloss = -(ratio * advantages).mean()"
REFERENCE = {
    "of a record": "ratio = (now - ref).exp()" + LOSS,
    "by torch": "ratio = torch.exp(now - experience.ref_log_probs.tensor)" + LOSS,
    "in a function": "loss = clipped_loss((now - ref).exp(), advantages).mean()",
    "masked": "ratio = (now - ref).exp()\nloss = masked_mean(clipped_loss(ratio, advantages), mask)",
    "of a sequence": (
        "ratio = (((now - ref) * mask).sum(-1) / mask.sum(-1)).exp()[:, None]\nloss = "
        "-torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()"
    ),
    "with a KL": "kl = (ref - now).exp() - (ref - now) - 1\nratio = (now - ref).exp()"
    + LOSS
    + " + self.kl_coef * kl.mean()",
}
SAME = {
    "computed twice": "old = self.chosen(experience)\nratio = (now - old).exp()" + PLAIN,
    "clipped": "old = self.chosen(experience)\nratio = torch.exp(now - old)" + LOSS,
    "with its entropy": (
        "now, entropy = self.chosen_and_entropy(experience)\nold, _ = self.chosen_and_entropy(experience)\n"
        "ratio = (now - old).exp()\nloss = -(ratio * advantages).mean() - 0.0 * entropy.mean()"
    ),
    "one name": "old = now\nratio = (now - old).exp()" + PLAIN,
    "cut alike": "old, now = self.chosen(experience)[:, 1:], self.chosen(experience)[:, 1:]\nratio = (now - old).exp()"
    + PLAIN,
    "in full": (
        "now = F.log_softmax(self.logits(experience), -1).gather(-1, experience.ids.tensor[..., None])[..., 0]\n"
        "old = F.log_softmax(self.logits(experience), -1).gather(-1, experience.ids.tensor[..., None])[..., 0]\n"
        "ratio = (now - old).exp()" + PLAIN
    ),
    "in epochs": (
        "old = self.chosen(experience)\nfor _ in range(1):\n    now = self.chosen(experience)\n"
        "    ratio = (now - old).exp()\n    loss = -(ratio * advantages).mean()\n"
        "    self.optimizer.zero_grad()\n    loss.backward()\n    self.optimizer.step()\nreturn"
    ),
}
RIGHT = {
    "old ones of a record": PLAIN,
    "detached": "old = self.chosen(experience).detach()\nratio = (now - old).exp()" + LOSS,
    "its own, detached": "ratio = (now - now.detach()).exp()" + LOSS,
    "without a gradient": "with torch.no_grad():\n    old = self.chosen(experience)\nratio = (now - old).exp()" + LOSS,
    "of a method without a gradient": "old = self.before(experience)\nratio = (now - old).exp()" + LOSS,
    "of a decorated method": "old = self.frozen(experience)\nratio = (now - old).exp()" + LOSS,
    "old ones if there are any": (
        "old = old if self.micro else self.chosen(experience).detach()\nratio = (now - old).exp()" + LOSS
    ),
    "data alone": "old = self.chosen(experience).data\nratio = (now - old).exp()" + PLAIN,
    "a weight of the record": "weight = (now.detach() - old).exp()\nloss = -(weight * now * advantages).mean()",
    "a decoupled ratio": (
        "proximal = self.before(experience)\nweight = (proximal - old).exp().clamp(max=2.0)\n"
        "ratio = (now - proximal).exp()\nloss = -(weight * ratio * advantages).mean()"
    ),
    "a KL to the reference": (
        "gap = ref - now\nloss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean() "
        "+ 0.0 * (gap.exp() - gap - 1).mean()"
    ),
    "a sequence's ratio with gradients of tokens": (
        "level = ((now - old) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)\n"
        "ratio = (now - now.detach() + level.detach()).exp()" + LOSS
    ),
}
OTHER = {
    "a reference as the proximal policy": (
        "weight = (ref - old).exp()\nratio = (now - ref).exp()\n"
        "loss = -(weight * torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)).mean()"
    ),
    "a reference as the proximal policy, weighted in no block": (
        "with torch.no_grad():\n    weight = torch.exp(ref - old)\nratio = (now - ref).exp()\n"
        "loss = -(torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * weight).mean()"
    ),
    "a ratio to both": (
        "near = (now - ref).exp()\nheld = torch.min(near * advantages, near.clamp(0.8, 1.2) * advantages)\n"
        "loss = -(ratio * advantages).mean() - 0.1 * held.mean()"
    ),
    "an unclipped ratio to the reference": "ratio = (now - ref).exp()" + PLAIN,
    "a metric": (
        "near = (now - ref).exp()\nheld = torch.min(near * advantages, near.clamp(0.8, 1.2) * advantages)\n"
        "self.held = held.mean().item()\nloss = -(ratio * advantages).mean()"
    ),
    "two passes that are to agree": (
        "again = self.chosen(experience)\nloss = -(ratio * advantages).mean() + 0.1 * ((now - again) ** 2).mean()"
    ),
    "an adapter that is disabled": (
        "with self.model.disable_adapter():\n    first = self.chosen(experience)\nnow = self.chosen(experience)\n"
        "ratio = (now - first).exp()" + PLAIN
    ),
    "an adapter that is set": (
        "self.model.set_adapter('first')\nfirst = self.chosen(experience)\nself.model.set_adapter('second')\n"
        "now = self.chosen(experience)\nratio = (now - first).exp()" + PLAIN
    ),
    "a model that is exchanged": (
        "first = self.chosen(experience)\nself.model = self.other\nnow = self.chosen(experience)\n"
        "ratio = (now - first).exp()" + PLAIN
    ),
    "gradients that are switched": (
        "torch.set_grad_enabled(False)\nold = self.chosen(experience)\ntorch.set_grad_enabled(True)\n"
        "now = self.chosen(experience)\nratio = (now - old).exp()" + PLAIN
    ),
    "another argument": (
        "old = self.chosen(experience[2:])\nnow = self.chosen(experience[:2])\nratio = (now - old).exp()" + PLAIN
    ),
    "a name that is set again": (
        "part = experience[:2]\nold = self.chosen(part)\npart = experience[2:]\nnow = self.chosen(part)\n"
        "ratio = (now - old).exp()" + PLAIN
    ),
    "a method that cannot be read": (
        "now, old = self.other.log_probs(experience), self.other.log_probs(experience)\nratio = (now - old).exp()"
        + PLAIN
    ),
    "neighbors": "now = self.chosen(experience)\nratio = (now[:, 1:] - now[:, :-1]).exp()" + PLAIN,
    "pairs": ("margin = (now[0::2] - now[1::2]).exp()\nloss = -(margin * advantages[0::2]).mean()"),
}
FROZEN = """
    @torch.no_grad
    def frozen(self, experience: Experience) -> torch.Tensor:
        return self.chosen(experience)

    def logits("""


def program(folder: Path, body: str) -> Any:
    file = Path(signs.program(folder, body).__file__)
    return loaded(folder, file.read_text("utf-8").replace("\n    def logits(", FROZEN, 1))


def learns(module: Any) -> bool:
    """Whether an update changes the policy, on samples of its own and with what it is not to keep close to."""
    policy = module.Policy()
    rows = signs.experience_of(module, policy, 1.0)
    before = policy.model.weight.detach().clone()
    module.step(rows, policy)
    return not torch.equal(policy.model.weight, before)


def holds(module: Any) -> bool:
    """Whether an update leaves tokens alone that are far likelier than those of the reference, not of the sampler."""
    policy = module.Policy()
    rows = signs.experience_of(module, policy, 1.0)
    now = policy.before(rows)
    rows = module.Experience(
        ids=rows.ids, mask=rows.mask, log_probs=now, ref_log_probs=now - 2, advantages=torch.ones(4)
    )
    before = policy.model.weight.detach().clone()
    module.step(rows, policy)
    return torch.equal(policy.model.weight, before)


@pytest.mark.parametrize("name", REFERENCE)
def test_a_clipped_ratio_to_a_reference_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, REFERENCE[name])
    assert name == "with a KL" or holds(module)
    assert signs.codes(module) == ("HF366",)


@pytest.mark.parametrize("name", SAME)
def test_a_ratio_to_itself_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, SAME[name])
    assert not learns(module)
    assert signs.codes(module) == ("HF366",)


@pytest.mark.parametrize("name", RIGHT)
def test_a_ratio_to_the_samplers_log_probs_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert learns(module)
    assert signs.codes(module) == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_what_may_be_meant(tmp_path: Path, name: str) -> None:
    assert signs.codes(program(tmp_path, OTHER[name])) == ()


@pytest.mark.parametrize("name", SAME)
def test_old_log_probs_are_detached(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, SAME[name])
    [finding] = module.step.check(dims={module.B: 4}).findings
    [fix] = finding.fixes
    mended = loaded(tmp_path, apply(Path(module.__file__).read_text("utf-8"), fix.edits))
    assert learns(mended)
    assert signs.codes(mended) == ()


GRAPH = """
import torch
import hfdsl as hf
from hfdsl import Dispatch, Execute, register

class B(hf.Dim): ...
class T(hf.Dim): ...

class Prompts(hf.Batch):
    number: hf.i64[B]

class Tokens(hf.Batch):
    ids: hf.i64[B, T]
    mask: hf.bool_[B, T]
    advantages: hf.f32[B]

class Reference(hf.Batch):
    {column}: hf.f32[B, T]

class Policy(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def sample(self, prompts: Prompts) -> Tokens: ...

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def weights(self) -> dict[str, float]: ...

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, tokens: Tokens, other: Reference) -> None:
        ids, mask, gain = tokens.ids.tensor, tokens.mask.tensor, tokens.advantages.tensor[:, None]
        now = self.model((ids + 1) % 8).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        ratio = (now - other.{column}.tensor).exp()
        loss = -(torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain) * mask).sum() / mask.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

class Frozen(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, tokens: Tokens) -> Reference: ...

    @register(Dispatch.ONE_TO_ALL)
    def follow(self, weights: dict[str, float]) -> None: ...

@hf.dataflow
def step(prompts: Prompts, data: Tokens, policy: Policy, rival: Policy, frozen: Frozen) -> None:
{body}
"""

FOLLOWED = """tokens, _ = policy.sample(prompts), frozen.follow(policy.weights())
policy.update(tokens, frozen.score(tokens))"""


@pytest.mark.parametrize(
    ("body", "column", "reported"),
    [
        ("tokens = policy.sample(prompts)\npolicy.update(tokens, frozen.score(tokens))", "ref_log_probs", True),
        ("tokens = policy.sample(prompts)\npolicy.update(tokens, frozen.score(tokens))", "initial_log_probs", False),
        ("policy.update(data, frozen.score(data))", "ref_log_probs", False),
        ("tokens = rival.sample(prompts)\npolicy.update(tokens, frozen.score(tokens))", "ref_log_probs", False),
        (
            FOLLOWED,
            "ref_log_probs",
            False,
        ),
    ],
)
def test_tokens_of_the_role_itself_are_none_of_a_reference(
    tmp_path: Path, body: str, column: str, reported: bool
) -> None:
    module = loaded(tmp_path, GRAPH.format(column=column, body=textwrap.indent(body, "    ")))
    report = module.step.check(dims={module.B: 4, module.T: 4})
    assert ("HF366" in report.codes) is reported, str(report)
