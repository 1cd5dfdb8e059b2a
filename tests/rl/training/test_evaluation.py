"""Evaluations with roles that the training does not have, each with a table of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

import hfdsl as hf
from hfdsl.errors import ConfigError
from hfdsl.rl.batches import Outcome, Pairs, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome, pair_outcome
from hfdsl.rl.training.algorithms import PPO
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import from_config, from_table, load
from hfdsl.rl.training.config_names import by_name, read_names
from hfdsl.rl.training.experiments import Experiments
from hfdsl.rl.training.json_schema import json_schema
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.toml.tables import to_toml
from tests.rl.training import test_samplers, toy

BY_RULE = "hfdsl.rl.training.evaluation:evaluate_by_rule"
RULE = f"{__name__}:share_of_places"


def share_of_places(response: list[int], task: dict[str, Any]) -> float:
    """A rule: how much of the longest response is used."""
    return len(response) / 8


def by_rule(folder: Path, **changes: Any) -> dict[str, Any]:
    """PPO that an untrained reward model rewards, evaluated by a rule."""
    table = test_samplers.table(folder, "ppo:ppo")
    del table["sampler"], table["deployment"]["roles"]
    table["roles"] = {"reward": "hfdsl.rl.workers:RewardModel"}
    table["evaluation"]["algorithm"] = BY_RULE
    return {
        **table,
        "reward": {"model": table["critic"]["model"]},
        "verifier": {"function": RULE},
        "steps": 2,
    } | changes


def judged_table(folder: Path, **changes: Any) -> dict[str, Any]:
    table = toy.table(folder, **changes)
    table["evaluation"]["algorithm"] = "tests.rl.training.toy:judged"
    return table


def test_a_rule_judges_what_a_model_rewards(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    loaded = from_table(by_rule(tmp_path))
    assert isinstance(loaded.config, PPO)
    assert [report.codes for report in ConfigCheck().reports(loaded)] == [("HF967",), ()]
    train(loaded)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    shares = [record["held_out/score"] for record in records if "held_out/score" in record]
    samples = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert len(shares) == 2
    assert samples
    assert all(0 < sample["score"] <= 1 for sample in samples), "those of the untrained reward model are 0"


def test_the_run_has_the_roles_of_both(tmp_path: Path) -> None:
    loaded = from_table(judged_table(tmp_path, judge={"scale": 2}))
    assert list(loaded.roles) == ["policy", "judge", "reward"]
    assert loaded.deployment()["judge"].kwargs == {"scale": 2.0, "bonus": 0}
    experiments = dict(Experiments.of(loaded).items())
    assert list(experiments["evaluation"].compile().graph.roles) == ["policy", "judge"]
    assert list(experiments[""].compile().graph.roles) == ["policy", "reward"]


@hf.dataflow
def following(prompts: Prompts, policy: toy.Policy, reward: toy.Follows) -> Outcome:
    """An evaluation with the name of the training's dataflow."""
    rollout = policy.generate(prompts, width=2, greedy=True)
    return outcome(rollout, reward.score(prompts, rollout))


def test_an_evaluation_may_have_the_name_of_the_training(tmp_path: Path) -> None:
    table = toy.table(tmp_path, steps=2)
    assert from_table(table).algorithm.trace().name == following.trace().name
    table["evaluation"]["algorithm"] = f"{__name__}:following"
    train(from_table(table))
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert ["held_out/score" in record for record in records] == [True, False, True]
    train(from_table({**table, "steps": 4}), resume=True)
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]


