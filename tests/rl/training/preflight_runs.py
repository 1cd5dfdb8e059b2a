"""The run whose configuration the tests of preflight change, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfdsl.check.findings import Finding
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import load
from hfdsl.rl.training.preflight import packages
from tests.tools.test_fixing_config import RUN

MODEL = RUN[RUN.index("[actor.model.config]") : RUN.index("[reference]")]

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(packages, "is_installed", lambda package: True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    Path("words.jsonl").write_text('{"word": "abc"}\n' * 4)
    Path("my_rewards.py").write_text("def score(response, row):\n    return 1.0\n")


def findings(text: str, *, elsewhere: bool = False) -> list[Finding]:
    Path("run.toml").write_text(text)
    reports = ConfigCheck(elsewhere=elsewhere).reports(load("run.toml"))
    return [finding for report in reports for finding in report]


def only(text: str) -> tuple[str, int, str]:
    [finding] = findings(text)
    return finding.code, finding.primary.span.line, finding.message


def line(text: str, key: str) -> int:
    return next(number for number, written in enumerate(text.splitlines(), 1) if key in written)


def source(kind: str, path: str) -> str:
    return RUN.replace('kind = "JsonLines", path = "words.jsonl"', f'kind = "{kind}", path = "{path}"')


def saved(path: str, **files: bytes) -> str:
    folder = Path(path)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return RUN.replace("[actor]\n", f'[actor]\nmodel = {{ path = "{path}" }}\n').replace(MODEL, "")


SAVED = {"model_type": "qwen2", "vocab_size": 11, "max_position_embeddings": 16, "pad_token_id": 0}

CONFIG = json.dumps(SAVED).encode()

SIZED = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
