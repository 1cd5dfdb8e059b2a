"""A falling schedule without its end lasts as long as the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfdsl.errors import ConfigError, ResourceError
from hfdsl.rl.models.learning import lr_factor
from hfdsl.rl.training.config import load
from hfdsl.rl.workers.config import OptimizerConfig
from hfdsl.tools.training import Finder

ROOT = Path(__file__).parents[3]
SCHEDULE = "actor.training.optimizer.schedule=cosine"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def optimizer(*changes: str) -> Any:
    config: Any = load("examples/spelling.toml", changes).config
    return config.actor.training.optimizer


@pytest.mark.parametrize(
    ("changes", "total"),
    [
        ((SCHEDULE,), 60 * 2),  # 60 steps, and two updates in each
        ((SCHEDULE, "steps=7", "options.updates=4"), 7 * 4),
        ((SCHEDULE, "actor.training.optimizer.total_steps=50"), 50),
        (("steps=7",), None),
    ],
)
def test_the_end_is_that_of_the_run(changes: tuple[str, ...], total: int | None) -> None:
    assert optimizer(*changes).total_steps == total


def test_epochs_of_mini_batches_count(tmp_path: Path) -> None:
    run = Path("examples/spelling.toml").read_text("utf-8")
    text = run.replace("grpo:grpo", "ppo:ppo").replace("group = 8\n", "epochs = 3\nmini_batches = 4\n")
    file = tmp_path / "ppo.toml"
    file.write_text(
        f'{text}\n[critic]\nmodel = "$actor.model"\ntraining = {{ optimizer = {{ schedule = "linear" }} }}\n'
    )
    config: Any = load(file, ["steps=10"]).config
    assert config.critic.training.optimizer.total_steps == 10 * 3 * 4


def test_a_role_that_does_not_learn_has_no_end() -> None:
    config: Any = load("examples/spelling_supervised.toml", [SCHEDULE, "steps=9"]).config
    assert config.actor.training.optimizer.total_steps == 9


def test_a_schedule_without_an_end_is_refused_outside_of_a_configured_run() -> None:
    with pytest.raises(ResourceError, match='HF812: schedule = "linear" needs total_steps'):
        lr_factor(OptimizerConfig(schedule="linear"), 0)
    assert lr_factor(OptimizerConfig(), 5) == 1.0


def test_updates_in_rounds_have_no_known_number(tmp_path: Path) -> None:
    flows = tmp_path / "flows.py"
    flows.write_text(ROUNDS)
    run = Path("examples/spelling.toml").read_text("utf-8")
    run = run.replace("hfdsl.rl.dataflows.grpo:grpo", f"{flows}:learning_round")
    run = run[: run.index("[evaluation]")] + run[run.index("[checkpoints]") :]
    run = run[: run.index("[reference]")] + run[run.index("[reward]") :]
    update = '[update]\nalgorithm = "hfdsl.rl.dataflows.dapo:dapo_update"\nrows = 64\n'
    file = tmp_path / "rounds.toml"
    file.write_text(run.replace("[options]\ngroup = 8\nloss = { kl = 0.0 }\n", update))
    with pytest.raises(ConfigError, match=r"total_steps' is missing: only the run knows how many rounds"):
        load(file, [SCHEDULE], Finder())


ROUNDS = """
import hfdsl as hf
from hfdsl.rl.batches import Experience, Prompts
from hfdsl.rl.functions import group_advantages
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor, Reward


@hf.dataflow
def learning_round(prompts: Prompts, actor: Actor, reward: Reward) -> Experience:
    questions = hf.repeat(prompts, 2)
    rollout = actor.generate(questions)
    advantages = group_advantages(rollout, reward.score(questions, rollout), group=2)
    experience = hf.merge(Experience, rollout, advantages)
    actor.update(experience, loss=Clip())
    return experience
"""
