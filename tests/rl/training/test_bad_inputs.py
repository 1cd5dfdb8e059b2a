"""A failure within a run is reported with row, step and role, and the run continues from its last checkpoint."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hfdsl.rl.training.preflight import first_rows
from hfdsl.tools import output
from hfdsl.tools.cli import main

CONFIG = """
algorithm = "hfdsl.rl.dataflows.grpo:grpo"
options = { group = 2 }
output = "run"
steps = 4
dims = { B = 2, P = 4, R = 3 }
roles = { reward = "hfdsl.rl.workers:Verifier" }

[deployment]
pools = { all = { processes = [2], gpu = false } }
default = { pool = "all" }

[data]
source = { kind = "JsonLines", path = "words.jsonl" }
tokenizer = { kind = "Characters", alphabet = "abcdefgh" }
prompt = { text = "{word}" }

[checkpoints]
every = 1

[actor]
generation = { max_tokens = 3 }

[actor.model.config]
model_type = "qwen2"
vocab_size = 11
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
max_position_embeddings = 16
eos_token_id = 1
pad_token_id = 0

[reference]
model = "$actor.model"

[reward]
function = "tests.rl.training.test_bad_inputs:by_word"
tokenizer = "$data.tokenizer"
"""


def by_word(response: str, task: dict[str, Any]) -> Any:
    """The reward that a row asks for, which may be none."""
    if task.get("raises"):
        raise LookupError("no such answer")
    return task.get("reward", len(response) % 2)


IN_A_STEP = r"error\[HF811\]: step 3: 'reward\.score' on rank [01]: row [0-3]: "


BAD: list[tuple[dict[str, Any], str]] = [
    ({"wort": "gh"}, r"error\[HF902\]: words\.jsonl:8: the row has no field 'word'; did you mean 'wort'\?"),
    ({"word": "abcde"}, r"error\[HF903\]: words\.jsonl:8: its prompt has 5 tokens, more than P = 4: 'abcde'"),
    ({"word": "x"}, r"error\[HF902\]: words\.jsonl:8: the tokenizer does not know all of 'x'"),
    (
        {"word": "gh", "raises": True},
        IN_A_STEP + r"its rule raised LookupError: no such answer \(.*/test_bad_inputs\.py",
    ),
    ({"word": "gh", "reward": float("nan")}, IN_A_STEP + r"its reward is nan, expected a finite number; .*'gh'"),
    ({"word": "gh", "reward": "1"}, IN_A_STEP + r"its reward is '1', expected a number; the response is"),
    ({"word": "gh", "reward": "much"}, IN_A_STEP + r"its reward is 'much', expected a number; the response is"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(CONFIG)
    rows([{"word": word} for word in ("a", "b", "c", "d", "ab", "bc", "cd", "de")])
    return tmp_path


def rows(rows_of_file: list[dict[str, Any]]) -> None:
    Path("words.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows_of_file))


@pytest.mark.parametrize(("row", "message"), BAD)
def test_a_bad_row_ends_the_run_and_its_checkpoint_is_good(
    row: dict[str, Any],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = [{"word": word} for word in ("a", "b", "c", "d", "ab", "bc", "cd")]
    monkeypatch.setattr(first_rows, "FIRST_ROWS", len(good))  # the check does not know the row
    rows([*good, row])
    assert main(["train", "run.toml", "--set", "data.seed=2"]) == output.FINDINGS
    text = capsys.readouterr().err
    assert re.search(message, text), text
    assert "the last complete checkpoint is run/checkpoints/step-00000002; --resume continues from it" in text
    rows([*good, {"word": "gh"}])
    assert main(["train", "run.toml", "--set", "data.seed=2", "--resume"]) == output.FINDINGS
    assert "--accept data accepts the changes" in capsys.readouterr().err
    assert main(["train", "run.toml", "--set", "data.seed=2", "--resume", "--accept", "data"]) == output.OK
    steps = [json.loads(line)["step"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]


def test_a_checkpoint_that_a_run_cannot_go_on_from_is_not_offered(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.toml", "--set", "steps=2"]) == output.OK
    capsys.readouterr()
    assert main(["train", "run.toml", "--resume", "--set", "actor.model.config.hidden_size=32"]) == output.FINDINGS
    text = capsys.readouterr().err
    assert "actor.model.config.hidden_size: 16 in the checkpoint, 32 now" in text
    assert "no role can continue" in text
    assert "--resume" not in text
    [file] = Path("run/checkpoints/step-00000002").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    assert main(["train", "run.toml", "--resume"]) == output.FINDINGS
    text = capsys.readouterr().err
    assert f"HF906]: {file.absolute()} cannot be read" in text
    assert (
        "run/checkpoints/step-00000002, is damaged; without that folder, --resume continues from step-00000001" in text
    )
    Path("run/checkpoints/step-00000002/checkpoint.json").write_text("")
    assert main(["train", "run.toml", "--resume"]) == output.FINDINGS
    text = capsys.readouterr().err
    assert "HF906]: 'run/checkpoints/step-00000002' cannot be read" in text
    assert "without that folder, --resume continues from step-00000001" in text
    assert "the last complete checkpoint" not in text
    shutil.rmtree("run/checkpoints/step-00000002")
    assert main(["train", "run.toml", "--resume", "--set", "steps=2"]) == output.OK


def test_a_trace_that_cannot_be_written_is_reported_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "run.toml", "--trace", "none/trace.json"]) == output.USAGE
    assert "cannot write 'none/trace.json': No such file or directory" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_a_trace_fills_is_no_mistake_of_hfdsl(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.toml", "--trace", "/dev/full"]) == output.USAGE
    text = capsys.readouterr().err
    assert "hfdsl train: cannot write '/dev/full': No space left on device" in text
    assert "Traceback" not in text
