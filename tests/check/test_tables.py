"""Batches that a body keeps in dictionaries: known by their literal keys, as long as nothing else may change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

BATCH = (
    "batch = {'gains': advantages.expand_as(old).clone(), 'old': old, 'mask': mask, 'now': now}\n"
    "batch['ratio'] = (batch['now'] - batch['old']).exp()\n"
)
LOSS = "-(batch['ratio'] * batch['gains']).mean()"
LOSSES = {
    "by keys": f"{BATCH}loss = {LOSS}",
    "by get": f"{BATCH}loss = -(batch.get('ratio') * batch.get('gains', None)).mean()",
    "by pop": f"{BATCH}gains = batch.pop('gains')\nloss = -(batch['ratio'] * gains).mean()",
    "by dict": "batch = dict(ratio=ratio, gains=advantages)\nloss = " + LOSS,
    "in another dictionary": f"{BATCH}batch = {{**batch, 'scaled': batch['gains'] * 1.0}}\nloss = {LOSS}",
    "joined": f"{BATCH}batch = batch | {{'scaled': ratio}}\nloss = {LOSS}",
    "updated": f"{BATCH}batch.update(scaled=ratio)\nbatch.update({{'more': ratio}})\nloss = {LOSS}",
    "under another name": f"{BATCH}other = batch\nloss = {LOSS.replace('batch', 'other')}",
    "cut": (
        f"{BATCH}self.optimizer.zero_grad()\nfor rows in torch.arange(len(old)).split(2):\n"
        "    part = {name: x[rows] for name, x in batch.items()}\n"
        f"    loss = {LOSS.replace('batch', 'part')}\n    loss.backward(retain_graph=True)\n"
        "self.optimizer.step()\nreturn"
    ),
    "given to a function": f"{BATCH}loss = loss_of(batch)",
    "unpacked": "batch = {'ratio': ratio, 'gains': advantages}\nloss = unpacked(**batch)",
    "returned": f"{BATCH}loss = losses_of(batch)['policy']",
    "filled in a function": f"{BATCH}add_ratio(batch)\nloss = {LOSS.replace('ratio', 'other')}",
    "summed": f"{BATCH}parts = {{'policy': {LOSS}}}\nloss = sum(parts.values())",
    "multiplied in place": f"{BATCH}batch['gains'] *= 2.0\nloss = {LOSS}",
    "in a branch": f"{BATCH}if self.clip:\n    batch['more'] = ratio\nloss = {LOSS}",
    "counted and printed": f"{BATCH}assert len(batch)\nprint(batch)\nloss = {LOSS}",
}
FUNCTIONS = """
def loss_of(batch):
    return -(batch["ratio"] * batch["gains"]).mean()

def losses_of(batch):
    return {"policy": loss_of(batch), "kl": batch["ratio"].mean() * 0.0}

def unpacked(ratio, gains):
    return -(ratio * gains).mean()

def add_ratio(batch):
    batch["other"] = batch["ratio"] * 1.0

def negate(batch, key="gains"):
    batch[key] = -batch[key]

class Policy(hf.Worker):
"""
RIGHT = {
    "negated": f"{BATCH}batch['gains'] = -batch['gains']\nloss = {LOSS[1:]}",
    "negated in place": f"{BATCH}batch['gains'] *= -1\nloss = {LOSS[1:]}",
    "negated under another name": f"{BATCH}other = batch\nother['gains'] = -other['gains']\nloss = {LOSS[1:]}",
    "negated by an update": f"{BATCH}batch.update(gains=-advantages)\nloss = {LOSS[1:]}",
    "negated in a function": f"{BATCH}negate(batch)\nloss = {LOSS[1:]}",
    "negated by a method that is not known": f"{BATCH}self.negated(batch)\nloss = {LOSS[1:]}",
    "negated by a key that is not literal": f"{BATCH}key = 'gains'\nbatch[key] = -batch[key]\nloss = {LOSS[1:]}",
    "negated in a loop": f"{BATCH}for key in ('gains',):\n    batch[key] = -batch[key]\nloss = {LOSS[1:]}",
    "negated as a part": f"{BATCH}gains = batch['gains']\ngains.neg_()\nloss = {LOSS[1:]}",
    "negated by its entry": f"{BATCH}batch['gains'].neg_()\nloss = {LOSS[1:]}",
    "negated by parts of its entry": f"{BATCH}batch['gains'][:] = -batch['gains']\nloss = {LOSS[1:]}",
    "negated by the name of an entry": (
        f"gains = advantages.expand_as(old).clone()\n{BATCH}batch['gains'] = gains\ngains.neg_()\nloss = {LOSS[1:]}"
    ),
    "negated by parts of an entry": (
        f"gains = advantages.expand_as(old).clone()\n{BATCH}batch['gains'] = gains\n"
        f"gains[:] = -gains\nloss = {LOSS[1:]}"
    ),
    "negated with another": f"{BATCH}batch['gains'], more = -batch['gains'], 1.0\nloss = {LOSS[1:]}",
    "negated by a branch": (
        f"{BATCH}if self.clip:\n    batch['gains'] = -advantages\nelse:\n    batch['gains'] = -1.0 * advantages\n"
        f"loss = {LOSS[1:]}"
    ),
    "mapped": f"{BATCH}batch = {{name: -x for name, x in batch.items() if name == 'gains'}}\n"
    "loss = (batch['gains'] * ratio).mean()",
}


def program(folder: Path, body: str) -> Any:
    text = Path(signs.program(folder, body).__file__).read_text("utf-8")
    made = "        self.model = torch"
    text = text.replace(made, f"        self.negated = NEGATED['one']\n{made}", 1)
    return loaded(
        folder, text.replace("\nclass Policy(hf.Worker):\n", FUNCTIONS + "", 1) + "\nNEGATED = {'one': negate}\n"
    )


@pytest.mark.parametrize("name", LOSSES)
def test_entries_of_a_dictionary_are_known(tmp_path: Path, name: str) -> None:
    right, wrong = LOSSES[name], LOSSES[name].replace("= -(", "= (").replace("': -(", "': (")
    wrong = wrong if wrong != right else right.replace("loss = ", "loss = -1.0 * ", 1)
    for body, expected in ((right, ()), (wrong, ("HF358",))):
        module = program(tmp_path, body)
        assert (signs.gained(module) < 0) is bool(expected)
        assert signs.codes(module) == expected


@pytest.mark.parametrize("name", RIGHT)
def test_a_dictionary_that_changes_is_followed_or_not_known(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert signs.gained(module) > 0
    assert signs.codes(module) == ()
