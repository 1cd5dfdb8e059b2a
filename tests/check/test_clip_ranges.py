"""Ranges of clips: reported where a clip is not around what a ratio of equal policies is, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.check.repair.edits import apply
from tests.check import test_loss_signs as signs
from tests.check.loading import loaded

LOSS = "\nloss = -torch.min(ratio * advantages, held * advantages).mean()"
FIXED = {
    "around 0": "held = ratio.clamp(-self.clip, self.clip)",
    "around 0, by torch": "held = torch.clamp(ratio, -self.clip, self.clip)",
    "around 0, by names": "held = torch.clamp(ratio, min=-self.clip, max=self.clip)",
    "around 0, of numbers": "held = ratio.clamp(-0.2, 0.2)",
    "around 0, of a constant": "held = torch.clip(ratio, -CLIP, CLIP)",
    "around 0, of a name": "eps = self.clip\nheld = ratio.clip(-eps, eps)",
    "around 0, in steps": "held = torch.clamp(ratio, 0 - self.clip, 0 + self.clip)",
    "around 0, of a coefficient": "held = torch.clamp(ratio, -self.args.clip_coef, self.args.clip_coef)",
    "around 0, of a parameter": "held = torch.clamp(ratio, -self.args.clip_param, self.args.clip_param)",
    "1 left out below": "held = ratio.clamp(self.clip, 1 + self.clip)",
    "1 left out below a minus": "held = ratio.clamp(-self.clip, 1.0 + self.clip)",
    "1 left out above": "held = ratio.clamp(1 - self.clip, self.clip)",
    "1 left out of both": "held = ratio.clamp(0.2, 0.28)",
    "the wrong way round": "held = ratio.clamp(1 + self.clip, 1 - self.clip)",
    "one bound twice": "held = ratio.clamp(1 - self.clip, 1 - self.clip)",
    "in a loop": "for _ in range(2):\n    eps = self.clip\n    held = ratio.clamp(-eps, 0 + eps)",
    "of a masked ratio": "held = (ratio * mask).clamp(-self.clip, self.clip)",
}
ADVISED = {
    "by names of bounds": "low, high = -self.clip, self.clip\nheld = ratio.clamp(low, high)",
    "in a function": "held = kept(ratio, self.clip)",
    "in a function of two": "held = between(ratio, -self.clip, self.clip)",
    "of a sequence": (
        "ratio = (((now - old) * mask).sum(-1) / mask.sum(-1)).exp()[:, None]\nheld = ratio.clamp(-CLIP, CLIP + 0.0)"
    ),
    "a log-ratio": "held = torch.clamp(now - old, 1 - self.clip, 1 + self.clip).exp()",
    "a log-ratio, of numbers": "held = (now - old).clamp(0.8, 1.2).exp()",
    "a log-ratio, of two ranges": "held = (now - old).clamp(1 - self.clip, 1 + 2 * self.clip)",
    "a log-ratio for a ratio": "ratio = now - old\nheld = ratio.clamp(1 - CLIP, 1 + CLIP)",
}
RIGHT = {
    "around 1": "held = ratio.clamp(1 - self.clip, 1 + self.clip)",
    "of numbers": "held = torch.clamp(ratio, 0.8, 1.2)",
    "of a constant": "held = ratio.clip(min=1 - CLIP, max=1 + CLIP)",
    "higher above": "held = torch.clamp(ratio, 1.0 - self.clip, 1.0 + 1.4 * self.clip)",
    "by names": "low, high = 1 - self.clip, 1 + self.clip\nheld = ratio.clamp(low, high)",
    "in a function": "held = between(ratio, 1 - CLIP, 1 + CLIP)",
    "an inverse above": "held = ratio.clamp(1 - self.clip, 1 / (1 - self.clip))",
    "a ratio less 1": "held = 1 + (ratio - 1).clamp(-self.clip, self.clip)",
    "a ratio less 1, by a name": "change = ratio - 1\nheld = 1 + torch.clamp(change, -CLIP, CLIP)",
    "a ratio by expm1": "held = 1 + torch.expm1(now - old).clamp(-self.clip, self.clip)",
    "a log-ratio": "held = (now - old).clamp(-self.clip, self.clip).exp()",
    "a bounded log-ratio": "ratio = (now - old).clamp(-20.0, 20.0).exp()\nheld = ratio.clamp(0.8, 1.2)",
    "a log-ratio by logarithms": "held = (now - old).clamp(math.log(1 - self.clip), math.log(1 + self.clip)).exp()",
    "of a sequence": (
        "ratio = (((now - old) * mask).sum(-1) / mask.sum(-1)).exp()[:, None]\nheld = ratio.clamp(1 - 3e-4, 1 + 4e-4)"
    ),
    "two sides of a branch": (
        "low, high = 1 - CLIP, 1 + CLIP\nif self.micro > 100:\n    low, high = -CLIP, CLIP\n"
        "held = ratio.clamp(low, high)"
    ),
}
OTHER = {
    "around 1, of a coefficient": "held = ratio.clamp(1 - self.args.clip_coef, 1 + self.args.clip_coef)",
    "ratios to look at": "held = ratio\nwith torch.no_grad():\n    tail = ratio.clamp(2.0, 10.0).mean()",
    "one bound": "held = ratio.clamp(max=self.clip)",
    "a weight between 0 and its bound": "held = ratio.clamp(0, self.clip)",
    "a weight of at most 1": "held = ratio.clamp(0.0, 1.0)",
    "a truncated weight": "held = torch.clamp(ratio, min=0.0, max=5.0).detach() * now",
    "wide bounds": "held = ratio.clamp(-10.0, 10.0)",
    "bounds of a function": "held = between(ratio, -10.0, 10.0)",
    "bounds that are numbers of a role": "held = ratio.clamp(self.clip_low, self.clip_high)",
    "a bound below that is none": "held = ratio.clamp(-self.most, self.most)",
    "other bounds in a branch": "top = self.clip\nif self.micro:\n    top = 10.0\nheld = ratio.clamp(-top, top)",
    "a scaled ratio": "held = (0.1 * ratio).clamp(-self.clip, self.clip) * 10",
    "a KL": "held = ratio\nkl = ((ref - now).exp() - (ref - now) - 1).clamp(-10.0, 10.0)",
    "a value": "held = ratio\nvalues = now.mean(-1)\nchange = (values - values.detach()).clamp(-self.clip, self.clip)",
    "advantages": "held = ratio * advantages.clamp(-self.clip, self.clip)",
    "a probability": "held = now.exp().clamp(0.1, 0.9)",
    "a difference to a reference": "held = (now - ref).clamp(-self.clip, self.clip)",
}
HELPERS = """
import math

