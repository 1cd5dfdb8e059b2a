"""Rounds of sampling fill the batch of an update: with just the rows that they keep, in order, and no more rounds."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import ConfigError, SizeError
from hfdsl.rl.batches import ActorMetrics, Experience
from hfdsl.rl.losses import Clip
from hfdsl.rl.training.config import from_table, load
from hfdsl.rl.training.experiments import Experiments, compiled
from hfdsl.rl.training.loop import Ended, prepare, train
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.toml.tables import to_toml
from hfdsl.rl.workers import Actor
from hfdsl.runtime.running import Running
from hfdsl.testing import replay
from hfdsl.tools import output
from hfdsl.tools.cli import main
from hfdsl.types.batches import Batch
from tests.rl.training.test_loop import PLACES, lines, weights
from tests.rl.training.toy import table as toy

ROWS = 16
UPDATE = {"algorithm": "tests.rl.training.toy:learning", "rows": ROWS, "options": {"parts": 2}}


def table(folder: Path, **update: Any) -> dict[str, Any]:
    return toy(folder, algorithm="tests.rl.training.toy:asking", update={**UPDATE, **update})


def run(folder: Path, *changes: str, resume: bool = False, **update: Any) -> Ended:
    return train(from_table(table(folder.parent, **update), [f"output={folder}/run", *changes]), resume=resume)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Batch, Any]]:
    """The steps of all plans: what each was given, and what it gave."""
    steps: list[tuple[str, Batch, Any]] = []
    real: Callable[..., Any] = Running.step

    def step(self: Running, batch: Batch) -> Any:
        result = real(self, batch)
        if self.plan.name != "looking":
            steps.append((self.plan.name, batch, result))
        return result

    monkeypatch.setattr(Running, "step", step)
    return steps


def same(batch: Batch, other: Batch) -> bool:
    columns, others = (
        {name: value for name, value in record.__hf_columns__.items() if value is not None} for record in (batch, other)
    )
    return columns.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in columns.items())


@pytest.mark.parametrize("before", [{}, {"update": {"algorithm": "tests.rl.training.toy:unused", "rows": 1}}])
def test_a_change_of_the_whole_table_is_the_update(before: dict[str, Any], tmp_path: Path) -> None:
    """Of a file without an update or with another one; it used to be recorded, and not run."""
    written = table(tmp_path)
    change = 'update={algorithm="tests.rl.training.toy:learning",rows=12,options={parts=2}}'
    without = {name: value for name, value in written.items() if name != "update"}
    loaded = from_table({**without, **before}, [change, "update.rows=16"])
    assert str(loaded.config) == str(from_table(written).config)
    assert loaded.update is not None
    assert loaded.update.trace().name == "learning"
    assert from_table(written, ["update=none"]).update is None
    with pytest.raises(ConfigError, match="HF901"):
        from_table(written, ["update=3"])


def test_an_update_has_the_first_rows_that_rounds_keep(tmp_path: Path, stepped: list[tuple[str, Batch, Any]]) -> None:
    run(tmp_path / "one", "evaluation=none")
    batches: list[Batch] = []
    expected = []
    for name, batch, result in stepped:
        if name == "asking":
            assert sum(map(len, batches)) < ROWS  # no more rounds than it takes
            batches.append(result[0])
        else:
            assert len(batch) == ROWS
            assert same(batch, type(batch).__hf_concat__(batches)[:ROWS])
            expected.append((len(batches), sum(map(len, batches))))
            batches = []
    assert not batches
    assert max(rounds for rounds, _ in expected) > 1
    assert any(rows > ROWS for _, rows in expected)  # some rows were dropped
    metrics = lines(tmp_path / "one")
    assert [(record["rounds/number"], record["rounds/kept"]) for record in metrics] == expected
    assert {"policy/loss", "outcome/score"} <= metrics[0].keys()
    scores = [result[1].score.value for name, _, result in stepped[: expected[0][0]]]
    assert metrics[0]["outcome/score"] == pytest.approx(sum(scores) / len(scores))
    stated = json.loads((checkpoints.latest(tmp_path / "one/run/checkpoints") / "checkpoint.json").read_text())
    dispatched = 6 * sum(rounds for rounds, _ in expected)
    assert stated["cursor"]["epoch"] * 64 + stated["cursor"]["position"] == dispatched


@pytest.mark.parametrize("stop", [3, 4])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, stop: int) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(straight)
    run(stopped, f"steps={stop}")
    assert run(stopped, resume=True, rounds=20, short="repeat") == Ended(6, stopped=False)  # a full batch is the same
    assert lines(stopped)[-1] == lines(straight)[-1]
    assert weights(stopped) == weights(straight)
    assert lines(stopped, "samples.jsonl")[-4:] == lines(straight, "samples.jsonl")[-4:]


@pytest.mark.nightly
def test_rounds_on_ray_and_other_pools_give_the_same_bits(tmp_path: Path, ray_cluster: Any) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run(here, "steps=3")
    pools = {"one": {"processes": [2], "gpu": False}, "two": {"processes": [1], "gpu": False}}
    moved = {**table(tmp_path), "deployment": {**PLACES["split"], "pools": pools}}
    train(from_table(moved, [f"output={there}/run", "steps=3", "backend=ray"]))
    assert lines(there) == lines(here)
    assert weights(there) == weights(here)


def test_what_is_recorded_is_the_update(tmp_path: Path) -> None:
    run(tmp_path / "one", "steps=2", "record=[2]")
    replayed = replay(tmp_path / "one/run/recorded/step-2", "policy.update#2")
    assert replayed.same, str(replayed)


def test_rounds_that_do_not_fill_the_batch_end_the_run(tmp_path: Path, stepped: list[tuple[str, Batch, Any]]) -> None:
    with pytest.raises(
        SizeError, match=r"HF321: step 1: 'learning' takes 16 rows, and 3 rounds of 'asking' keep only 0; "
    ):
        run(tmp_path / "none", "options.above=2.0", rounds=3, short="repeat")
    assert [name for name, *_ in stepped] == ["asking"] * 3
    with pytest.raises(SizeError, match=r'HF321: .* update\.rounds, or .* update\.short = "repeat"$'):
        run(tmp_path / "few", "options.above=0.85", rounds=2)


def test_rows_start_over_where_that_is_asked_for(tmp_path: Path, stepped: list[tuple[str, Batch, Any]]) -> None:
    run(tmp_path / "few", "options.above=0.85", "steps=1", rounds=2, short="repeat")
    [first, second, (_, batch, _)] = stepped
    rows = type(batch).__hf_concat__([first[2][0], second[2][0]])
    assert 0 < len(rows) < ROWS
    assert len(batch) == ROWS
    assert same(batch[: len(rows)], rows)
    assert same(batch[len(rows) : len(rows) + 1], rows[:1])


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"rounds": 1}, "keeps at most 12 rows: update.rounds = 1 is too few, 2 may be enough"),
        ({"algorithm": "tests.rl.training.toy:looking", "options": {}}, "returns none; it must return one"),
        ({"algorithm": "tests.rl.training.toy:LETTERS"}, "'update.algorithm': 'abcdefgh' is neither a dataflow"),
        ({"rounds": 0}, "'update.rounds' must be at least 1, got 0"),
        ({"short": "skip"}, "'update.short' takes 'raise' or 'repeat', got 'skip'"),
        ({"options": {"part": 2}}, "there is no field 'part' in 'update.options'; did you mean 'parts'"),
    ],
)
def test_what_does_not_go_together_is_reported_before_the_start(
    tmp_path: Path, update: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="HF901") as caught:
        prepare(from_table(table(tmp_path, **update)))
    assert message in str(caught.value)


def test_the_rows_of_an_update_cut_no_group(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"HF901: update\.rows = 16 would cut a group: 'asking' keeps groups of 3 rows"
    ):
        prepare(from_table(table(tmp_path), ["options.group=3"]))


def test_a_check_sees_the_update_with_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(to_toml(table(tmp_path)))
    assert main(["check", "run.toml"]) == output.OK
    text = capsys.readouterr().out
    assert "check of 'asking': no findings" in text
    assert "check of 'learning': no findings" in text
    assert main(["check", "run.toml", "--set", "update.options.parts=3"]) == output.FINDINGS
    text = capsys.readouterr().out
    assert "check of 'asking': no findings" in text
    assert "error[HF" in text.partition("check of 'asking'")[2]


def test_a_plan_a_drawing_and_a_run_are_of_rounds_and_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(to_toml(table(tmp_path, short="repeat")))
    assert main(["plan", "run.toml"]) == output.OK
    text = capsys.readouterr().out
    assert "a step is rounds of 'asking', at most 10, until they keep 16 rows (fewer start over" in text
    assert text.index("plan of 'asking'") < text.index("plan of 'learning'") < text.index("policy.update#2")
    assert main(["plan", "run.toml", "--format", "json"]) == output.OK
    plans = json.loads(capsys.readouterr().out)
    assert plans["rounds"] == {"rows": ROWS, "most": 10, "short": "repeat"}
    labels = [[step["label"] for step in plans[name]["steps"]] for name in ("plan", "update")]
    assert labels == [["policy.generate", "reward.score", "good", "outcome"], ["policy.update#1", "policy.update#2"]]
    assert main(["draw", "run.toml"]) == output.OK
    drawing = capsys.readouterr().out
    assert 'out0 -->|"16 rows · of 10 rounds at most"| un0' in drawing
    assert {"policy.generate", "policy.update#1"} <= set(re.findall(r'"(policy[^<"]*)', drawing))
    assert main(["draw", "run.toml", "-o", "step.svg"]) == output.OK
    assert "policy.update#2" in Path("step.svg").read_text()


def test_steps_of_a_run_are_those_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(to_toml(table(tmp_path)))
    assert main(["train", "run.toml", "--set", "evaluation=none", "--set", "steps=3"]) == output.OK
    capsys.readouterr()
    assert main(["run", "run.toml", "--steps", "3", "--format", "json"]) == output.OK
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    trained = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [0, 1, 2]
    for step, record in zip(steps, trained, strict=True):
        values = ast.literal_eval(step["result"])
        assert values["rounds/kept"] >= ROWS
        assert values == {name: record[name] for name in values}
        assert step["nodes"].keys() >= {"policy.generate", "policy.update#2"}
    for command in (["run", "run.toml", "--trace", "t.json"], ["plan", "run.toml", "--predict", "t.json"]):
        assert main(command) == output.USAGE
        assert "covers one dataflow, and a step is rounds of 'asking'" in capsys.readouterr().err
    assert not Path("t.json").exists()


def test_a_check_reports_rounds_that_do_not_go_with_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(to_toml(table(tmp_path, rounds=1)))
    assert main(["check", "run.toml"]) == output.FINDINGS
    captured = capsys.readouterr()
    assert "error[HF901]: update.rows = 16, and 'asking' keeps at most 12 rows" in captured.out + captured.err


DAPO = """
algorithm = "hfdsl.rl.dataflows.dapo:dapo_round"
options = { group = 4, longest = 4, buffer = 1 }
output = "run"
steps = 2
dims = { B = 8, P = 2, R = 4 }
roles = { reward = "hfdsl.rl.workers:Verifier" }

