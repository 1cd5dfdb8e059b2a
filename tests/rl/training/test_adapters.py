"""A run with an adapter: resumed bit for bit, exported merged and alone; what is found before it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hfdsl.errors import CheckpointError
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import load
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.preflight import packages
from hfdsl.rl.training.preflight.run import preflight
from hfdsl.rl.training.run_folder import checkpoints
from hfdsl.rl.training.run_folder.export import export
from hfdsl.tools.training import Finder

ROOT = Path(__file__).parents[3]
SMALL = ["B=8", "checkpoints.every=2", "actor.training.optimizer.learning_rate=1e-2", "evaluation=none"]
LORA = "actor.lora={ rank = 4, targets = ['q_proj', 'v_proj', 'down_proj'] }"


def ran(folder: Path, *changes: str, resume: bool = False) -> list[dict[str, Any]]:
    """The metrics of the steps, less their times."""
    train(load("examples/spelling_supervised.toml", [*SMALL, f"output={folder}", *changes]), resume=resume)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "time"} for record in records]


def kept(run: Path) -> dict[str, torch.Tensor]:
    [file] = checkpoints.latest(run / "checkpoints").glob("actor-rank-*.safetensors")
    return load_file(file)


@pytest.fixture
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("at_the_root")
def test_a_run_with_an_adapter_is_resumed_and_exported(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    ran(tmp_path / "whole", "steps=2")
    base = tmp_path / "base"
    export(tmp_path / "whole", "actor", base)
    model = f"actor.model={{ path = '{base}' }}"
    straight = ran(tmp_path / "straight", "steps=4", model, LORA)
    ran(tmp_path / "stopped", "steps=2", model, LORA)
    assert ran(tmp_path / "stopped", "steps=4", model, LORA, resume=True) == straight
    state = kept(tmp_path / "straight")
    assert all(torch.equal(value, state[name]) for name, value in kept(tmp_path / "stopped").items())
    assert all("lora_" in name for name in state if name.startswith("weights/"))
    sizes = [sum(value.nbytes for value in kept(tmp_path / run).values()) for run in ("straight", "whole")]
    assert sizes[0] < sizes[1] / 4

    merged, alone = tmp_path / "merged", tmp_path / "adapter"
    export(tmp_path / "straight", "actor", merged)
    export(tmp_path / "straight", "actor", alone, adapter=True)
    assert {file.name for file in alone.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        first, whole = (AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (base, merged))
        loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), alone)(ids).logits
    torch.testing.assert_close(loaded, whole, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(first, whole, atol=1e-2)
    assert json.loads((alone / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    with pytest.raises(CheckpointError, match=r"HF906: 'actor' in .* has no adapter"):
        export(tmp_path / "whole", "actor", alone, adapter=True)


@pytest.mark.usefixtures("at_the_root")
def test_a_package_that_is_not_there_is_found_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda package: package != "peft")
    loaded = load("examples/spelling_supervised.toml", [LORA])
    [finding] = preflight(loaded)
    assert (finding.code, finding.message) == (
        "HF710",
        "a LoRA adapter needs the package peft, which is not installed",
    )
    assert finding.notes == ("install it: pip install 'hfdsl[lora]'",)
    assert preflight(loaded, elsewhere=True) == ()


FLOW = """
import hfdsl as hf
from hfdsl.rl.batches import ReferenceLogProbs, Sequences
from hfdsl.rl.workers import Actor


@hf.dataflow
def scored(sequences: Sequences, actor: Actor) -> ReferenceLogProbs:
    return actor.base_log_probs(sequences)
"""


@pytest.mark.usefixtures("at_the_root")
def test_an_actor_that_is_its_own_reference_has_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    changes = [f"algorithm={tmp_path}/flow.py:scored", "actor.generation.max_tokens=6"]
    loaded = load("examples/spelling_supervised.toml", changes, Finder())
    [finding] = preflight(loaded, elsewhere=True)
    obstacle = "leaves out an adapter, and lora is not set; set it, or place a Reference"
    assert (finding.code, finding.message) == ("HF812", f"'actor.base_log_probs' {obstacle}")
    [report] = ConfigCheck(elsewhere=True).reports(loaded)
    assert "HF812" in report.codes
    assert len(report.codes) == len(set(report.codes))  # and not at the dataflow's line, too
    assert preflight(load("examples/spelling_supervised.toml", [*changes, LORA], Finder()), elsewhere=True) == ()
