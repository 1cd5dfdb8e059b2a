"""``hfdsl check --fix CONFIG.toml``: the mistakes of a configuration that are mended, and what its file keeps."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pytest

from hfdsl.check.findings import Edit
from hfdsl.check.repair.edits import apply
from hfdsl.graph.spans import Span
from hfdsl.rl.training import check as config_check
from hfdsl.rl.training.preflight import packages
from hfdsl.tools import output
from hfdsl.tools.cli import main

Capture = pytest.CaptureFixture[str]

RUN = """\
# A comment that stays.
algorithm = "hfdsl.rl.dataflows.grpo:grpo"
output = "runs/never"
steps = 2
dims = { B = 4, P = 8, R = 6 }  # sizes

[options]
group = 2

[roles]
reward = "hfdsl.rl.workers:Verifier"

[deployment]
pools = { all = { processes = [2], gpu = false } }
default = { pool = "all" }

[data]
source = { kind = "JsonLines", path = "words.jsonl" }
tokenizer = { kind = "Characters", alphabet = "abcdefgh" }
prompt = { text = "{word}" }

[actor]
generation = { max_tokens = 6 }

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
function = "my_rewards:score"
tokenizer = "$data.tokenizer"
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.jsonl").write_text('{"word": "abc"}\n' * 4)
    Path("my_rewards.py").write_text("def score(response, row):\n    return 1.0\n")


