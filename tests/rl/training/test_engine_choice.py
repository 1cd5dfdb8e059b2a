"""``engine = "auto"``: what it stands for, from the table of measurements to a run that is resumed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.rl.engines.measured import MEASURED, MeasuredCase, nearest_case
from hfdsl.rl.training import engine_choice
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import Loaded, from_table
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.run_folder.resuming import with_saved_engines
from hfdsl.rl.training.toml.tables import to_toml
from hfdsl.tools.cli import main
from tests.rl.training.test_samplers import table

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"\| ([\d.]+)B \| (\d+) x ([\d,]+) \| \**([\d,]+)\** \| \**([\d,]+)\** \|")
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "pad_token_id": 0,
    "vocab_size": 32_000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
GPUS = {"pools": {"all": {"processes": [8]}}, "default": {"pool": "all"}}


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("page", ["docs/engines.md", "benchmarks/training/README.md"])
def test_the_table_is_the_published_one(page: str) -> None:
    rows = [match.groups() for match in map(ROW.match, (ROOT / page).read_text("utf-8").splitlines()) if match]
    published = {MeasuredCase(round(float(size) * 10**9), *map(number, rest)) for size, *rest in rows}
    assert published == set(MEASURED)


@given(st.integers(10**6, 10**12), st.integers(1, 10**5), st.integers(1, 10**5))
def test_no_other_case_is_nearer_in_every_size(parameters: int, rows: int, tokens: int) -> None:
    near = nearest_case(parameters, rows, tokens)

    def times(case: MeasuredCase) -> tuple[float, ...]:
        ratios = (parameters / case.parameters, rows / case.rows, tokens / case.tokens)
        return tuple(max(ratio, 1 / ratio) for ratio in ratios)

    for case in MEASURED:
        nearer = [ours < theirs for ours, theirs in zip(times(case), times(near), strict=True)]
        as_near = [ours <= theirs for ours, theirs in zip(times(case), times(near), strict=True)]
        assert not (all(as_near) and any(nearer))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which a tried version of vLLM is installed."""
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(engine_choice, "installed_version", lambda: "0.32.0")
    return monkeypatch


def grpo(folder: Path, *changes: str, **roles: Any) -> Loaded:
    """GRPO of 64 prompts with 8 responses each of 1,024 tokens, with a model of 1.26 billion parameters on 8 GPUs."""
    run = table(folder, "grpo:grpo", deployment=GPUS, backend="ray", options={"group": 8})
    run["actor"] = {
        "model": {"config": LLAMA},
        "generation": {"max_tokens": 1024},
        "training": {"autocast": "bfloat16"},
    }
    run |= {"dims": {"B": 64, "P": 16, "R": 1024}, **roles}
    if "sampler" not in roles:
        del run["sampler"]
    return from_table(run, changes)


def engine(loaded: Loaded, role: str = "actor") -> str:
    return str(getattr(loaded.config, role).generation.engine)


def test_auto_is_vllm_where_it_was_faster(tmp_path: Path, vllm: pytest.MonkeyPatch) -> None:
    loaded = grpo(tmp_path)
    assert (engine(loaded), loaded.auto_engines) == ("vllm", ("actor",))
    assert engine_choice.case_for_vllm(loaded, "actor") == MeasuredCase(1_260_000_000, 64, 1024, 11_748, 19_296)
    assert loaded.table()["actor"]["generation"]["engine"] == "vllm"


@pytest.mark.parametrize(
    "change",
    [
        "actor.generation.max_tokens=256 options.group=64",  # 512 short rows on each GPU, where the two are even
        "actor.model.config.num_hidden_layers=6",
        "actor.training.autocast=none",
        "actor.model.config.model_type=qwen2_moe",
        "actor.model.config.model_type=gemma2",
        "actor.model.config.vocab_size=none",
        "actor.generation.top_p=0.9",
        "actor.generation.top_k=20",
        "actor.generation.cache_tokens=1000",
        "actor.generation.engine_tp=3",
        'actor.generation.adapter=apart actor.lora={targets=["lm_head"]}',
        "deployment.pools.all.gpu=false",
        "deployment.default.mesh={dp=1,tp=8} actor.model.config.num_key_value_heads=3",
        "backend=local",
    ],
)
def test_auto_is_the_trainers_own_engine_elsewhere(tmp_path: Path, vllm: pytest.MonkeyPatch, change: str) -> None:
    loaded = grpo(tmp_path, *change.split())
    assert (engine(loaded), loaded.auto_engines) == ("builtin", ("actor",))


@pytest.mark.parametrize("version", [None, "0.25.1", "0.40.0"])
def test_only_a_tried_version_counts(tmp_path: Path, vllm: pytest.MonkeyPatch, version: str | None) -> None:
    vllm.setattr(engine_choice, "installed_version", lambda: version)
    assert engine(grpo(tmp_path)) == "builtin"


def test_a_package_that_cannot_be_imported_does_not_count(tmp_path: Path, vllm: pytest.MonkeyPatch) -> None:
    vllm.setitem(sys.modules, "vllm", None)
    assert engine(grpo(tmp_path)) == "builtin"


@pytest.mark.parametrize("named", ["builtin", "captured", "plain", "vllm"])
def test_a_named_engine_stays(tmp_path: Path, vllm: pytest.MonkeyPatch, named: str) -> None:
    loaded = grpo(tmp_path, f"actor.generation.engine={named}")
    assert (engine(loaded), loaded.auto_engines) == (named, ())