def kept(ratio, eps):
    return ratio.clamp(-eps, eps)

def between(ratio, low, high):
    return torch.clamp(ratio, low, high)

class Policy(hf.Worker):
    clip_low, clip_high, most = 0.8, 1.2, 5.0

    @property
    def args(self):
        return SimpleNamespace(clip_coef=0.2, clip_param=0.2)

"""


def program(folder: Path, body: str) -> Any:
    file = Path(signs.program(folder, body + LOSS).__file__)
    return loaded(folder, file.read_text("utf-8").replace("\nclass Policy(hf.Worker):\n", HELPERS, 1))


def codes(module: Any, **options: object) -> tuple[str, ...]:
    pool = module.hf.ResourcePool([1])
    places = module.hf.Deployment(policy=module.hf.place(module.Policy, pool=pool, **options)) if options else None
    report: Any = module.step.check(places, dims={module.B: 4})
    return tuple(report.codes)


def is_around_the_start(module: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the clips of an update on samples of its own policy are around what they get there."""
    clips = list[bool]()

    def recorded(clip: Any) -> Any:
        def function(x: torch.Tensor, min: Any = None, max: Any = None) -> Any:  # noqa: A002  # the names of torch
            if min is not None:  # gradients are clipped, too
                [value] = {round(number, 4) for number in x.flatten().tolist()}
                clips.append(value - 0.5 < min <= value <= max)
            return clip(x, min, max)

        return function

    policy = module.Policy()
    rows = signs.experience_of(module, policy, 1.0)
    rows = module.Experience(
        ids=rows.ids,
        mask=rows.mask,
        log_probs=policy.before(rows),
        ref_log_probs=rows.ref_log_probs,
        advantages=rows.advantages,
    )
    for owner, name in ((torch, "clamp"), (torch, "clip"), (torch.Tensor, "clamp"), (torch.Tensor, "clip")):
        monkeypatch.setattr(owner, name, recorded(getattr(owner, name)))
    module.step(rows, policy)
    return all(clips) and clips != []