def said(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(["check", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def span_in(place: dict[str, Any]) -> Span:
    return Span(place["file"], place["line"], place["column"], place["endLine"], place["endColumn"])


def changed(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line.startswith(("- ", "+ "))]


MISTAKES = [  # the text that is wrong, and how: the first fix restores it
    ('steps = 2\n', 'steps = "2"\n'),
    ("steps = 2\n", "steps = 2.0\n"),
    ("group = 2", "groups = 2"),
    ("max_tokens = 6", "max_token = 6"),
    ("max_tokens = 6", "max_tokens = 7"),
    ('"hfdsl.rl.workers:Verifier"', '"hfdsl.rl.worker:Verifier"'),
    ("dataflows.grpo:grpo", "dataflows.grpo:grop"),
    ("R = 6", "r = 6"),
    ('pool = "all"', 'pool = "al"'),
    ("reward = ", "rewards = "),
    ('"JsonLines"', '"Jsonlines"'),
    ("words.jsonl", "word.jsonl"),
    ("{word}", "{wrod}"),
    ("my_rewards:score", "my_rewards:scor"),
    ("my_rewards:score", "my_reward:score"),
    ("vocab_size = 11", "vocab_size = 8"),
    ("eos_token_id = 1", "eos_token_id = 2"),
    ('"$actor.model"', '"$actor.modle"'),
    ('"$data.tokenizer"', '"$data.tokeniser"'),
    ("[reward]\n", "[rewrad]\n"),
]  # fmt: skip  # a table


@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_mistake_is_mended_and_all_else_stays(right: str, wrong: str, newline: str, capsys: Capture) -> None:
    assert RUN.count(right) == 1
    text = RUN.replace(right, wrong).replace("\n", newline)
    Path("run.toml").write_bytes(text.encode())
    code, out, err = said(capsys, "run.toml", "--format", "json")
    [finding] = map(json.loads, (out or err).splitlines())
    assert (code, len(finding["help"]) > 0) == (output.FINDINGS, True)
    edits = [Edit(span_in(edit), edit["text"]) for edit in finding["fixes"][0]["edits"]]
    assert apply(text, edits) == RUN.replace("\n", newline)


@pytest.mark.nightly_cases("repaired1", "repaired3")
@pytest.mark.parametrize(
    ("right", "wrong", "repaired"),
    [
        ("B = 4", "B = 5", ["dims = { B = 4, P = 8, R = 6 }  # sizes"]),
        ("group = 2", "group = 1", ["group = 8"]),
        ("generation = { max_tokens = 6 }", "generation = { max_tokens = 6, temperature = 0.5 }",
         ["temperature = 0.5"]),
        ('pool = "all" }', 'pool = "all", mesh = { dp = 4 } }', ['default = { pool = "all", mesh = { dp = 2 } }']),
    ],
)  # fmt: skip
def test_numbers_are_set_at_their_keys(right: str, wrong: str, repaired: list[str], capsys: Capture) -> None:
    text = RUN.replace(right, wrong)
    Path("run.toml").write_text(text)
    assert said(capsys, "run.toml", "--fix", "--strict")[0] == output.OK
    assert [line[2:] for line in changed(text, Path("run.toml").read_text()) if line[0] == "+"] == repaired


def test_mistakes_of_all_stages_are_mended_at_once(capsys: Capture) -> None:
    text = RUN.replace("group = 2", "groups = 2").replace('pool = "all" }', 'pool = "al" }')
    Path("run.toml").write_text(text.replace("B = 4", "B = 5").replace("words.jsonl", "word.jsonl"))
    assert said(capsys, "run.toml", "--fix")[0] == output.OK
    assert Path("run.toml").read_text() == RUN


def test_the_file_of_the_deployment_is_edited(capsys: Capture) -> None:
    lines = RUN.splitlines(keepends=True)
    where = lines.index("[deployment]\n")
    text = "".join([*lines[:4], 'deployment = "places.toml"\n', *lines[4:where], *lines[where + 3 :]])
    Path("run.toml").write_text(text)
    places = '[pools.all]  # two\nprocesses = [2]\ngpu = false\n[default]\npool = "{}"\nmesh = {{ dp = {} }}\n'
    for name, dp in (("al", 2), ("all", 4)):
        Path("places.toml").write_text(places.format(name, dp))
        assert said(capsys, "run.toml", "--fix")[0] == output.OK
        assert Path("places.toml").read_text() == places.format("all", 2)
    assert Path("run.toml").read_text() == text


def test_values_of_the_command_line_are_not_edited(capsys: Capture) -> None:
    Path("run.toml").write_text(RUN)
    code, out, _ = said(capsys, "run.toml", "--set", "actor.generation.max_tokens=7", "--fix")
    assert (code, Path("run.toml").read_text()) == (output.OK, RUN.replace("R = 6", "R = 7"))
    assert "set dims.R to 7" not in out


def test_a_change_that_breaks_something_else_is_no_help(capsys: Capture) -> None:
    text = RUN.replace("max_tokens = 6", "max_tokens = 9")  # P + 9 is more than the model's 16 positions
    Path("run.toml").write_text(text)
    _, out, _ = said(capsys, "run.toml")
    assert [line.strip() for line in out.splitlines() if "help" in line] == [
        "= help: set actor.generation.max_tokens to 6"
    ]


def test_machines_receive_the_edits(capsys: Capture) -> None:
    Path("run.toml").write_text(RUN.replace("max_tokens = 6", "max_tokens = 7"))
    finding: dict[str, Any] = json.loads(said(capsys, "run.toml", "--format", "json")[1])
    assert [fix["title"] for fix in finding["fixes"]] == finding["help"]
    [edit] = finding["fixes"][0]["edits"]
    assert (edit["file"], edit["line"], edit["text"]) == ("run.toml", 23, "6")
    sarif = json.loads(said(capsys, "run.toml", "--format", "sarif")[1])
    [result] = sarif["runs"][0]["results"]
    assert len(result["fixes"]) == len(finding["fixes"])


def test_a_part_of_a_pool_is_written_as_toml(capsys: Capture) -> None:
    Path("run.toml").write_text(RUN.replace('pool = "all" }', 'pool = "all", mesh = { dp = 1 } }'))
    out = said(capsys, "run.toml")[1]
    assert '= help: use a part of the pool: { part_of = "all", slots = [0, 1] }' in out
    assert "pool.split" not in out


def test_trials_are_bounded(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []
    attempt = config_check.ConfigCheck._attempt

    def counted(check: config_check.ConfigCheck, path: str, *arguments: Any) -> Any:
        attempts.append(path)
        return attempt(check, path, *arguments)

    monkeypatch.setattr(config_check.ConfigCheck, "_attempt", counted)
    many = "".join(f"max_token{i} = 1\n" for i in range(60))
    Path("run.toml").write_text(RUN.replace("generation = { max_tokens = 6 }\n", f"[actor.generation]\n{many}"))
    assert said(capsys, "run.toml")[0] == output.FINDINGS
    assert 1 < len(attempts) < 60


def test_nothing_is_tried_where_nothing_is_wrong(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_check.ConfigCheck, "_attempt", lambda *_: pytest.fail("tried"))
    monkeypatch.setattr(packages, "is_installed", lambda package: True)
    Path("run.toml").write_text(RUN)
    assert said(capsys, "run.toml")[0] == output.OK
