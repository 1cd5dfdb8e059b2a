"""A program whose role learns from preference pairs, for the tests of their losses."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
import functools
import torch
import torch.nn as nn
import torch.nn.functional as F
import hfdsl as hf
from torch.distributions import Categorical
from hfdsl.rl.masked import masked_mean, masked_sum

BETA, GAMMA = 0.5, 0.1

class B(hf.Dim): ...
class T(hf.Dim): ...

class Pairs(hf.Batch):
    chosen_ids: hf.i64[B, T]
    rejected_ids: hf.i64[B, T]
    chosen_mask: hf.bool_[B, T]
    rejected_mask: hf.bool_[B, T]
    ref_chosen_logps: hf.f32[B]
    ref_rejected_logps: hf.f32[B]
    margin: hf.f32[B]

def logps_of(logits, labels, mask, average=False):
    tokens = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    if average:
        return (tokens * mask).sum(-1) / mask.sum(-1)
    return (tokens * mask).sum(-1)

class DPOLoss(nn.Module):
    def __init__(self, beta: float = 0.1, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.beta, self.label_smoothing = beta, label_smoothing

    def forward(self, policy_chosen, policy_rejected, reference_chosen, reference_rejected):
        pi_logratios = policy_chosen - policy_rejected
        ref_logratios = reference_chosen - reference_rejected
        logits = pi_logratios - ref_logratios
        losses = (
            -F.logsigmoid(self.beta * logits) * (1 - self.label_smoothing)
            - F.logsigmoid(-self.beta * logits) * self.label_smoothing
        )
        chosen_rewards = self.beta * (policy_chosen - reference_chosen).detach()
        rejected_rewards = self.beta * (policy_rejected - reference_rejected).detach()
        return losses, chosen_rewards, rejected_rewards

class PairWiseLoss(nn.Module):
    def forward(self, chosen_reward, reject_reward, margin=None):
        if margin is not None:
            loss = -F.logsigmoid(chosen_reward - reject_reward - margin)
        else:
            loss = -F.logsigmoid(chosen_reward - reject_reward)
        return loss.mean()

class {role}(hf.Worker):
    def __init__(self, beta: float = 0.5, label_smoothing: float = 0.1) -> None:
        self.beta, self.label_smoothing, self.loss_type = beta, label_smoothing, "sigmoid"
        self.gradient_accumulation_steps = 2
        torch.manual_seed(1)
        self.model = torch.nn.Embedding(8, 8)
        self.head = torch.nn.Linear(8, 1, bias=False)
        self.dpo = DPOLoss(beta=0.5)
        self.smoothed = DPOLoss(beta=0.5, label_smoothing=0.1)
        self.pairwise = PairWiseLoss()
        parameters = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.01{options})

    def log_probs(self, ids: torch.Tensor, mask: torch.Tensor, average: bool = False) -> torch.Tensor:
        return logps_of(self.model(ids[:, :-1]), ids[:, 1:], mask[:, 1:], average=average)

    def rewards(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.model(ids))[:, -1].squeeze(-1)

    @torch.no_grad()
    def margins(self, pairs: Pairs) -> tuple[float, float]:
        columns = ((pairs.chosen_ids, pairs.chosen_mask), (pairs.rejected_ids, pairs.rejected_mask))
        chosen, rejected = (self.log_probs(ids.tensor, mask.tensor).mean().item() for ids, mask in columns)
        scores = (self.rewards(ids.tensor).mean().item() for ids, _ in columns)
        first, second = scores
        return chosen - rejected, first - second

    def take_step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, pairs: Pairs) -> None:
        chosen_ids, rejected_ids = pairs.chosen_ids.tensor, pairs.rejected_ids.tensor
        chosen_mask, rejected_mask = pairs.chosen_mask.tensor, pairs.rejected_mask.tensor
        ref_chosen, ref_rejected = pairs.ref_chosen_logps.tensor, pairs.ref_rejected_logps.tensor
{body}

@hf.dataflow
def step(pairs: Pairs, policy: {role}) -> None:
    policy.update(pairs)
"""
STEP = "\nself.take_step(loss)"


def program(folder: Path, body: str, role: str = "Policy", options: str = "") -> Any:
    """A program whose update has a body that ends with a step on ``loss``."""
    text = textwrap.indent(body + STEP, " " * 8)
    return loaded(folder, MODULE.format(body=text, role=role, options=options))


def codes(module: Any) -> tuple[str, ...]:
    """The codes that the check of a program reports."""
    report: Any = module.step.check(dims={module.B: 4})
    return tuple(report.codes)


def gained(module: Any, role: str = "Policy", preferred: float = 0.0) -> float:
    """By how much an update raises the margin of the preferred responses: of scores for a reward model.

    The margin of the reference is that of the policy, and ``preferred`` more.
    """
    policy = getattr(module, role)()
    generator = torch.Generator().manual_seed(2)
    mask = torch.ones(4, 6, dtype=torch.bool)
    pairs = module.Pairs(
        chosen_ids=torch.randint(0, 8, (4, 6), generator=generator),
        rejected_ids=torch.randint(0, 8, (4, 6), generator=generator),
        chosen_mask=mask,
        rejected_mask=mask,
        ref_chosen_logps=torch.zeros(4),
        ref_rejected_logps=torch.zeros(4),
        margin=torch.full((4,), 0.1),
    )
    with torch.no_grad():
        chosen, rejected = (policy.log_probs(ids.tensor, mask) for ids in (pairs.chosen_ids, pairs.rejected_ids))
    pairs = module.Pairs(
        chosen_ids=pairs.chosen_ids,
        rejected_ids=pairs.rejected_ids,
        chosen_mask=mask,
        rejected_mask=mask,
        ref_chosen_logps=chosen + preferred / 2,
        ref_rejected_logps=rejected - preferred / 2,
        margin=pairs.margin,
    )
    at = int(role == "RewardModel")
    before = policy.margins(pairs)[at]
    module.step(pairs, policy)
    return float(policy.margins(pairs)[at] - before)
