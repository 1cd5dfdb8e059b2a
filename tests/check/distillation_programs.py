"""A program whose role learns from a teacher, for the tests of its losses."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import torch

from tests.check.loading import loaded

MODULE = """
from __future__ import annotations
from types import SimpleNamespace
import torch
import torch.nn as nn
import torch.nn.functional as F
import hfdsl as hf
from torch.distributions import Categorical, kl_divergence
from hfdsl.rl.masked import masked_mean

TAU = 2.0

class B(hf.Dim): ...
class T(hf.Dim): ...
class V(hf.Dim): ...

class Tokens(hf.Batch):
    ids: hf.i64[B, T]
    labels: hf.i64[B, T]
    mask: hf.bool_[B, T]
    log_probs: hf.f32[B, T]

class Grades(hf.Batch):
    teacher_logits: hf.f32[B, T, V]
    teacher_log_probs: hf.f32[B, T]

class Graded(Tokens, Grades): ...

class Prompts(hf.Batch):
    number: hf.i64[B]

def forward_kl(student, teacher, temperature=1.0):
    teacher = F.softmax(teacher / temperature, dim=-1)
    student = F.log_softmax(student / temperature, dim=-1)
    return (teacher * (teacher.log() - student)).sum(-1) * temperature**2

def reverse_kl(student, teacher):
    student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    return (student.exp() * (student - teacher)).sum(-1)

class DistillationLoss(nn.Module):
    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.temperature, self.kl = temperature, nn.KLDivLoss(reduction="batchmean")

    def forward(self, student, teacher):
        student = F.log_softmax(student / self.temperature, dim=-1)
        return self.kl(student, F.softmax(teacher / self.temperature, dim=-1)) * self.temperature**2

class {role}(hf.Worker):
    def __init__(self, alpha: float = 0.5, temperature: float = 2.0) -> None:
        self.alpha, self.temperature = alpha, temperature
        torch.manual_seed(1)
        self.model, self.teacher_model = make_model(), make_model()
        self.distill = DistillationLoss()
        self.kl_loss = nn.KLDivLoss(reduction="batchmean")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(ids).logits

    def chosen(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.logits(ids).log_softmax(-1).gather(-1, labels[..., None])[..., 0]

    def take_step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, batch: Graded) -> None:
        ids, labels, mask = batch.ids.tensor, batch.labels.tensor, batch.mask.tensor
        student, teacher = self.logits(ids), batch.teacher_logits.tensor
        now, old, by_teacher = self.chosen(ids, labels), batch.log_probs.tensor, batch.teacher_log_probs.tensor
{body}

@hf.dataflow
def step(batch: Graded, student: {role}) -> None:
    student.update(batch)

class Sampler({role}):
    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Tokens: ...

class Grader(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def grade(self, tokens: Tokens) -> Grades: ...

@hf.dataflow
def on_policy(prompts: Prompts, student: Sampler, grader: Grader) -> None:
    tokens = student.generate(prompts)
    student.update(hf.merge(Graded, tokens, grader.grade(tokens)))
"""
MODEL = """
class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 8)

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table(ids))

def make_model() -> torch.nn.Module:
    return Model()
"""
STEP = "\nself.take_step(loss)"


def program(folder: Path, body: str, role: str = "Student") -> Any:
    """A program whose update has a body that ends with a step on ``loss``."""
    text = MODULE.format(body=textwrap.indent(body + STEP, " " * 8), role=role)
    return loaded(folder, text + MODEL)


def codes(module: Any, flow: str = "step") -> tuple[str, ...]:
    """The codes that the check of a program reports."""
    report: Any = getattr(module, flow).check(dims={module.B: 8, module.T: 64, module.V: 8})
    return tuple(report.codes)


def approached(module: Any, role: str = "Student", *, is_forward: bool = True) -> float:
    """By how much an update lowers the KL between teacher and student, of which each has one for all its tokens.

    The tokens are samples of the student.
    """
    student = getattr(module, role)()
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, 8, (8, 64), generator=generator)
    with torch.no_grad():
        own, other = student.model(ids).logits, student.teacher_model(ids).logits
        labels = torch.multinomial(own.flatten(0, 1).softmax(-1), 1, generator=generator).view(8, 64)
        mine, theirs = (x.log_softmax(-1).gather(-1, labels[..., None])[..., 0] for x in (own, other))
    batch = module.Graded(
        ids=ids,
        labels=labels,
        mask=torch.ones(8, 64, dtype=torch.bool),
        log_probs=mine,
        teacher_logits=other,
        teacher_log_probs=theirs,
    )

    def distance() -> float:
        s, t = student.model(ids).logits.log_softmax(-1), other.log_softmax(-1)
        s, t = (t, s) if is_forward else (s, t)
        return float((s.exp() * (s - t)).sum(-1).mean())

    before = distance()
    student.update(batch)
    return before - distance()
