"""Statistics of numbers that a mask has set to 0: reported where wider columns change tokens, and nowhere else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.check.loading import loaded

SUMS = (
    "out, total = torch.zeros_like(gains), torch.zeros(len(gains))\n"
    "for t in reversed(range(gains.shape[1])):\n"
    "    total = gains[:, t] + 0.5 * total\n"
    "    out[:, t] = total\n"
)
MODULE = """
from __future__ import annotations
import torch
import hfdsl as hf
from hfdsl import bool_, f32, i64
from hfdsl.rl.masked import masked_mean, whitened
from hfdsl.rl.batches import B
{dim}

class Responses(hf.Batch):
    ids: i64[B, R]
    response_mask: bool_[B, R]
    correct: bool_[B, R]
    log_probs: f32[B, R]
    gains: f32[B, R]
    score: f32[B]

class Advantages(hf.Batch):
    gains: f32[B, R]

class Learner(hf.Worker):
    def __init__(self) -> None: ...

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, responses: Responses, advantages: Advantages) -> None: ...

@hf.function(rows=hf.Whole)
def normalized(responses: Responses) -> Advantages:
    mask, gains = responses.response_mask.tensor, responses.gains.tensor
{body}
    return Advantages(gains=gains)

@hf.function
def repeated(responses: Responses) -> Advantages:
    return Advantages(gains=responses.score.tensor[:, None] * responses.response_mask.tensor)

@hf.dataflow
def step(responses: Responses, learner: Learner) -> None:
    learner.learn(responses, normalized(responses))

@hf.dataflow
def step_of_repeated(responses: Responses, learner: Learner) -> None:
    made = Responses(
        ids=responses.ids,
        response_mask=responses.response_mask,
        correct=responses.correct,
        log_probs=responses.log_probs,
        gains=repeated(responses).gains,
        score=responses.score,
    )
    learner.learn(responses, normalized(made))