class Tally(hf.Worker):
    """Scores responses, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("tally")
    def score(self, prompts: Prompts, rollout: Rollout) -> Scores:
        self.count += len(prompts)
        return Scores(score=rollout.log_probs.tensor.sum(1))


@hf.dataflow
def tallied(prompts: Prompts, policy: toy.Policy, tally: Tally) -> Outcome:
    rollout = policy.generate(prompts, width=2, greedy=True)
    return outcome(rollout, tally.score(prompts, rollout))


def test_an_evaluation_may_write_a_state_of_its_own(tmp_path: Path) -> None:
    table = toy.table(tmp_path)
    table["evaluation"]["algorithm"] = f"{__name__}:tallied"
    reports = ConfigCheck(elsewhere=True).reports(from_table(table))
    assert "HF781" not in [code for report in reports for code in report.codes]


def test_its_role_is_configured_by_changes_and_read_again(tmp_path: Path) -> None:
    loaded = from_table(judged_table(tmp_path), ["judge.scale=3"])
    file = tmp_path / "again.toml"
    file.write_text(to_toml(loaded.table()))
    assert load(file).table() == loaded.table()
    assert from_config(from_table(by_rule(tmp_path)).config).roles["verifier"].__name__ == "Verifier"


def test_an_evaluation_can_have_a_sampler_that_the_training_has_not(tmp_path: Path) -> None:
    table = test_samplers.table(tmp_path, "grpo:grpo")
    pairs = {key: table[key] for key in ("actor", "reference", "sampler", "reward", "data", "deployment", "evaluation")}
    offline = {"algorithm": "hfdsl.rl.dataflows.dpo:dpo", "dims": table["dims"], "steps": 1, "output": "run"}
    loaded = from_table({**pairs, **offline, "roles": table["roles"]})
    assert set(loaded.roles) == {"actor", "reference", "sampler", "reward"}
    assert "sampler" not in loaded.algorithm.trace().roles
    assert Experiments.of(loaded).evaluation is not None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, r"the evaluation has a role 'judge', and there is no table \[judge\] \(JudgeArguments\); the roles of .*"),
        ({"judge": {"scael": 2}}, "there is no field 'scael' in 'judge'; did you mean 'scale'"),
        ({"judge": {"scale": "2"}}, "'judge.scale' takes float, got '2'"),
        ({"judge": {"scale": 2}, "roles": {"judg": "tests.rl.training.toy:Follows"}}, "did you mean 'judge'"),
    ],
)
def test_a_role_that_is_not_configured_is_reported(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"HF901: .*{text}"):
        from_table(judged_table(tmp_path, **changes))


def test_a_rule_that_does_not_exist_is_found_before_launch(tmp_path: Path) -> None:
    loaded = from_table(by_rule(tmp_path, verifier={"function": "tests.rl.workers.tiny:share_of_seven"}))
    report, _ = ConfigCheck().reports(loaded)
    [finding] = [finding for finding in report if finding.code != "HF967"]
    assert (finding.code, "share_of_sevens" in finding.message) == ("HF812", True)


def test_the_schema_has_its_table(tmp_path: Path) -> None:
    table = by_rule(tmp_path)
    schema = Draft7Validator(json_schema(read_names(table, (), by_name)[0].kind, "test"))
    assert list(schema.iter_errors(json.loads(json.dumps(table)))) == []
    [error] = schema.iter_errors(json.loads(json.dumps({**table, "verifier": {"functon": "a:b"}})))
    assert "functon" in error.message


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.sampled_from([1.0, 0.0, -1.0])), min_size=1))
def test_pairs_are_in_order_where_the_better_one_scores_more(rows: list[tuple[float, float, float]]) -> None:
    score = torch.tensor([value for first, second, _ in rows for value in (first, second)])
    sign = torch.tensor([value for _, _, better in rows for value in (better, -better)])
    ids, mask = torch.zeros(len(score), 2, dtype=torch.int64), torch.ones(len(score), 2, dtype=torch.bool)
    pairs = Pairs(ids=ids, mask=mask, response_mask=mask[:, 1:], preference=sign)
    result = pair_outcome(pairs, Scores(score=score))
    numbers = score.double().tolist()
    decided = [
        (numbers[2 * i], numbers[2 * i + 1])[:: 1 if better > 0 else -1]
        for i, (_, _, better) in enumerate(rows)
        if better
    ]
    right = sum(better > worse for better, worse in decided)
    count = max(len(decided), 1)
    assert result.correct.value == pytest.approx(right / count)
    assert result.margin.value == pytest.approx(sum(better - worse for better, worse in decided) / count, abs=1e-9)
