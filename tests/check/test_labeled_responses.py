"""Preference losses of responses that are called winners and losers by letters, or good by a column of labels."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded
from tests.check.preference_programs import MODULE, STEP

LETTERS = (
    "logps_w, logps_l = self.log_probs(ids_w, mask_w), self.log_probs(ids_l, mask_l)\n"
    "ratio_w, ratio_l = logps_w - ref_w, logps_l - ref_l\n"
)
LETTERED = {
    "DPO": LETTERS + "loss = -F.logsigmoid(self.beta * ({w} - {l})).mean()",
    "DPO by softplus": LETTERS + "loss = F.softplus(self.beta * ({l} - {w})).mean()",
    "IPO": LETTERS + "loss = (({w} - {l} - 1 / (2 * self.beta)) ** 2).mean()",
    "hinge": LETTERS + "loss = torch.relu(1 - self.beta * ({w} - {l})).mean()",
    "a cross entropy": LETTERS
    + "scores = torch.stack([{w}, {l}], dim=1)\nloss = F.cross_entropy(scores, torch.zeros(len(scores)).long())",
}
RATIO = "ratio = self.log_probs(ids, mask) - ref\nkl = ratio.detach().mean().clamp(min=0)\n"
LABELED = {
    "KTO, chosen by labels": RATIO
    + "better = 1 - torch.sigmoid(self.beta * (ratio[{good}] - kl))\n"
    + "worse = 1 - torch.sigmoid(self.beta * (kl - ratio[{bad}]))\nloss = torch.cat([better, worse]).mean()",
    "KTO by where": RATIO
    + "better = 1 - torch.sigmoid(self.beta * (ratio - kl))\nworse = 1 - torch.sigmoid(self.beta * (kl - ratio))\n"
    + "loss = torch.where({good}, better, worse).mean()",
    "KTO by signs": RATIO
    + "signs = {good}.float() * 2 - 1\nloss = (1 - torch.sigmoid(signs * self.beta * (ratio - kl))).mean()",
    "KTO weighted": RATIO
    + "better = 1 - torch.sigmoid(self.beta * (ratio[{good}] - kl))\n"
    + "worse = 1 - torch.sigmoid(self.beta * (kl - ratio[{bad}]))\n"
    + "loss = torch.cat((1.3 * better, 1.0 * worse), 0).mean()",
    "KTO by comparisons": RATIO
    + "better = -F.logsigmoid(self.beta * (ratio[{good} == 1] - kl))\n"
    + "worse = -F.logsigmoid(self.beta * (kl - ratio[{good} == 0]))\nloss = better.sum() + worse.sum()",
    "a classifier": RATIO + "loss = F.binary_cross_entropy_with_logits(self.beta * ratio, {good}.float())",
    "unlikelihood": "logps = self.log_probs(ids, mask)\nloss = torch.where({good}, -logps, 0.1 * logps).mean()",
}
UNKNOWN = {
    "chosen by another mask": RATIO
    + "kept = mask.sum(-1) > 3\nbetter = 1 - torch.sigmoid(self.beta * (kl - ratio[kept]))\nloss = better.mean()",
    "in another order": RATIO + "order = labels.float().argsort()\nratio = ratio[order]\n"
    "loss = -F.logsigmoid(ratio[:2] - ratio[2:]).mean()",
    "halves that are no labels": RATIO + "n = len(ratio) // 2\nloss = -F.logsigmoid(ratio[n:] - ratio[:n]).mean()",
    "chunks that are no labels": RATIO + "first, second = ratio.chunk(2)\nloss = -F.logsigmoid(second - first).mean()",
    "labels as weights": RATIO + "loss = -(ratio * (1 - labels.float())).mean()\nself.shown = loss.item()\n"
    "loss = self.other(loss, labels)",
}


def lettered(folder: Path, body: str) -> Any:
    """A program whose columns and names have letters for the winner and the loser."""
    text = MODULE.format(body=textwrap.indent(body + STEP, " " * 8), role="Policy", options="")
    for word, letter in (("chosen", "w"), ("rejected", "l")):
        text = text.replace(f"{word}_ids: hf", f"ids_{letter}: hf").replace(f"{word}_mask: hf", f"mask_{letter}: hf")
        text = text.replace(f"ref_{word}_logps: hf", f"ref_{letter}: hf")
        for column in ("ids", "mask"):
            text = text.replace(f"pairs.{word}_{column}", f"pairs.{column}_{letter}")
        text = text.replace(f"pairs.ref_{word}_logps", f"pairs.ref_{letter}")
    text = text.replace("        chosen_ids, rejected_ids = ", "        ids_w, ids_l = ")
    text = text.replace("        chosen_mask, rejected_mask = ", "        mask_w, mask_l = ")
    return loaded(folder, text.replace("        ref_chosen, ref_rejected = ", "        ref_w, ref_l = "))


def labeled(folder: Path, body: str, column: str = "desirable") -> Any:
    """A program whose record has one response in each row, and a column that says whether it is good."""
    text = MODULE.format(body=textwrap.indent(body + STEP, " " * 8), role="Policy", options="")
    start, end = text.index("class Pairs"), text.index("def logps_of")
    record = (
        f"class Pairs(hf.Batch):\n    ids: hf.i64[B, T]\n    mask: hf.bool_[B, T]\n    ref: hf.f32[B]\n"
        f"    {column}: hf.bool_[B]\n\n"
    )
    text = text[:start] + record + text[end:]
    start, end = text.index("        chosen_ids, rejected_ids ="), text.index("        ref_chosen, ref_rejected =")
    end = text.index("\n", end) + 1
    columns = (
        "        ids, mask, ref = pairs.ids.tensor, pairs.mask.tensor, pairs.ref.tensor\n"
        f"        labels = pairs.{column}.tensor\n"
    )
    return loaded(folder, text[:start] + columns + text[end:])


def codes(module: Any) -> tuple[str, ...]:
    """The codes that the check of a program reports."""
    report: Any = module.step.check(dims={module.B: 4})
    return tuple(report.codes)


def tokens(seed: int) -> torch.Tensor:
    """Tokens of four responses."""
    return torch.randint(0, 8, (4, 6), generator=torch.Generator().manual_seed(seed))


def gained(module: Any) -> float:
    """By how much an update raises the log-probs of winners, or of good responses, over those of the others."""
    policy, mask = module.Policy(), torch.ones(4, 6, dtype=torch.bool)
    good = torch.tensor([True, True, False, False])
    if hasattr(module.Pairs, "__annotations__") and "ids" in module.Pairs.__annotations__:
        ids = tokens(2)

        def margin() -> float:
            scores = policy.log_probs(ids, mask).detach()
            return float(scores[good].mean() - scores[~good].mean())

        rows = {"ids": ids, "mask": mask, "ref": policy.log_probs(ids, mask).detach()}
        [column] = module.Pairs.__annotations__.keys() - rows.keys()
        pairs = module.Pairs(**rows, **{column: good})
    else:
        first, second = tokens(2), tokens(3)

        def margin() -> float:
            return float((policy.log_probs(first, mask) - policy.log_probs(second, mask)).mean())

        pairs = module.Pairs(
            ids_w=first,
            ids_l=second,
            mask_w=mask,
            mask_l=mask,
            ref_w=policy.log_probs(first, mask).detach(),
            ref_l=policy.log_probs(second, mask).detach(),
            margin=torch.zeros(4),
        )
    before = margin()
    policy.update(pairs)
    return margin() - before


@pytest.mark.parametrize("name", LETTERED)
def test_a_winner_is_preferred_to_a_loser(tmp_path: Path, name: str) -> None:
    right = lettered(tmp_path, LETTERED[name].format(w="ratio_w", l="ratio_l"))
    wrong = lettered(tmp_path, LETTERED[name].format(w="ratio_l", l="ratio_w"))
    assert gained(right) > 0 > gained(wrong)
    assert codes(right) == ()
    assert codes(wrong) == ("HF368",)


@pytest.mark.parametrize("name", LABELED)
def test_good_responses_are_preferred_to_others(tmp_path: Path, name: str) -> None:
    right = labeled(tmp_path, LABELED[name].format(good="labels", bad="~labels"))
    wrong = labeled(tmp_path, LABELED[name].format(good="(~labels)", bad="labels"))
    assert gained(right) > 0 > gained(wrong)
    assert codes(right) == ()
    assert codes(wrong) == ("HF368",)


@pytest.mark.parametrize("column", ["is_chosen", "preferred", "thumbs_up", "accepted_label"])
def test_labels_have_other_names(tmp_path: Path, column: str) -> None:
    wrong = labeled(tmp_path, LABELED["KTO by where"].format(good="(~labels)", bad="labels"), column)
    assert codes(wrong) == ("HF368",)


@pytest.mark.parametrize("column", ["label", "toxic", "rejected", "is_done"])
def test_nothing_is_known_of_other_labels(tmp_path: Path, column: str) -> None:
    wrong = labeled(tmp_path, LABELED["KTO by where"].format(good="(~labels)", bad="labels"), column)
    assert codes(wrong) == ()


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_said_of_rows_in_other_places(tmp_path: Path, name: str) -> None:
    assert codes(labeled(tmp_path, UNKNOWN[name])) == ()
