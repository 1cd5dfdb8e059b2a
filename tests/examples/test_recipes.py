"""The recipes: they are checked every day, their curves rise, and the nightly run takes two steps of each."""

from __future__ import annotations

import itertools
import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from examples.custom_loss.algorithm import Quadratic, advantages_over_mean
from examples.custom_protocol.protocol import EVERY_RANK
from examples.mathematics import problems
from examples.measure import CURVES, commands
from examples.pass_at_k.pass_at_k import pass_at
from examples.reward_model import pairs
from hfdsl.rl.training.toml.values import value_text
from hfdsl.testing import check_rows, lawful
from hfdsl.tools.cli import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
RUNS = sorted(path for recipe in CURVES for path in (EXAMPLES / recipe).glob("*.toml"))


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_configuration_has_no_findings(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "--elsewhere", str(path.relative_to(ROOT))])
    assert (code, capsys.readouterr().out.count("no findings")) != (0, 0)
    assert code == 0


@pytest.mark.parametrize("recipe", CURVES)
def test_a_recipe_is_whole(recipe: str) -> None:
    folder = EXAMPLES / recipe
    files = {path.name for path in folder.iterdir()}
    assert {"README.md", "curve.json", "curve.svg"} <= files
    readme, index = (folder / "README.md").read_text("utf-8"), (EXAMPLES / "README.md").read_text("utf-8")
    assert f"({recipe}/README.md)" in index
    assert [name for name in files if name.endswith((".toml", ".py")) and name not in readme] == []
    targets = [word for command in commands(recipe) for word in shlex.split(command) if word.startswith("examples/")]
    assert [target for target in targets if not (ROOT / target).is_file()] == []


