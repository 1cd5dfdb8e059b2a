"""Micro-batches hold every row once and every token of it, and no more tokens than are granted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import ResourceError
from hfdsl.rl.models.learning import lr_factor
from hfdsl.rl.models.micro_batches import assembled, micro_batches
from hfdsl.rl.models.rule_rewards import imported
from hfdsl.rl.workers import BatchingConfig, OptimizerConfig


@st.composite
def masks(draw: Any) -> tuple[torch.Tensor, int]:
    """Prompts of at least a token, left-padded, with responses, right-padded: bool[B, P + R], and R."""
    rows, before, after = draw(st.integers(1, 9)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    lengths = [(draw(st.integers(1, before)), draw(st.integers(0, after))) for _ in range(rows)]
    column = torch.arange(before + after)
    mask = torch.stack([(column >= before - left) & (column < before + right) for left, right in lengths])
    return mask, after


CONFIGS = st.builds(BatchingConfig, tokens=st.integers(1, 60)) | st.builds(BatchingConfig, rows=st.integers(1, 5))


@given(masks(), CONFIGS)
def test_rows_come_once_and_whole(given_mask: tuple[torch.Tensor, int], config: BatchingConfig) -> None:
    mask, width = given_mask
    marked = torch.arange(mask.numel()).view(mask.shape) + 1
    parts = micro_batches(mask, width, config)
    assert sorted(row for part in parts for row in part.rows[: part.real_rows].tolist()) == list(range(len(mask)))
    for part in parts:
        whole, masks = part.sequences(marked, width), part.sequences(mask, width)
        for row, ids, real in zip(part.rows, whole, masks, strict=True):
            assert torch.equal(ids[real], marked[row][mask[row]])
        if config.rows is None:
            assert masks.numel() <= max(config.tokens, masks.shape[1])  # a row alone may be longer
        else:
            assert masks.shape == (config.rows, mask.shape[1])
    responses = marked[:, -width:] * mask[:, -width:]
    back = assembled([(part, part.response(responses)) for part in parts], len(mask), width)
    assert torch.equal(back, responses)
    counted = sum(int(part.token_mask(mask[:, -width:]).sum()) for part in parts)
    assert counted == int(mask[:, -width:].sum())


@given(masks(), st.integers(1, 60), st.integers(0, 9))
def test_room_is_left_for_tokens_to_come(given_mask: tuple[torch.Tensor, int], tokens: int, longer: int) -> None:
    mask, _ = given_mask
    prompts = mask[:, mask.any(0)]
    for part in micro_batches(prompts, 0, BatchingConfig(tokens=tokens), longer):
        rows, columns = part.sequences(prompts, 0).shape
        assert rows == 1 or rows * (columns + longer) <= tokens


def test_equal_batches_are_cut_alike() -> None:
    mask = torch.arange(6) >= torch.tensor([[3], [0], [3], [1]])
    first, second = (micro_batches(mask, 2, BatchingConfig(tokens=12)) for _ in range(2))
    assert [part.rows.tolist() for part in first] == [part.rows.tolist() for part in second] == [[1, 3], [0, 2]]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]),
        ("cosine", [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]),
    ],
)
def test_rates(schedule: Any, rates: list[float]) -> None:
    config = OptimizerConfig(schedule=schedule, warmup_steps=2, total_steps=4, min_lr_ratio=0.1)
    assert [lr_factor(config, step) for step in range(6)] == pytest.approx(rates)


def test_functions_are_found_by_name() -> None:
    assert imported("operator:add") is imported(imported("operator:add"))


def test_a_function_of_a_file_is_found_from_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scoring/judges").mkdir(parents=True)
    (tmp_path / "scoring/beside_it.py").write_text("OFFSET = 2\n")
    (tmp_path / "scoring/by_length.py").write_text(
        "from beside_it import OFFSET\ndef score(response, row): return len(response) + OFFSET\n"
    )
    (tmp_path / "scoring/judges/__init__.py").touch()
    (tmp_path / "scoring/judges/scale.py").write_text("FACTOR = 3\n")
    (tmp_path / "scoring/judges/strict.py").write_text(
        "from .scale import FACTOR\ndef score(response, row): return FACTOR\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    score = imported("scoring/by_length.py:score")
    assert score("abc", {}) == 5
    assert imported(str(tmp_path / "scoring/by_length.py:score")) is score
    assert imported("scoring/judges/strict.py:score")("", {}) == 3
    monkeypatch.chdir("/")
    monkeypatch.syspath_prepend(str(tmp_path))  # as a worker on Ray has it
    assert imported("scoring/by_length.py:score") is score
    with pytest.raises(ResourceError, match=r"HF812: no function 'no.py:score', .*: there is no file 'no.py'"):
        imported("no.py:score")
    with pytest.raises(ResourceError, match=r"HF812: .* has no attribute 'scores'"):
        imported("scoring/by_length.py:scores")
