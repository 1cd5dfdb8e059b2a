"""References in preference losses of the user's: reported where their margin is added, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.preference_programs import codes, gained, program

BOTH = "chosen, rejected = self.log_probs(chosen_ids, chosen_mask), self.log_probs(rejected_ids, rejected_mask)\n"
ADDED = {
    "two margins": BOTH + "logits = (chosen - rejected) + (ref_chosen - ref_rejected)\n"
    "loss = -F.logsigmoid(self.beta * logits).mean()",
    "exchanged names": BOTH + "ref_chosen, ref_rejected = ref_rejected, ref_chosen\n"
    "logits = (chosen - rejected) - (ref_chosen - ref_rejected)\nloss = -F.logsigmoid(self.beta * logits).mean()",
    "two ratios": BOTH + "better, worse = chosen + ref_chosen, rejected + ref_rejected\n"
    "loss = -F.logsigmoid(self.beta * (better - worse)).mean()",
    "by softplus": BOTH + "loss = F.softplus(-BETA * (chosen - rejected + ref_chosen - ref_rejected)).mean()",
    "a hinge": BOTH + "loss = torch.relu(1 - self.beta * (chosen - rejected - (ref_rejected - ref_chosen))).mean()",
    "an object": BOTH + "losses, *_ = self.dpo(chosen, rejected, ref_rejected, ref_chosen)\nloss = losses.mean()",
    "smoothed labels": BOTH + "losses, *_ = self.smoothed(chosen, rejected, ref_rejected, ref_chosen)\n"
    "loss = losses.mean()",
    "a square": BOTH + "logits = (chosen - rejected) + (ref_chosen - ref_rejected)\n"
    "loss = ((logits - 1 / (2 * self.beta)) ** 2).mean()",
    "a sum over rows": BOTH + "logits = (chosen + ref_chosen) - (rejected + ref_rejected)\n"
    "loss = -torch.log(torch.sigmoid(self.beta * logits)).sum() / len(logits)",
}
SUBTRACTED = {
    "two margins": BOTH + "logits = (chosen - rejected) - (ref_chosen - ref_rejected)\n"
    "loss = -F.logsigmoid(self.beta * logits).mean()",
    "the other way round": BOTH + "logits = (rejected - chosen) + (ref_chosen - ref_rejected)\n"
    "loss = F.softplus(self.beta * logits).mean()",
    "two ratios": BOTH + "better, worse = chosen - ref_chosen, rejected - ref_rejected\n"
    "loss = -F.logsigmoid(self.beta * (better - worse)).mean()",
    "added to the other response": BOTH
    + "loss = -F.logsigmoid(chosen + ref_rejected - (rejected + ref_chosen)).mean()",
    "an object": BOTH + "losses, *_ = self.dpo(chosen, rejected, ref_chosen, ref_rejected)\nloss = losses.mean()",
    "smoothed labels": BOTH + "losses, *_ = self.smoothed(chosen, rejected, ref_chosen, ref_rejected)\n"
    "loss = losses.mean()",
    "a square": BOTH + "logits = (chosen - rejected) - (ref_chosen - ref_rejected)\n"
    "loss = ((logits - 1 / (2 * self.beta)) ** 2).mean()",
    "negated": BOTH
    + "loss = F.softplus(-(self.beta * (chosen - rejected) + self.beta * -(ref_chosen - ref_rejected))).mean()",
}
OTHER = {
    "none": BOTH + "loss = -F.logsigmoid(self.beta * (chosen - rejected)).mean()",
    "a column": BOTH + "loss = -F.logsigmoid(chosen - rejected + pairs.margin.tensor).mean()",
    "a target that adapts": BOTH + "offset = ((chosen - ref_chosen) - (rejected - ref_rejected)).detach()\n"
    "loss = -F.logsigmoid(self.beta * (chosen - rejected - 0.1 * offset)).mean()",
    "a weight": BOTH + "weight = torch.sigmoid(ref_chosen - ref_rejected)\n"
    "loss = -(weight * F.logsigmoid(self.beta * (chosen - rejected))).mean()",
    "a metric": BOTH + "self.both = F.logsigmoid((chosen - rejected) + (ref_chosen - ref_rejected)).mean().item()\n"
    "loss = -F.logsigmoid(self.beta * ((chosen - rejected) - (ref_chosen - ref_rejected))).mean()",
    "an unknown sign": BOTH + "loss = -F.logsigmoid(chosen - rejected + self.tau * (ref_chosen - ref_rejected)).mean()",
    "one response": BOTH + "loss = -F.logsigmoid(chosen - rejected).mean() + torch.relu(ref_chosen - chosen).mean()",
}


def follows_its_reference(folder: Path, body: str) -> bool:
    """Whether an update raises a margin by more if that of the reference is greater."""
    module = program(folder, body)
    return gained(module, preferred=2.0) > gained(module, preferred=-2.0)


@pytest.mark.parametrize("name", ADDED)
def test_the_margin_of_a_reference_that_is_added_is_reported(tmp_path: Path, name: str) -> None:
    assert not follows_its_reference(tmp_path, ADDED[name])
    module = program(tmp_path, ADDED[name])
    assert gained(module) > 0
    assert codes(module) == ("HF368",)


@pytest.mark.parametrize("name", SUBTRACTED)
def test_one_that_is_subtracted_is_not(tmp_path: Path, name: str) -> None:
    assert follows_its_reference(tmp_path, SUBTRACTED[name])
    assert codes(program(tmp_path, SUBTRACTED[name])) == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_other_losses(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, OTHER[name])) == ()