@pytest.mark.parametrize("recipe", CURVES)
def test_a_curve_rises_over_the_noise(recipe: str) -> None:
    measured = json.loads((EXAMPLES / recipe / "curve.json").read_text("utf-8"))
    assert list(measured["seconds"]) == commands(recipe), "the commands have changed: run examples/measure.py"
    assert list(measured["curves"]) == [label for label, _, _ in CURVES[recipe]]
    if recipe == "pass_at_k":
        before, after = ([value for _, value in curve] for curve in measured["curves"].values())
        assert before == sorted(before)
        assert after == sorted(after)
        assert after[0] > before[0] + 0.1
        return
    if recipe == "ppo_reward_model":
        solved, scored, weak_solved, weak_scored = (
            [value for _, value in curve] for curve in measured["curves"].values()
        )
        assert min(solved[len(solved) // 2 :]) > solved[0] + 0.1  # it rises and stays
        assert scored[-1] > scored[0] + 0.1
        assert weak_solved[-1] < weak_solved[0] - 0.1  # what is optimized rises, and what is wanted falls
        assert weak_scored[-1] > weak_scored[0] + 0.1
        return
    for label, curve in measured["curves"].items():
        values = [value for _, value in curve]
        first, last = values[0], sum(values[-3:]) / 3
        assert last > first + 0.1, label  # five standard errors of a share of 512


@pytest.mark.nightly
def test_all_recipes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for recipe in CURVES:
        for command in commands(recipe):
            words = shlex.split(command)
            if words[0] == "python":
                for name, make, seed in (("train", problems.problem, 0), ("pairs", problems.pair, 1)):
                    problems.write(f"{name}.jsonl", make, 500, seed)
                problems.write("held_out.jsonl", problems.problem, 40, 2)
                write_pairs()
                continue
            if recipe == "lora":
                try:
                    import peft  # noqa: F401  # type: ignore[import-untyped,unused-ignore]
                except ImportError:
                    continue
            assert main([*words[1:], *(smaller(ROOT / words[2]) if words[1] == "train" else ())]) == 0, command
            if words[1] == "train":
                [output] = [change[7:] for change in words if change.startswith("output=")] or [
                    tomllib.loads((ROOT / words[2]).read_text("utf-8"))["output"]
                ]
                records = [json.loads(line) for line in (tmp_path / output / "metrics.jsonl").read_text().splitlines()]
                assert records[-1]["step"] >= 1


def write_pairs() -> None:
    for name, target, seed in (("train", "pairs", 3), ("held_out", "held_out_pairs", 4)):
        pairs.write(problems.FOLDER / f"{name}.jsonl", pairs.FOLDER / f"{target}.jsonl", seed)


def smaller(path: Path) -> Iterator[str]:
    """Changes with which a run takes two small steps."""
    table: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    changes = ["steps=2", "B=8"]
    if "evaluation" in table:
        changes += ["evaluation.dims.B=8", "evaluation.every=2"]
    if "update" in table:
        changes += ["update.rows=16", 'update.short="repeat"']
    return itertools.chain.from_iterable(("--set", change) for change in changes)


# -- their own parts


@lawful(EVERY_RANK, max_examples=20)
class TestEveryRank:
    """Laws of the custom protocol."""


def test_advantages_stay_in_their_groups() -> None:
    check_rows(advantages_over_mean, given={"group": 4}, multiple=4, max_examples=20)


@given(st.floats(-1, 1), st.sampled_from([-2.0, -0.5, 0.5, 2.0]), st.floats(0.1, 0.5))
def test_the_gradient_of_the_loss_falls_along_a_line(gap: float, advantage: float, epsilon: float) -> None:
    log_probs = torch.tensor([[gap]], dtype=torch.float64, requires_grad=True)
    ones = torch.ones(1, 1, dtype=torch.float64)
    terms = Quadratic(epsilon=epsilon)(log_probs, 0 * ones, advantage * ones, ones)
    [gradient] = torch.autograd.grad(terms.loss.sum(), [log_probs])
    ratio = log_probs.exp().item()
    beyond = (ratio - 1) * (1 if advantage > 0 else -1) / epsilon  # 1 where the gradient vanishes
    assert gradient.item() == pytest.approx(-ratio * advantage * (1 - beyond))
    assert terms.clipped.item() == (beyond > 1)


@given(st.integers(1, 6), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(samples: int, data: st.DataObject) -> None:
    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    draws = list(itertools.combinations([True] * right + [False] * (samples - right), k))
    assert pass_at(k, right, samples) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_a_solution_solves_its_problem_and_the_worse_one_does_not() -> None:
    import random

    draw = random.Random(0)
    for _ in range(500):
        row = problems.pair(draw)
        assert problems.solved(row["solution"], row) == 1
        assert problems.solved(row["worse"], row) == 0
        assert len(row["question"]) <= 40
        assert max(len(row["solution"]), len(row["worse"])) < 10


def test_a_reward_model_learns_is_evaluated_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    problems.write("train.jsonl", problems.problem, 64, 0)
    problems.write("held_out.jsonl", problems.problem, 16, 2)
    write_pairs()
    rows = [json.loads(line) for line in (pairs.FOLDER / "pairs.jsonl").read_text().splitlines()]
    assert all(problems.solved(row["better"], row) == 1 for row in rows)
    assert all(problems.solved(row["worse"], row) == 0 and 0 < len(row["worse"]) <= 8 for row in rows)

    supervised = tomllib.loads((EXAMPLES / "mathematics/supervised.toml").read_text("utf-8"))
    new = [f"data.tokenizer={value_text(supervised['data']['tokenizer'])}", "reward.model.path=none"]
    new += [f"reward.model.config={value_text(supervised['actor']['model']['config'])}"]
    changes = [*smaller(EXAMPLES / "reward_model/reward.toml")]
    changes += itertools.chain.from_iterable(("--set", change) for change in new)
    assert main(["train", str(EXAMPLES / "reward_model/reward.toml"), *changes]) == 0
    records = [json.loads(line) for line in Path("runs/reward_model/reward/metrics.jsonl").read_text().splitlines()]
    assert ["held_out/correct" in record for record in records] == [True, False, True]
    assert records[0]["held_out/correct"] == 0  # a new head gives every answer the same score
    assert main(["export", "runs/reward_model/reward", "-o", "model"]) == 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in Path("model").iterdir()}
