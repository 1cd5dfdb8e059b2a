"""The data of a run is shuffled, so that only ``hf.repeat`` puts the responses to one prompt next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.graph.dataflow import Dataflow
from hfdsl.rl.batches import ActorMetrics, B, Experience, P, Prompts, R, Scores
from hfdsl.rl.functions import centered_advantages
from hfdsl.rl.losses import Clip
from hfdsl.rl.workers import Actor, Reward
from hfdsl.tools.target import load

ROOT = Path(__file__).parents[3]
RUN = Path("tests/check/fixtures_config/hf314_group.toml")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@hf.dataflow
def unrepeated(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 4) -> ActorMetrics:
    rollout = actor.generate(prompts)
    gains = centered_advantages(rollout, reward.score(prompts, rollout), group=group)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip())


@hf.dataflow
def repeated(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 4) -> ActorMetrics:
    prompts = hf.repeat(prompts, group)
    rollout = actor.generate(prompts)
    gains = centered_advantages(rollout, reward.score(prompts, rollout), group=group)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip())


@hf.function(rows=hf.GroupedBy("group"))
def in_tournaments(scores: Scores, *, group: int) -> Scores:
    """Lets responses to different prompts compete."""
    score = scores.score.tensor.view(-1, group)
    return Scores(score=score.argsort(1).argsort(1).flatten().float())


@hf.dataflow
def in_groups_of_its_own(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 4) -> ActorMetrics:
    ranked = in_tournaments(reward.score(prompts, actor.generate(prompts)), group=group)
    questions = hf.repeat(prompts, group)
    rollout = actor.generate(questions)
    gains = centered_advantages(rollout, hf.repeat(ranked, group), group=group)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip())


@hf.function(rows=hf.GroupedBy("group"))
def copied(prompts: Prompts, *, group: int) -> Prompts:
    """Puts copies of the first prompt of a group in the place of the others."""
    first = [row - row % group for row in range(len(prompts.ids.tensor))]
    tasks = [prompts.task.objects[row] for row in first]
    return Prompts(ids=prompts.ids.tensor[first], mask=prompts.mask.tensor[first], task=tasks)


@hf.dataflow
def copied_by_a_function(prompts: Prompts, actor: Actor, reward: Reward, *, group: int = 4) -> ActorMetrics:
    questions = copied(prompts, group=group)
    rollout = actor.generate(questions)
    gains = centered_advantages(rollout, reward.score(questions, rollout), group=group)
    return actor.update(hf.merge(Experience, rollout, gains), loss=Clip())


def run_of(flow: Dataflow[..., Any], folder: Path) -> list[hf.Report]:
    text = RUN.read_text("utf-8").replace("hfdsl.rl.dataflows.grpo:grpo", f"{__name__}:{flow.body.__name__}")
    text = text.replace("group = 1", "group = 4").replace('[reference]\nmodel = "$actor.model"\n', "")
    file = folder / "run.toml"
    file.write_text(text, "utf-8")
    return list(load(str(file)).reports(elsewhere=True))


def test_a_group_of_shuffled_prompts_is_of_different_questions(tmp_path: Path) -> None:
    [report] = run_of(unrepeated, tmp_path)
    [finding] = report.findings
    assert finding.code == "HF330"
    assert finding.message == (
        "'centered_advantages' reads groups of 4 rows, but nothing repeats 'prompts': a run shuffles its data, so the "
        "rows of a group belong to different questions"
    )
    assert finding.help == ("if 'prompts' has one row for each question, begin with prompts = hf.repeat(prompts, 4)",)


def test_the_order_of_other_data_is_not_known() -> None:
    assert unrepeated.check(None, {B: 4, P: 8, R: 6}).codes == ()


def test_groups_that_the_dataflow_makes(tmp_path: Path) -> None:
    assert [report.codes for report in run_of(repeated, tmp_path)] == [()]


@pytest.mark.parametrize("flow", [in_groups_of_its_own, copied_by_a_function], ids=lambda flow: flow.body.__name__)
def test_functions_of_the_user_on_groups_may_have_other_reasons(flow: Dataflow[..., Any], tmp_path: Path) -> None:
    codes = [code for report in run_of(flow, tmp_path) for code in report.codes]
    assert "HF330" not in codes


@pytest.mark.parametrize("example", ["dpo/dpo", "reward_model/reward"])
def test_pairs_stay_together(example: str) -> None:
    reports = load(f"examples/{example}.toml").reports(elsewhere=True)
    assert "HF330" not in [code for report in reports for code in report.codes]