[update]
algorithm = "hfdsl.rl.dataflows.dapo:dapo_update"
options = { updates = 2 }
rows = 32

[deployment]
pools = { all = { processes = [2], gpu = false } }
default = { pool = "all" }

[data]
source = { kind = "JsonLines", path = "letters.jsonl" }
tokenizer = { kind = "Characters", alphabet = "abcdefgh" }
prompt = { text = "{word}" }

[actor]
generation = { max_tokens = 4 }

[actor.model]
seed = 0

[actor.model.config]
model_type = "qwen2"
vocab_size = 11
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
eos_token_id = 1
pad_token_id = 0

[reward]
function = "tests.rl.training.test_rounds:has_an_a"
tokenizer = "$data.tokenizer"
"""


def has_an_a(response: str, task: dict[str, Any]) -> float:
    return float("a" in response)


WRONG: list[tuple[list[str], str]] = [
    (["update.options.updates=3"], "HF310"),
    (["update.rows=28", "update.options.updates=8"], "HF310"),
    (["update.rows=4", "update.options.updates=4"], "HF310"),
    (["update.algorithm=tests.rl.training.test_rounds:misspelled"], "HF202"),
    (["update.algorithm=hfdsl.rl.dataflows.grpo:grpo"], "HF507"),
    (['evaluation={source={kind="JsonLines", path="letters.jsonl"}, dims={B=3}}'], "HF310"),
]


@hf.dataflow
def misspelled(experience: Experience, actor: Actor) -> ActorMetrics:
    return actor.update(experience, losss=Clip(0.2))  # type: ignore[call-arg]  # the mistake


@pytest.mark.parametrize(("changes", "code"), WRONG)
def test_a_mistake_in_the_update_is_reported_once(
    changes: list[str],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    toy(tmp_path)
    Path("run.toml").write_text(DAPO)
    sets = [text for change in changes for text in ("--set", change)]
    of_a_step = [] if "evaluation" in changes[0] else ["plan", "draw", "run"]
    for command in ("check", "train", *of_a_step):
        assert main([command, "run.toml", *sets]) == output.FINDINGS
        captured = capsys.readouterr()
        assert re.findall(r"(?:error|warning)\[(HF\d+)\]", captured.out + captured.err) == [code], command
    with pytest.raises(hf.CheckError) as caught:
        prepare(load("run.toml", changes))
    assert caught.value.report.codes == (code,)


def test_dapo_trains_on_full_batches_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy(tmp_path)
    Path("run.toml").write_text(DAPO)
    loaded = load("run.toml")
    experiments = Experiments.of(loaded)
    assert [compiled(experiment).report.codes for experiment in experiments] == [(), ()]
    assert main(["train", "run.toml"]) == output.OK
    metrics = lines(tmp_path)
    assert [record["step"] for record in metrics] == [1, 2]
    assert all(record["rounds/kept"] >= 32 and record["actor/grad_norm"] > 0 for record in metrics)
