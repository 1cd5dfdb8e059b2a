"""Log-probs of roles in the place of advantages, known by how bodies make them, whatever their names are."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import torch
import torch.nn.functional as F
import hfdsl as hf

class B(hf.Dim): ...
class R(hf.Dim): ...

class Rollout(hf.Batch):
    ids: hf.i64[B, R]
    response_mask: hf.bool_[B, R]
class Anchored(hf.Batch):
    anchor: hf.f32[B, R]
class Trained(hf.Batch):
    ids: hf.i64[B, R]
    response_mask: hf.bool_[B, R]
    advantages: hf.f32[B, R]

def selected(logits, labels):
    return torch.gather(torch.log_softmax(logits, dim=-1), dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)

def gathered_less_sum(logits, labels):
    return torch.gather(logits, -1, labels[..., None])[..., 0] - torch.logsumexp(logits, -1)

class Frozen(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Embedding(8, 8)
        torch.nn.init.normal_(self.model.weight, generator=torch.Generator().manual_seed(1))

    def likely(self, ids):
        return selected(self.model(ids), ids)

    @hf.register(hf.Dispatch.DP_PROTO)
    def look(self, rollout: Rollout) -> Anchored:
        ids, mask = rollout.ids.tensor, rollout.response_mask.tensor
{body}

class Policy(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, trained: Trained) -> None: ...

@hf.dataflow
def step(rollout: Rollout, frozen: Frozen, policy: Policy) -> None:
    anchored = frozen.look(rollout)
    policy.update(Trained(ids=rollout.ids, response_mask=rollout.response_mask, advantages=anchored.anchor))
"""
LIKELY = {
    "a helper": "return Anchored(anchor=selected(self.model(ids), ids))",
    "a method": "with torch.no_grad():\n    out = self.likely(ids)\nreturn Anchored(anchor=out)",
    "a function of torch": "nll = F.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten(), reduction='none')\n"
    "return Anchored(anchor=-nll.view_as(ids))",
    "logits less their sum": "logits = self.model(ids) / 1.0\n"
    "return Anchored(anchor=gathered_less_sum(logits, ids).detach())",
    "masked": "return Anchored(anchor=(self.likely(ids) * mask).float().cpu())",
    "a distribution": "return Anchored(anchor=torch.distributions.Categorical(logits=self.model(ids)).log_prob(ids))",
}
OTHERS = {
    "surprise": "return Anchored(anchor=-self.likely(ids))",
    "a difference": "return Anchored(anchor=0.1 * (self.likely(ids) - selected(self.model(ids) / 2, ids)))",
    "probabilities": "return Anchored(anchor=self.likely(ids).exp())",
    "an entropy": "every = self.model(ids).log_softmax(-1)\nreturn Anchored(anchor=-(every.exp() * every).sum(-1))",
    "another number": "return Anchored(anchor=self.model(ids).mean(-1))",
    "rewards": "rewards = -0.1 * self.likely(ids)\nrewards[:, -1] += 1.0\nreturn Anchored(anchor=rewards)",
}


def program(folder: Path, body: str) -> Any:
    return loaded(folder, MODULE.format(body=textwrap.indent(body, " " * 8)))


def are_log_probs(module: Any) -> bool:
    """Whether a role gives the log-probs of tokens, where these are no padding."""
    ids, mask = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[True, True, True], [True, True, False]])
    frozen = module.Frozen()
    given = frozen.look(module.Rollout(ids=ids, response_mask=mask)).anchor.tensor
    expected = frozen.model(ids).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return torch.allclose(given[mask], expected[mask], atol=1e-6)


@pytest.mark.parametrize("name", LIKELY)
def test_log_probs_for_advantages_are_known_by_the_body_that_makes_them(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, LIKELY[name])
    assert are_log_probs(module)
    [finding] = module.step.check(dims={module.B: 4, module.R: 4}).findings
    assert finding.code == "HF347"
    assert finding.message.startswith("'Trained' takes the log-probs of 'frozen.look' for its 'advantages'")


@pytest.mark.parametrize("name", OTHERS)
def test_other_numbers_of_a_role_may_be_advantages(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, OTHERS[name])
    assert not are_log_probs(module)
    assert module.step.check(dims={module.B: 4, module.R: 4}).codes == ()
