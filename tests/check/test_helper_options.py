"""Options of helpers: what a call says decides the branches of the function that it runs, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.test_loss_masks import codes, program

LOG_PROBS = """
def log_probs(ids, temperature=1.0, {option}):
    logits = self.forward(ids) / temperature
    chosen = selected(logits, ids[:, 1:])
    if {test}:
        every = logits.log_softmax(-1)
        return chosen, -(every.exp() * every).sum(-1)
    return chosen
"""
FLAG = LOG_PROBS.format(option="with_entropy=False", test="with_entropy")
NAMED = LOG_PROBS.format(option="returns='log_probs'", test="returns == 'both'")
PASSED = FLAG + "\ndef both(ids, with_entropy):\n    return log_probs(ids, with_entropy=with_entropy)\n"
MASK = "mask = experience.loss_mask.tensor[:, 1:]\n"
LOSS = "ratio = (now - old[:, 1:]).exp()\nloss = {sign}(ratio * gain * mask).sum() / mask.sum()"
BONUS = " - 0.01 * (entropy * mask).sum() / mask.sum()"
MEAN = """
def mean(x, mask=None, axis=None):
    if mask is None:
        return x.mean()
    if axis is not None:
        return (x * mask).sum(axis) / mask.sum(axis)
    return (x * mask).sum() / mask.sum()
"""
BODIES = {
    "by default": FLAG + MASK + "now = log_probs(ids)\n" + LOSS,
    "as an argument": FLAG + MASK + "now, entropy = log_probs(ids, with_entropy=True)\n" + LOSS + BONUS,
    "by position": FLAG + MASK + "now, entropy = log_probs(ids, 1.0, True)\n" + LOSS + BONUS,
    "a text": NAMED + MASK + "now, entropy = log_probs(ids, returns='both')\n" + LOSS + BONUS,
    "through another function": PASSED + MASK + "now, entropy = both(ids, True)\n" + LOSS + BONUS,
    "a mask that is given": MEAN + MASK + "loss = mean({sign}ratio * gain, mask)",
    "a mask of rows": MEAN + MASK + "loss = mean({sign}ratio * gain, mask=mask, axis=-1).mean()",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_loss_is_followed_through_what_a_call_decides(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, BODIES[name].replace("{sign}", "-"))) == ()
    assert codes(program(tmp_path, BODIES[name].replace("{sign}", ""))) == ("HF358",)


UNCERTAIN = {
    "a number of the role": FLAG + MASK + "now = log_probs(ids, with_entropy=self.horizon > 8)\n" + LOSS,
    "a parameter that is set": FLAG.replace("logits = ", "with_entropy = self.horizon > 8\n    logits = ")
    + MASK
    + "now = log_probs(ids)\n"
    + LOSS,
    "options of a dictionary": FLAG + MASK + "options = dict(with_entropy=self.horizon > 8)\n"
    "now = log_probs(ids, **options)\n" + LOSS,
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_nothing_is_decided_that_a_call_does_not_say(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, UNCERTAIN[name].replace("{sign}", ""))) == ()


def test_a_branch_that_a_call_leaves_out_has_no_mistake(tmp_path: Path) -> None:
    body = "def mean(x, turned=False):\n    return x.mean() if turned else -x.mean()\n"
    body += MASK + "loss = mean(ratio * gain * mask{option})"
    assert codes(program(tmp_path, body.replace("{option}", ""))) == ()
    assert codes(program(tmp_path, body.replace("{option}", ", turned=True"))) == ("HF358",)
