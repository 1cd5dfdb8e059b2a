"""Extremes in losses as bodies write them: clips without clamp, and the smaller of two that are stacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.check import test_clip_ranges as clips
from tests.check import test_loss_signs as signs

LOW, HIGH = "torch.tensor({low})", "torch.tensor({high})"
HELD = {
    "by torch": f"held = torch.minimum(torch.maximum(ratio, {LOW}), {HIGH})",
    "the upper bound first": f"held = torch.max(torch.min(ratio, {HIGH}), {LOW})",
    "by methods": f"held = ratio.maximum({LOW}).minimum({HIGH})",
    "the bound first": f"held = torch.minimum({HIGH}, torch.maximum({LOW}, ratio))",
    "in two statements": f"held = torch.fmax(ratio, {LOW})\nheld = torch.fmin(held, {HIGH})",
    "of full tensors": (
        "low, high = torch.full_like(ratio, {low}), torch.full_like(ratio, {high})\n"
        "held = torch.minimum(torch.maximum(ratio, low), high)"
    ),
    "in two clamps": "held = ratio.clamp(min={low}).clamp(max={high})",
    "by clamp_min": "held = torch.clamp_max(ratio.clamp_min({low}), {high})",
    "with None": "held = ratio.clamp({low}, None).clamp(None, {high})",
    "by hardtanh": "held = F.hardtanh(ratio, {low}, {high})",
    "by an extreme of a clamp": f"held = torch.minimum(ratio.clamp(min={{low}}), {HIGH})",
    "in a function": (
        "between = lambda x, low, high: torch.min(torch.max(x, torch.tensor(low)), torch.tensor(high))\n"
        "held = between(ratio, {low}, {high})"
    ),
}
ONE_SIDED = (
    "held = torch.minimum(ratio, torch.tensor(self.clip))",
    "held = ratio.clamp(min=self.clip)",
    "held = torch.minimum(torch.maximum(ratio, torch.zeros_like(ratio)), torch.tensor(self.clip))",
    "held = (ratio.clamp(min=0.0) * 0.1).clamp(max=self.clip)",
    "held = ratio.clamp(1 - CLIP, 1 + CLIP).clamp(max=self.most)",
)


def held(folder: Path, name: str, low: str, high: str) -> Any:
    return clips.program(folder, HELD[name].replace("{low}", low).replace("{high}", high))


@pytest.mark.parametrize("name", HELD)
def test_a_clip_by_extremes_is_around_one(tmp_path: Path, name: str) -> None:
    right = held(tmp_path, name, "1 - self.clip", "1 + self.clip")
    assert signs.gained(right) > 0
    assert signs.codes(right) == ()
    assert signs.codes(held(tmp_path, name, "0.8", "1.28")) == ()
    assert signs.codes(held(tmp_path, name, "-self.clip", "self.clip")) == ("HF365",)


@pytest.mark.parametrize("body", ONE_SIDED)
def test_one_bound_may_be_anywhere(tmp_path: Path, body: str) -> None:
    assert signs.codes(clips.program(tmp_path, body)) == ()


def test_a_ratio_to_a_reference_that_extremes_clip_is_reported(tmp_path: Path) -> None:
    near = "ratio = (now - ref).exp()\n"
    assert signs.codes(clips.program(tmp_path, near + held_by_torch())) == ("HF366",)


def held_by_torch() -> str:
    return HELD["by torch"].replace("{low}", "1 - self.clip").replace("{high}", "1 + self.clip")


TWO = "first, second = ratio * advantages, ratio.clamp(0.8, 1.2) * advantages\n"
STACKED = {
    "min": "torch.stack([first, second]).{min}(0).values",
    "min of a tuple": "torch.stack((first, second), dim=0).{min}(dim=0)[0]",
    "min of the last dim": "torch.stack([first, second], dim=-1).{min}(dim=-1)[0]",
    "amin": "torch.stack([first, second], -1).a{min}(-1)",
    "amin by torch": "torch.a{min}(torch.stack([first, second]), dim=0)",
    "min by torch": "torch.{min}(torch.stack([first, second]), dim=0).values",
    "the other order": "torch.{min}(torch.stack([second, first]), 0)[0]",
}


@pytest.mark.parametrize("name", STACKED)
@pytest.mark.parametrize("ending", [".mean()", ".sum(-1).mean()"])
def test_the_extreme_of_a_stack_is_that_of_two(tmp_path: Path, name: str, ending: str) -> None:
    least, greatest = (STACKED[name].replace("{min}", function) for function in ("min", "max"))
    right = signs.program(tmp_path, f"{TWO}loss = -{least}{ending}")
    assert signs.gained(right) > 0
    assert signs.codes(right) == ()
    assert signs.codes(signs.program(tmp_path, f"{TWO}loss = -{greatest}{ending}")) == ("HF946",)
    assert signs.codes(signs.program(tmp_path, f"{TWO}loss = {least}{ending}")) == ("HF358",)


@pytest.mark.parametrize(
    "loss",
    [
        f"{TWO}held, _ = torch.stack([first, second]).min(dim=0)\nloss = -held.mean()",
        f"{TWO}loss = -torch.stack([first, second]).mean(0).mean()",
        f"{TWO}loss = -torch.stack([first, second]).max(-1).values.mean()",
        f"{TWO}loss = -torch.stack([first.mean(), second.mean()]).sum()",
    ],
)
def test_other_functions_of_a_stack_are_right(tmp_path: Path, loss: str) -> None:
    module = signs.program(tmp_path, loss)
    assert signs.gained(module) > 0
    assert signs.codes(module) == ()