"""
DIMS = {"ready": "from hfdsl.rl.batches import R", "own": "class R(hf.Dim): ..."}
WRONG = {
    "a mean": "gains = gains - (gains * mask).mean()",
    "a mean by torch": "gains = gains - torch.mean(gains * mask)",
    "a mean of each response": "gains = gains - (gains * mask).mean(-1, keepdim=True)",
    "a spread": "gains = gains / ((gains * mask).std() + 1e-6)",
    "both": "zeroed = gains * mask\ngains = (zeroed - zeroed.mean()) / (zeroed.std() + 1e-6)",
    "both of one name": "gains = gains * mask\ngains = (gains - gains.mean()) / (gains.std() + 1e-6)",
    "a mask of numbers": (
        "mask, gains = mask.float(), gains.clone()\ngains *= mask\ngains = (gains - gains.mean()) * mask"
    ),
    "by a method": "gains = gains.mul(mask)\ngains = gains.sub(gains.mean())",
    "scaled": "gains = 2 * gains * mask\ngains = gains - gains.mean()",
    "of scores": "gains = responses.score.tensor[:, None] * mask\ngains = (gains - gains.mean()) / gains.std()",
    "of scores less a baseline": (
        "score = responses.score.tensor\ngains = (score - 0.5).unsqueeze(-1) * mask\ngains = gains - gains.mean()"
    ),
    "sums over steps": SUMS + "gains = (out - out.mean()) / (out.std() + 1e-6)",
    "masked sums over steps": SUMS + "out = out * mask\ngains = out - out.mean()",
    "sums over steps, masked afterwards": SUMS + "gains = (out - out.mean()) * mask",
    "what a mask fills": "out = torch.zeros(gains.shape)\nout[mask] = gains[mask]\ngains = out / out.std()",
    "in steps": "zeroed = gains * mask\nmean, spread = zeroed.mean(), zeroed.std()\ngains = (gains - mean) / spread",
}
RIGHT = {
    "a sum over a count": "gains = gains - (gains * mask).sum() / mask.sum()",
    "a sum over a count of each": "gains = gains - (gains * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)",
    "a formula": "gains = gains - masked_mean(gains, mask)",
    "whitened": "gains = whitened(gains, mask) * mask",
    "chosen": "gains = (gains - gains[mask].mean()) / (gains[mask].std() + 1e-6) * mask",
    "chosen by a function": "gains = gains - torch.masked_select(gains, mask).mean()",
    "a spread by hand": (
        "mean = (gains * mask).sum() / mask.sum()\n"
        "spread = (((gains - mean) ** 2 * mask).sum() / mask.sum()).sqrt()\ngains = (gains - mean) / spread * mask"
    ),
    "of scores before": (
        "score = responses.score.tensor\nscore = (score - score.mean()) / (score.std() + 1e-6)\n"
        "gains = score[:, None] * mask"
    ),
    "a mean of responses' sums": "total = (gains * mask).sum(-1)\ngains = (total - total.mean())[:, None] * mask",
    "a mean over a share": "gains = gains - (gains * mask).mean() / mask.float().mean()",
    "sums over steps, chosen": SUMS + "gains = (out - out[mask].mean()) / (out[mask].std() + 1e-6) * mask",
    "sums over steps, whitened": SUMS + "gains = whitened(out, mask) * mask",
    "sums over steps, by a count": SUMS + "out = out * mask\ngains = out - out.sum() / mask.sum()",
    "sums over steps alone": SUMS + "gains = out * mask",
    "no number": "gains = torch.where(mask, gains, torch.nan)\ngains = (gains - gains.nanmean()).nan_to_num() * mask",
    "a mask alone": "gains = gains * mask",
    "over a constant": "gains = (gains * mask).sum(-1, keepdim=True) / 8 * mask",
}
OTHER = {
    "what is shown": "shown = (gains * mask).mean().item()\ngains = gains * mask",
    "a number of each response at all tokens": "out = torch.zeros_like(gains)\n"
    "out[:, :] = responses.score.tensor[:, None]\ngains = (out - out.mean()) * mask",
    "sums over steps of other numbers": SUMS + "gains = (gains - out.mean()) * mask",
    "a mean of other numbers": "gains = gains - (responses.log_probs.tensor * mask).mean()",
    "a share of correct tokens": "gains = gains - (gains * responses.correct.tensor).mean()",
    "a share of positive ones": "gains = gains - ((gains * mask) > 0).float().mean()",
    "in a branch": "zeroed = gains\nif len(gains) > 1:\n    zeroed = gains * mask\ngains = gains - zeroed.mean()",
}


def program(folder: Path, body: str, dim: str) -> Any:
    return loaded(folder, MODULE.format(body=textwrap.indent(body, "    "), dim=DIMS[dim]))


def depends_on_padding(module: Any) -> bool:
    """Whether tokens have other numbers in wider columns."""
    gains, mask = torch.tensor([[1.0, 2.5, 0.5], [3.0, -1.0, 0.7]]), torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()

    def normalized(wider: int) -> torch.Tensor:
        wide, wide_mask = (torch.nn.functional.pad(x, (0, wider)) for x in (gains, mask))
        result = module.normalized(
            module.Responses(
                ids=torch.zeros_like(wide).long(),
                response_mask=wide_mask,
                correct=wide_mask,
                log_probs=wide,
                gains=wide,
                score=torch.tensor([1.0, -0.5]),
            )
        )
        numbers: torch.Tensor = result.gains.tensor[:, :3][mask]
        return numbers

    return not torch.allclose(normalized(0), normalized(4))


def codes(module: Any, flow: str = "step") -> tuple[str, ...]:
    report: Any = getattr(module, flow).check(dims={module.B: 4, module.R: 8})
    return tuple(report.codes)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", WRONG)
def test_a_statistic_that_counts_padding_as_zeros_is_reported(tmp_path: Path, name: str, dim: str) -> None:
    module = program(tmp_path, WRONG[name], dim)
    assert depends_on_padding(module)
    assert codes(module) == codes(module, "step_of_repeated") == ("HF355",)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_statistic_of_tokens_is_not(tmp_path: Path, name: str, dim: str) -> None:
    module = program(tmp_path, RIGHT[name], dim)
    assert not depends_on_padding(module)
    assert codes(module) == codes(module, "step_of_repeated") == ()


@pytest.mark.parametrize("name", OTHER)
def test_nothing_is_said_of_what_may_be_meant(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, OTHER[name], "own")) == ()
