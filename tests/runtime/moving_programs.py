"""Programs whose values of every kind go from process to process."""

from __future__ import annotations

from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim):
    """Rows."""


class R(hf.Dim):
    """Features."""


class Inputs(hf.Batch):
    x: f32[B, R]


class Outputs(hf.Batch):
    y: f32[B, R]
    name: hf.Obj[str, B]
    tokens: hf.i64[B, hf.Ragged[R]]
    bonus: f32[B] | None
    keep: hf.bool_[B]


class Wide(hf.Batch):
    wide: f32[B, Literal[1048576]]


class Seen(hf.Batch):
    total: f32[B]
    name: hf.Obj[str, B]


EVERYWHERE = hf.Protocol("EVERYWHERE", collect={"dp": "first", "tp": "first", "pp": "last"})


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Maker(hf.Worker):
    def __init__(self, with_bonus: bool = True) -> None:
        self.with_bonus, self.buffer = with_bonus, torch.zeros(0)

    @register(Dispatch.DP_PROTO)
    def make(self, inputs: Inputs) -> Outputs:
        x = inputs.x.tensor.to(device())
        tokens: hf.i64[B, hf.Ragged[R]] = hf.i64([torch.arange(int(row[0]) % 2 + 1, device=device()) for row in x])
        bonus: f32[B] | None = f32(x[:, 0] * 2) if self.with_bonus else None
        self.buffer = x.t().contiguous().t()  # strided
        names = [f"row {int(row[0])}" for row in x]
        return Outputs(y=self.buffer, name=names, tokens=tokens, bonus=bonus, keep=(x[:, 0] % 2 == 0).cpu())

    @register(Dispatch.DP_PROTO)
    def overwrite(self, inputs: Inputs) -> Inputs:
        self.buffer += 1
        return inputs

    @register(Dispatch.DP_PROTO)
    def fail(self, inputs: Inputs) -> Outputs:
        raise KeyError("nothing was made")


class Parked(Maker):
    """Gives its memory back while it is idle."""

    def offload(self, part: Literal["weights", "optimizer"]) -> None: ...

    def onload(self, part: Literal["weights", "optimizer"]) -> None: ...


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def read(self, outputs: Outputs) -> Seen:
        bonus = outputs.bonus.tensor if outputs.bonus is not None else torch.zeros(len(outputs), device=device())
        sums = torch.tensor([float(row.sum()) for row in outputs.tokens.rows], device=device())
        return Seen(total=outputs.y.tensor.sum(1) + bonus + sums, name=outputs.name)

    @register(EVERYWHERE)
    def read_all(self, outputs: Outputs) -> Seen:
        return self.read(outputs)

    @register(Dispatch.DP_PROTO)
    def write(self, outputs: Outputs) -> Outputs:
        outputs.y.tensor.mul_(2)
        return outputs


@hf.dataflow
def split(inputs: Inputs, maker: Maker, reader: Reader) -> tuple[Seen, Seen, Outputs]:
    outputs = maker.make(inputs)
    return reader.read(outputs), reader.read_all(outputs), outputs


@hf.dataflow
def kept(inputs: Inputs, maker: Maker, reader: Reader) -> Seen:
    outputs = maker.make(inputs)
    return reader.read(hf.filter(outputs, outputs.keep))


@hf.dataflow
def joining(inputs: Inputs, maker: Maker, makers: Maker, reader: Reader, single: Reader) -> tuple[Seen, Seen, Seen]:
    """Somebody of every pool is read from or reads."""
    outputs, many = maker.make(inputs), makers.make(inputs)
    return reader.read(outputs), reader.read(many), single.read(many)


@hf.dataflow
def writing(inputs: Inputs, maker: Maker, reader: Reader) -> Outputs:
    return reader.write(maker.make(inputs))


@hf.dataflow
def overwriting(inputs: Inputs, maker: Maker, reader: Reader) -> tuple[Seen, Inputs]:
    seen = reader.read(maker.make(inputs))
    return seen, maker.overwrite(inputs)


@hf.dataflow
def failing(inputs: Inputs, maker: Maker, reader: Reader) -> Seen:
    return reader.read(maker.fail(inputs))


class Held(hf.Batch):
    held: hf.Metric[int, Literal["max"]]


class Filler(hf.Worker):
    """Makes what takes memory, and says how much of it the process has."""

    @register(Dispatch.DP_PROTO)
    def fill(self, inputs: Inputs) -> Wide:
        return Wide(wide=torch.ones(len(inputs), 2**20, device=device()))

    @register(Dispatch.DP_PROTO)
    def held(self, wide: Wide) -> Held:
        if device() == "cpu":
            return Held(held=0)
        torch.cuda.ipc_collect()  # the allocator does it before it asks for more
        return Held(held=torch.cuda.memory_allocated())


@hf.dataflow
def filling(inputs: Inputs, maker: Filler, reader: Filler) -> tuple[Held, Held]:
    wide = maker.fill(inputs)
    return reader.held(wide), maker.held(wide)


class Weighed(hf.Batch):
    total: f32[B]


class Trainer(hf.Worker):
    """Weights of every kind, which are changed in place."""

    def __init__(self) -> None:
        self.layers = [torch.arange(6.0, device=device()).view(2, 3).t(), torch.ones(5, device=device()).bfloat16()]
        self.steps = 0

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, Any]:
        return {"layers": self.layers, "first": self.layers[0][0], "steps": self.steps, "empty": torch.zeros(0)}

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, inputs: Inputs) -> Inputs:
        self.steps += 1
        for layer in self.layers:
            layer.add_(1)
        return inputs


class Engine(hf.Worker):
    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy", staleness=1)
    def weigh(self, inputs: Inputs) -> Weighed:
        assert [t.dtype for t in self.weights["layers"]] == [torch.float32, torch.bfloat16]
        tensors = [*self.weights["layers"], self.weights["first"], self.weights["empty"]]
        total = sum(float((tensor.float().cpu() * 2).sum()) for tensor in tensors) + 1000 * self.weights["steps"]
        return Weighed(total=torch.full((len(inputs),), total))


@hf.dataflow
def sync(inputs: Inputs, trainer: Trainer, engine: Engine, judge: Engine) -> tuple[Weighed, Weighed, Inputs]:
    hf.sync(trainer, engine, judge)
    updated = trainer.update(inputs)
    return engine.weigh(inputs), judge.weigh(updated), updated


@hf.dataflow
def sync_one(inputs: Inputs, trainer: Trainer, engine: Engine) -> tuple[Weighed, Inputs]:
    hf.sync(trainer, engine)
    return engine.weigh(inputs), trainer.update(inputs)
