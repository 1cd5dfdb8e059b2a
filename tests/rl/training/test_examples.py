"""The examples with ready-made roles: a supervised stage, its model, and GRPO on it, stopped and placed in all ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hfdsl.errors import CheckpointError
from hfdsl.rl.training.config import load
from hfdsl.rl.training.loop import train
from hfdsl.rl.training.run_folder.export import export

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that a few steps of the supervised stage made."""
    folder = tmp_path_factory.mktemp("supervised")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        train(
            load(
                "examples/spelling_supervised.toml",
                [f"output={folder}/run", "steps=20", "B=16", "checkpoints.every=20"],
            )
        )
    assert export(folder / "run", "actor", folder / "model").name == "step-00000020"
    return folder / "model"


def ran(folder: Path, model: Path, *changes: str, resume: bool = False) -> list[dict[str, Any]]:
    """The metrics of a few steps, less their times."""
    short = ["steps=2", "B=8", "options.group=4", "evaluation.dims.B=4", "evaluation.every=1", "checkpoints.every=1"]
    rows = ["actor.batching.rows=8", f"actor.model.path={model}", f"output={folder}"]
    train(load("examples/spelling.toml", [*short, *rows, *changes]), resume=resume)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "time"} for record in records]


def test_the_model_is_loaded_again(model: Path) -> None:
    from safetensors.torch import load_file

    saved = load_file(model / "model.safetensors")
    [state_file] = (model.parent / "run/checkpoints/step-00000020").glob("actor-rank-*.safetensors")
    weights = load_file(state_file)
    assert all((weights[f"weights/model.{name}"] == value).all() for name, value in saved.items())
    assert (model / "config.json").exists()
    assert (model / "tokenizer.json").exists()
    with pytest.raises(CheckpointError, match=r"HF906: .* has no model of a role 'critic'; it keeps actor"):
        export(model.parent / "run", "critic", model)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A run that nothing stops, and its metrics."""
    folder = tmp_path_factory.mktemp("colocated")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        records = ran(folder, model)
    assert [record["step"] for record in records] == [0, 1, 2]
    assert records[1]["actor/grad_norm"] + records[2]["actor/grad_norm"] > 0
    return folder, records


@pytest.mark.nightly_besides("split")
@pytest.mark.parametrize("place", ["split", "merged", "offloaded"])
def test_grpo_is_the_same_wherever_it_runs(
    tmp_path: Path,
    model: Path,
    straight: tuple[Path, list[dict[str, Any]]],
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    assert ran(tmp_path, model, f"deployment=examples/deployments/{place}.toml") == straight[1]


def test_grpo_is_the_same_however_often_it_is_stopped(
    tmp_path: Path, model: Path, straight: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    ran(tmp_path, model, "steps=1")
    assert ran(tmp_path, model, resume=True) == straight[1]


@pytest.mark.nightly  # other tests hold slices of the ready models against the whole
def test_grpo_on_slices_is_nearly_the_same(
    tmp_path: Path, model: Path, straight: tuple[Path, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    folder, records = straight
    sliced = ran(tmp_path, model, "deployment=examples/deployments/tensor_parallel.toml")
    for record, sliced_record in zip(records, sliced, strict=True):
        assert sliced_record == pytest.approx(record, rel=1e-3, abs=1e-4)
    weights, joined = (exported(run) for run in (folder, tmp_path))
    assert weights.keys() == joined.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(joined[name], weight, rtol=1e-3, atol=1e-4, msg=name)


def exported(run: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    export(run, "actor", run / "model")
    return load_file(run / "model/model.safetensors")
