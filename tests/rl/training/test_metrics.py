"""Numbers of a result by name, a line for people, and files that continue where a run continues."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.errors import ConfigError, HfError
from hfdsl.rl.training.metrics import JsonLinesWriter, Record, TensorBoardWriter, drop_after, line, values_of


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    norm: hf.Metric[float, Literal["first"]]


class Actor(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def update(self, rows: Rows) -> Loss:
        return Loss(loss=float(rows.x.tensor.mean()), norm=2.0)

    @register(Dispatch.DP_PROTO)
    def pretrain(self, rows: Rows) -> Loss:
        return Loss(loss=float(rows.x.tensor.sum()), norm=1.0)


@hf.function(rows=hf.Whole)
def summary(rows: Rows) -> Loss:
    return Loss(loss=float(rows.x.tensor.min()), norm=0.0)


@hf.dataflow
def several(rows: Rows, actor: Actor) -> tuple[list[Loss], dict[str, Loss], Rows]:
    parts = [actor.update(part) for part in hf.minibatches(rows, 2)]
    return parts, {"all": actor.pretrain(rows), "least": summary(rows)}, rows


def values(x: list[float]) -> dict[str, float]:
    plan = several.compile(hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([1], use_gpu=False))), {B: 4})
    with plan.launch() as running:
        return values_of(plan, running.step(Rows(x=torch.tensor(x))), 3)


def test_numbers_are_named_by_who_gave_them() -> None:
    assert values([1.0, 2.0, 3.0, 6.0]) == {
        "actor.update/loss": 3.0,  # the mean of 1.5 and 4.5
        "actor.update/norm": 2.0,
        "actor.pretrain/loss": 12.0,
        "actor.pretrain/norm": 1.0,
        "summary/loss": 1.0,
        "summary/norm": 0.0,
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_names_step_and_method(bad: float) -> None:
    with pytest.raises(HfError, match=rf"HF907: in step 3 of 'several' 'actor.update' gives loss = {bad}"):
        values([1.0, 2.0, 3.0, bad])


RECORD = Record(
    12,
    {"outcome/score": 0.5, "actor/loss": 0.25, "held_out/score": 0.75, "actor/norm": 1.0},
    1.5,
    {"actor.generate": 1.0, "summary": 0.001},
    2000.0,
)


def test_a_line_says_what_was_achieved_and_where_time_went() -> None:
    assert line(RECORD) == (
        "step    12  score 0.5  loss 0.25  held-out score 0.75  2,000 tokens/s  1.50 s (actor.generate 1.00)"
    )
    assert line(Record(3, {"actor/loss": 1.0, "critic/loss": 2.0})) == "step     3  actor/loss 1  critic/loss 2"


def test_json_lines_go_on_after_a_step(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for begun, steps in ((None, (1, 2, 3)), (2, (3, 4))):
        writer = JsonLinesWriter(file, begun)
        for step in steps:
            writer.write(Record(step, {"loss": step + 0.5}, 1.0, {"a": 0.5}, 7.0))
        writer.close()
    entries = [json.loads(text) for text in file.read_text().splitlines()]
    assert [record["step"] for record in entries] == [1, 2, 3, 4]
    assert entries[0] == {
        "step": 1,
        "loss": 1.5,
        "time": {"seconds": 1.0, "nodes": {"a": 0.5}, "tokens_per_second": 7.0},
    }
    drop_after(tmp_path / "none", 1)
    assert not (tmp_path / "none").exists()


def events(folder: Path) -> list[bytes]:
    """The records of event files: a length, its checksum, the record, its checksum (TFRecord)."""
    records = []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            records.append(data[12 : 12 + length])
            data = data[16 + length :]
    return records


def test_tensorboard_has_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    writer = TensorBoardWriter(tmp_path)
    writer.write(RECORD)
    writer.close()
    written = b"".join(events(tmp_path))
    names = [*RECORD.values, "time/seconds", "time/actor.generate", "time/tokens_per_second"]
    assert all(name.encode() in written for name in names)
    assert struct.pack("<f", 0.75) in written


def test_a_missing_package_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    missing: Any = None
    monkeypatch.setitem(sys.modules, "tensorboardX", missing)
    with pytest.raises(ConfigError, match=r"HF901: 'tensorboard' needs the package tensorboardX: pip install"):
        TensorBoardWriter(tmp_path)