def test_the_role_that_generates_has_the_engine(tmp_path: Path, vllm: pytest.MonkeyPatch) -> None:
    sampler = {"model": "$actor.model", "generation": "$actor.generation", "autocast": "bfloat16"}
    loaded = grpo(tmp_path, sampler=sampler)
    assert (engine(loaded), engine(loaded, "sampler")) == ("builtin", "vllm")


@pytest.mark.parametrize(
    ("change", "engine_in_flight"),
    [
        ("deployment.pools.all.gpu=true", "vllm"),
        ("deployment.pools.all.gpu=false", "plain"),
        ("sampler.generation.engine_tp=2", "plain"),  # whose ranks would take weights at different tokens
        ("sampler.generation.engine=builtin", "builtin"),
    ],
)
def test_weights_in_flight_have_an_engine_that_takes_them(
    tmp_path: Path, vllm: pytest.MonkeyPatch, change: str, engine_in_flight: str
) -> None:
    run = grpo(tmp_path).table()
    run |= {"algorithm": "hfdsl.rl.dataflows.asynchronous:async_grpo_in_flight", "options": {"group": 8}}
    run["actor"]["generation"] = {"max_tokens": 1024}
    run["sampler"] = {"model": "$actor.model", "generation": "$actor.generation", "autocast": "bfloat16"}
    loaded = from_table(run, [change])
    assert engine(loaded, "sampler") == engine_in_flight
    assert ("HF753" in codes(loaded)) == (engine_in_flight == "builtin")


def test_a_deployment_that_cannot_be_made_is_reported_as_ever(tmp_path: Path, vllm: pytest.MonkeyPatch) -> None:
    loaded = grpo(tmp_path, "deployment.default.pool=other")
    with pytest.raises(hf.HfError) as caught:
        loaded.deployment()
    assert caught.value.code == "HF901"


def codes(loaded: Loaded, gib: float = 140) -> set[str]:
    cluster = hf.Cluster(hf.Nodes(1, gpus=8, gpu_memory_gib=gib, cpus=96))
    return {finding.code for report in ConfigCheck(cluster, elsewhere=True).reports(loaded) for finding in report}


def test_a_check_judges_the_engine_that_auto_takes(tmp_path: Path, vllm: pytest.MonkeyPatch) -> None:
    uncorrected = "options.loss={correction='none'}"
    assert {"HF943", "HF959", "HF966"}.isdisjoint(codes(grpo(tmp_path)))
    assert "HF943" in codes(grpo(tmp_path, uncorrected))
    assert "HF959" in codes(grpo(tmp_path), gib=24)
    vllm.setattr(engine_choice, "installed_version", lambda: None)
    assert {"HF943", "HF959"}.isdisjoint(codes(grpo(tmp_path, uncorrected), gib=24))


def test_what_auto_misses_is_said(tmp_path: Path, vllm: pytest.MonkeyPatch) -> None:
    assert "HF966" in codes(grpo(tmp_path, "actor.generation.engine=captured"))
    assert "HF966" not in codes(grpo(tmp_path, "actor.generation.engine=builtin"))
    vllm.setattr(engine_choice, "installed_version", lambda: "0.40.0")
    assert "HF966" in codes(grpo(tmp_path))
    assert "HF966" not in codes(grpo(tmp_path, "actor.model.config.num_hidden_layers=6"))


def test_a_plan_says_which_engine_and_why(
    tmp_path: Path, vllm: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    loaded = grpo(tmp_path)
    file.write_text(to_toml(loaded.table()).replace('engine = "vllm"', 'engine = "auto"'))
    assert main(["plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "'actor' samples with vLLM by engine = \"auto\"; nearest measured: 1.26B parameters, 64 rows" in text
    assert re.search(r"actor \(Actor, .*, samples with vllm\)", text)
    assert main(["plan", str(file), "--format", "json"]) == 0
    assert '"engines": {"actor": "vllm"}' in capsys.readouterr().out


@pytest.mark.parametrize("saved", ["vllm", "builtin", "auto"])  # "auto": of an earlier version
def test_a_run_that_goes_on_keeps_its_engine(tmp_path: Path, vllm: pytest.MonkeyPatch, saved: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(f'[actor.generation]\nmax_tokens = 4\nengine = "{saved}"\n')
    for version in (None, "0.32.0"):
        vllm.setattr(engine_choice, "installed_version", lambda version=version: version)
        assert engine(with_saved_engines(grpo(tmp_path))) == saved
        assert engine(with_saved_engines(grpo(tmp_path, "actor.generation.engine=plain"))) == "plain"


def test_a_resumed_run_does_not_take_the_engine_that_was_installed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here vLLM cannot start, so a run that took it would fail."""
    torch.set_num_threads(1)
    run = table(tmp_path, "grpo:grpo", steps=1)
    run["actor"] = {**run["actor"], "generation": {"max_tokens": 6}}
    train(from_table(run))
    saved = (tmp_path / "run/config.toml").read_text("utf-8")
    assert saved.count('engine = "builtin"') == 2
    monkeypatch.setattr(engine_choice, "is_usable", lambda: True)
    monkeypatch.setattr(engine_choice, "case_for_vllm", lambda *_: MEASURED[-1])
    longer = from_table({**run, "steps": 2})
    assert engine(longer) == "vllm"
    assert train(longer, resume=True).step == 2
    assert 'engine = "vllm"' not in (tmp_path / "run/config.toml").read_text("utf-8")
