"""Fixes within bodies: those that a check offers turn the update around, and a role stays as it was."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.repair.edits import apply
from tests.check import test_loss_signs as signs
from tests.check.loading import loaded


def report_of(module: Any) -> Any:
    return module.step.check(dims={module.B: 4})


def mended(folder: Path, module: Any) -> Any:
    """The module with the only fix of its only finding."""
    [finding] = report_of(module).findings
    [fix] = finding.fixes
    text = Path(module.__file__).read_text("utf-8")
    return loaded(folder, apply(text, fix.edits))


ADVICE = (
    "an objective of a function",
    "normalized advantages",
    "the ratio upside down",
    "the ratio upside down, clipped",
)
"""Mistakes without a fix: the sign is that of a helper, or an operand of a ratio is meant."""


@pytest.mark.parametrize("name", [name for name in signs.LOWERS if name not in ADVICE])
def test_a_loss_is_negated(tmp_path: Path, name: str) -> None:
    module = signs.program(tmp_path, signs.LOWERS[name])
    other = mended(tmp_path, module)
    assert signs.gained(module) < 0 < signs.gained(other)
    assert report_of(other).codes == ()


@pytest.mark.parametrize("name", ADVICE)
def test_a_helper_and_a_ratio_remain_as_they_are(tmp_path: Path, name: str) -> None:
    [finding] = report_of(signs.program(tmp_path, signs.LOWERS[name])).findings
    assert finding.fixes == finding.help == ()
    assert len(finding.notes) == 1


HELPER = """
    def average(self, x, mask):
        return (x * mask).sum() / mask.sum()

    def logits("""


def test_a_method_that_others_may_call_remains_as_it_is(tmp_path: Path) -> None:
    body = textwrap.indent("loss = self.average(ratio * advantages, mask)" + signs.STEP, " " * 8)
    text = signs.MODULE.format(body=body, options="").replace("    def logits(", HELPER, 1)
    [finding] = report_of(loaded(tmp_path, text)).findings
    assert finding.code == "HF358"
    assert finding.fixes == ()


def test_nothing_is_derived_from_a_class_that_counts_its_subclasses(tmp_path: Path) -> None:
    counted = """class Counted(hf.Worker):
    derived = []
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Counted.derived.append(cls)

class Policy(Counted):"""
    body = textwrap.indent(signs.LOWERS["ratio"] + signs.STEP, " " * 8)
    module = loaded(
        tmp_path, signs.MODULE.format(body=body, options="").replace("class Policy(hf.Worker):", counted, 1)
    )
    [finding] = report_of(module).findings
    assert finding.fixes == ()
    assert module.Counted.derived == [module.Policy]


def test_a_placed_role_is_what_it_was_after_its_fixes_were_tried(tmp_path: Path) -> None:
    module = signs.program(tmp_path, signs.LOWERS["ratio"])
    update = module.Policy.update
    places = module.hf.Deployment(policy=module.hf.place(module.Policy, pool=module.hf.ResourcePool([1])))
    report = module.step.check(places, dims={module.B: 4})
    assert [len(finding.fixes) for finding in report.findings] == [1]
    assert module.Policy.update is update
    assert places.placements["policy"].role is module.Policy
    assert signs.gained(module) < 0


@pytest.mark.parametrize("name", signs.HARMS)
def test_a_term_gets_the_other_sign(tmp_path: Path, name: str) -> None:
    code, body = signs.HARMS[name]
    module = mended(tmp_path, signs.program(tmp_path, body))
    more_entropy, more_gap = signs.moved(module)
    assert more_entropy >= 0 if code == "HF946" else more_gap <= 0
    assert report_of(module).codes == ()


@pytest.mark.parametrize("body", signs.UNCLIPPED)
def test_the_other_extreme_is_taken(tmp_path: Path, body: str) -> None:
    module = mended(tmp_path, signs.program(tmp_path, body))
    assert signs.gained(module) > 0
    assert report_of(module).codes == ()