@pytest.mark.parametrize("name", [*FIXED, *ADVISED])
def test_a_clip_that_is_not_around_one_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = program(tmp_path, (FIXED | ADVISED)[name])
    assert not is_around_the_start(module, monkeypatch)
    assert codes(module) == ("HF365",)


@pytest.mark.parametrize("name", RIGHT)
def test_a_clip_around_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    if "bounded" not in name:
        assert is_around_the_start(module, monkeypatch)
    assert codes(module) == ()
    assert codes(module, clip=0.3) == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_other_clips(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, OTHER[name])) == ()


def test_a_number_that_is_known_decides(tmp_path: Path) -> None:
    module = program(tmp_path, FIXED["around 0"])
    assert codes(module, clip=0.2) == ("HF365",)
    assert codes(module, clip=5.0) == ()
    bounds = program(tmp_path, "held = ratio.clamp(self.kl_coef, self.entropy_coef)")
    assert codes(bounds, kl_coef=0.2, entropy_coef=0.28) == ("HF365",)
    assert codes(bounds, kl_coef=0.8, entropy_coef=1.28) == ()
    assert codes(bounds) == ()


CONFIG = """
from dataclasses import dataclass

@dataclass
class Config:
    eps: float
"""


@pytest.mark.parametrize("bound", ["self.config.eps", "self.table['eps']", "self.nested['clip'].eps"])
def test_a_number_of_a_configuration_decides(tmp_path: Path, bound: str) -> None:
    text = Path(program(tmp_path, f"held = ratio.clamp(-{bound}, {bound})").__file__).read_text("utf-8")
    text = text.replace("\nimport math\n", CONFIG, 1)
    text = text.replace("micro: int = 2)", "micro: int = 2, config=None, table=None, nested=None)", 1)
    kept = "        self.config, self.table, self.nested = config, table, nested\n"
    module = loaded(tmp_path, text.replace("        self.model = torch", f"{kept}        self.model = torch", 1))
    for eps, expected in ((0.2, ("HF365",)), (10.0, ())):
        config = module.Config(eps)
        assert codes(module, config=config, table={"eps": eps}, nested={"clip": config}) == expected


@pytest.mark.parametrize("name", FIXED)
def test_a_range_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module = program(tmp_path, FIXED[name])
    [finding] = module.step.check(dims={module.B: 4}).findings
    [fix] = finding.fixes
    mended = loaded(tmp_path, apply(Path(module.__file__).read_text("utf-8"), fix.edits))
    assert is_around_the_start(mended, monkeypatch)
    assert codes(mended) == ()


@pytest.mark.parametrize("name", ADVISED)
def test_what_is_not_written_at_the_clip_remains(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, ADVISED[name])
    [finding] = module.step.check(dims={module.B: 4}).findings
    assert finding.fixes == ()
    assert len(finding.notes) == 1


@pytest.mark.parametrize(
    ("held", "wrong"),
    [
        ("ratio.clamp(-self.epsilon, self.epsilon)", True),
        ("ratio.clamp(self.epsilon, 1 + self.epsilon)", True),
        ("ratio.clamp(1 - self.epsilon, 1 + self.epsilon)", False),
        ("ratio.clamp(max=self.epsilon)", False),
        ("(log_probs - old).clamp(-self.epsilon, self.epsilon).exp()", False),
        ("(log_probs - old).clamp(1 - self.epsilon, 1 + self.epsilon).exp()", True),
    ],
)
def test_the_surrogate_of_a_loss_is_clipped_around_one(tmp_path: Path, held: str, wrong: bool) -> None:
    text = re.sub("held = .*", f"held = {held}", signs.LOSS).format(loss="-torch.min(ratio * gain, held * gain)")
    module = loaded(tmp_path, text)
    assert tuple(module.step.check().codes) == (("HF365",) if wrong else ())
