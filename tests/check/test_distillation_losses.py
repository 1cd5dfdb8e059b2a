"""Distillation losses of the user's: reported where a step leads a student away from its teacher, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.check.repair.edits import apply
from tests.check.distillation_programs import approached, codes, program
from tests.check.loading import loaded

LOG_PROBS = "s, t = student.log_softmax(-1), teacher.log_softmax(-1)\n"
SOFT = "s, p = F.log_softmax(student / TAU, -1), F.softmax(teacher / TAU, -1)\n"
CHANCES = "p, q = teacher.softmax(-1), student.softmax(-1)\n"
TOP = "top = teacher.topk(4, -1)\nt = top.values.log_softmax(-1)\ns = student.gather(-1, top.indices).log_softmax(-1)\n"
RIGHT = {
    "a KL of torch": SOFT + "loss = F.kl_div(s, p, reduction='batchmean') * TAU**2",
    "a KL of torch, of log-probs": LOG_PROBS + "loss = F.kl_div(s, t, reduction='batchmean', log_target=True)",
    "the other KL of torch": LOG_PROBS + "loss = F.kl_div(t, s, reduction='batchmean', log_target=True)",
    "a KL by hand": LOG_PROBS + "loss = (t.exp() * (t - s)).sum(-1).mean()",
    "the other KL by hand": LOG_PROBS + "loss = (s.exp() * (s - t)).sum(-1).mean()",
    "a KL with two minuses": LOG_PROBS + "loss = -(t.exp() * (s - t)).sum(-1).mean()",
    "a KL in two terms": LOG_PROBS + "loss = (t.exp() * t).sum(-1).mean() - (t.exp() * s).sum(-1).mean()",
    "a cross entropy": SOFT + "loss = -(p * s).sum(-1).mean()",
    "a cross entropy, masked": SOFT + "loss = -((p * s).sum(-1) * mask).sum() / mask.sum()",
    "a cross entropy of torch": "loss = F.cross_entropy(student.flatten(0, 1), teacher.softmax(-1).flatten(0, 1))",
    "a function": "loss = masked_mean(forward_kl(student, teacher, self.temperature), mask)",
    "another function": "loss = reverse_kl(student, teacher).mean()",
    "an object": "loss = self.distill(student.flatten(0, 1), teacher.flatten(0, 1))",
    "an object of torch": SOFT + "loss = self.kl_loss(s, p)",
    "an error of logits": "loss = F.mse_loss(student, teacher)",
    "a square": "loss = ((teacher - student) ** 2).mean()",
    "beside labels": LOG_PROBS
    + "ce = F.cross_entropy(student.flatten(0, 1), labels.flatten())\n"
    + "loss = 0.01 * ce + (1 - self.alpha) * F.kl_div(s, t, reduction='batchmean', log_target=True)",
    "both KLs": LOG_PROBS
    + "loss = self.alpha * (t.exp() * (t - s)).sum(-1).mean() + (s.exp() * (s - t)).sum(-1).mean()",
    "a teacher in the role": (
        "with torch.no_grad():\n    theirs = self.teacher_model(ids).logits\n"
        "loss = F.kl_div(student.log_softmax(-1), theirs.softmax(-1), reduction='batchmean')"
    ),
    "a distribution": "loss = kl_divergence(Categorical(logits=student), Categorical(logits=teacher)).mean()",
    "a policy gradient": "loss = -((by_teacher - now).detach() * now).mean()",
    "a policy gradient, turned twice": (
        "cost = (now - by_teacher).detach()\nloss = (cost * now * mask).sum() / mask.sum()"
    ),
    "a ratio": "ratio = (now - old).exp()\nloss = -(ratio * (by_teacher - old)).mean()",
    "an estimate of a KL": "gap = by_teacher - now\nloss = (gap.exp() - gap - 1).mean()",
    "a square of sampled log-probs": "loss = 0.5 * (now - by_teacher).pow(2).mean()",
    "of the likeliest tokens": TOP + "loss = (t.exp() * (t - s)).sum(-1).mean()",
    "a clipped ratio": (
        "gain, ratio = by_teacher - old, (now - old).exp()\n"
        "loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()"
    ),
    "a cosine": "loss = 1 - F.cosine_similarity(student, teacher, dim=-1).mean()",
    "a quotient of probabilities": CHANCES + "loss = (p * torch.log(p / q)).sum(-1).mean()",
    "logs of probabilities": CHANCES + "loss = -(p * torch.log(q + 1e-8)).sum(-1).mean()",
    "a mixture by hand": CHANCES
    + "m = 0.5 * (p + q)\n"
    + "loss = (p * (p.log() - m.log())).sum(-1).mean() + (q * (q.log() - m.log())).sum(-1).mean()",
    "both parts of a gradient": "gap = now - by_teacher\nloss = (gap.detach() * now + gap).mean()",
    "normalized weights": (
        "gain = (by_teacher - now).detach()\ngain = (gain - gain.mean()) / (gain.std() + 1e-6)\n"
        "loss = -(gain * now).mean()"
    ),
    "in mini-batches": (
        "for rows in torch.randperm(len(ids)).split(4):\n"
        "    s, t = self.logits(ids[rows]).log_softmax(-1), teacher[rows].log_softmax(-1)\n"
        "    loss = (t.exp() * (t - s)).sum(-1).mean()\n    self.take_step(loss)\nreturn"
    ),
}
WRONG = {
    "a KL of torch": SOFT + "loss = -F.kl_div(s, p, reduction='batchmean') * TAU**2",
    "a KL of torch, of log-probs": LOG_PROBS + "loss = -F.kl_div(s, t, reduction='batchmean', log_target=True)",
    "the other KL of torch": LOG_PROBS + "kl = F.kl_div(t, s, reduction='batchmean', log_target=True)\nloss = -kl",
    "a KL by hand": LOG_PROBS + "loss = (t.exp() * (s - t)).sum(-1).mean()",
    "the other KL by hand": LOG_PROBS + "loss = (s.exp() * (t - s)).sum(-1).mean()",
    "a KL with a minus": LOG_PROBS + "loss = -(t.exp() * (t - s)).sum(-1).mean()",
    "a KL in two terms": LOG_PROBS + "loss = (t.exp() * s).sum(-1).mean() - (t.exp() * t).sum(-1).mean()",
    "a cross entropy": SOFT + "loss = (p * s).sum(-1).mean()",
    "a cross entropy, masked": SOFT + "loss = ((p * s).sum(-1) * mask).sum() / mask.sum()",
    "a cross entropy of torch": "loss = -F.cross_entropy(student.flatten(0, 1), teacher.softmax(-1).flatten(0, 1))",
    "a function": "loss = -masked_mean(forward_kl(student, teacher, self.temperature), mask)",
    "another function": "loss = -reverse_kl(student, teacher).mean()",
    "an object": "loss = -self.distill(student.flatten(0, 1), teacher.flatten(0, 1))",
    "an object of torch": SOFT + "loss = -self.kl_loss(s, p)",
    "an error of logits": "loss = -F.mse_loss(student, teacher)",
    "a square": "loss = -((teacher - student) ** 2).mean()",
    "beside labels": LOG_PROBS
    + "ce = F.cross_entropy(student.flatten(0, 1), labels.flatten())\n"
    + "loss = 0.01 * ce - (1 - self.alpha) * F.kl_div(s, t, reduction='batchmean', log_target=True)",
    "a teacher in the role": (
        "with torch.no_grad():\n    theirs = self.teacher_model(ids).logits\n"
        "loss = -F.kl_div(student.log_softmax(-1), theirs.softmax(-1), reduction='batchmean')"
    ),
    "a distribution": "loss = -kl_divergence(Categorical(logits=student), Categorical(logits=teacher)).mean()",
    "a policy gradient": "loss = ((by_teacher - now).detach() * now).mean()",
    "a policy gradient with a cost": (
        "cost = (now - by_teacher).detach()\nloss = -(cost * now * mask).sum() / mask.sum()"
    ),
    "a ratio": "ratio = (now - old).exp()\nloss = -(ratio * (old - by_teacher)).mean()",
    "an estimate of a KL": "gap = by_teacher - now\nloss = -(gap.exp() - gap - 1).mean()",
    "a square of sampled log-probs": "loss = -0.5 * (now - by_teacher).pow(2).mean()",
    "of the likeliest tokens": TOP + "loss = (t.exp() * (s - t)).sum(-1).mean()",
    "a clipped ratio": (
        "gain, ratio = old - by_teacher, (now - old).exp()\n"
        "loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()"
    ),
    "a cosine": "loss = 1 + F.cosine_similarity(student, teacher, dim=-1).mean()",
    "a quotient of probabilities": CHANCES + "loss = (p * torch.log(q / p)).sum(-1).mean()",
    "logs of probabilities": CHANCES + "loss = (p * torch.log(q + 1e-8)).sum(-1).mean()",
    "in mini-batches": (
        "for rows in torch.randperm(len(ids)).split(4):\n"
        "    s, t = self.logits(ids[rows]).log_softmax(-1), teacher[rows].log_softmax(-1)\n"
        "    loss = (t.exp() * (s - t)).sum(-1).mean()\n    self.take_step(loss)\nreturn"
    ),
}
OTHER = {
    "both directions": LOG_PROBS + "loss = F.kl_div(s, t, log_target=True) - 0.1 * F.kl_div(t, s, log_target=True)",
    "a metric": LOG_PROBS + "self.shown = -(t.exp() * (t - s)).sum(-1).mean().item()\nloss = -s.mean()",
    "a KL of a student without a gradient": "s, t = student.detach().log_softmax(-1), teacher.log_softmax(-1)\n"
    "loss = (t.exp() * (s - t)).sum(-1).mean() - now.mean()",
    "an entropy of the student": LOG_PROBS + "loss = (s.exp() * s).sum(-1).mean()",
    "tokens of the teacher": "loss = (by_teacher - now).mean()",
    "a number that may be negative": LOG_PROBS + "loss = self.weigh(t, s) * F.kl_div(s, t, log_target=True)",
    "by a gap of log-probs that has no gradient": "weight = (by_teacher - old).exp()\nloss = -(weight * now).mean()",
    "an optimizer of the teacher": LOG_PROBS + "loss = -F.kl_div(s, t, log_target=True)\nself.teacher_optimizer.step()",
    "a teacher that is forced": "teacher_forced = self.logits(ids)\n"
    + LOG_PROBS
    + "loss = -F.kl_div(s, t, log_target=True)",
    "another model's amateur": "amateur = batch.teacher_logits.tensor\n"
    + LOG_PROBS
    + "loss = -F.kl_div(s, t, log_target=True)",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_leads_away_from_a_teacher_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG[name])
    assert approached(module) < 0 or approached(module, is_forward=False) < 0
    assert codes(module) == ("HF353",)


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_that_leads_to_a_teacher_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert approached(module) > 0
    assert approached(module, is_forward=False) > 0
    assert codes(module) == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_what_may_be_meant(tmp_path: Path, name: str) -> None:
    assert "HF353" not in codes(program(tmp_path, OTHER[name]))


def test_log_probs_less_a_teachers_make_tokens_of_others_rarer(tmp_path: Path) -> None:
    """On samples of the student, this is 0 on average, as an estimate of a KL may be."""
    module = program(tmp_path, "loss = (now - by_teacher).mean()")
    assert approached(module) < 0
    assert codes(module) == ("HF353",)
    assert codes(module, "on_policy") == ()


@pytest.mark.parametrize("role", ["TeacherOfItself", "AdversarialStudent"])
def test_a_role_that_may_grow_apart_on_purpose_is_not_reported(tmp_path: Path, role: str) -> None:
    assert codes(program(tmp_path, WRONG["a KL by hand"], role)) == ()


@pytest.mark.parametrize(
    "name", ["a KL of torch, of log-probs", "a KL with a minus", "a KL by hand", "a cross entropy"]
)
def test_a_loss_is_mended(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG[name])
    [finding] = module.step.check(dims={module.B: 8, module.T: 64, module.V: 8}).findings
    [fix] = finding.fixes
    mended = loaded(tmp_path, apply(Path(module.__file__).read_text("utf-8"), fix.edits))
    assert approached(mended) > 0
    assert codes(mended) == ()
