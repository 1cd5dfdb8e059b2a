"""Roles whose tensors live on GPUs."""

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


class Metrics(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]
    weight: hf.Metric[float, Literal["first"]]
    device: hf.Metric[int, Literal["max"]]


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Model(hf.Worker):
    def __init__(self, width: int) -> None:
        self.weight = torch.nn.Parameter(torch.ones(width, device=device()))

    @register(Dispatch.THREE_D_PROTO)
    def forward(self, inputs: Inputs) -> Outputs:
        return Outputs(y=inputs.x.tensor.to(device()) * self.weight.detach())

    @register(Dispatch.THREE_D_PROTO)
    def update(self, outputs: Outputs) -> Metrics:
        y = outputs.y.tensor
        loss = ((y * self.weight - 1) ** 2).mean()
        self.weight.grad = None
        loss.backward()
        with torch.no_grad():
            assert self.weight.grad is not None
            self.weight -= 0.1 * self.axis("dp").all_reduce(self.weight.grad, "mean")
        return Metrics(loss=float(loss.detach()), weight=float(self.weight.detach().sum()), device=int(y.is_cuda))


class Scale(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def scale(self, outputs: Outputs) -> Outputs:
        return Outputs(y=outputs.y.tensor * 0.5)


@hf.dataflow
def train(inputs: Inputs, model: Model, scale: Scale) -> tuple[Outputs, Metrics]:
    outputs = scale.scale(model.forward(inputs))
    return outputs, model.update(outputs)


class Responses(hf.Batch):
    """Rows of unlike lengths, a column that need not be there, and which rows continue."""

    tokens: hf.i64[B, hf.Ragged[R]]
    keep: hf.bool_[B]
    bonus: f32[B] | None = None


class Writer(hf.Worker):
    def __init__(self, with_bonus: bool) -> None:
        self.with_bonus = with_bonus

    @register(Dispatch.DP_PROTO)
    def write(self, inputs: Inputs) -> Responses:
        lengths = inputs.x.tensor[:, 0].long() % 4
        tokens: hf.i64[B, hf.Ragged[R]] = hf.i64([torch.arange(int(n), device=device()) for n in lengths])
        bonus: f32[B] | None = f32(inputs.x.tensor[:, 0].to(device())) if self.with_bonus else None
        return Responses(tokens=tokens, keep=(lengths > 1).to(device()), bonus=bonus)


class Reader(hf.Worker):
    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def read(self, responses: Responses) -> Outputs:
        sums = torch.stack([row.sum() for row in responses.tokens.rows]) if len(responses) else torch.zeros(0)
        bonus = responses.bonus.tensor if responses.bonus is not None else torch.zeros(len(responses))
        on_gpu = torch.full((len(responses),), float(responses.tokens.rows[0].is_cuda) if len(responses) else 0.0)
        columns = [column.to(device()).float() for column in (sums, bonus, on_gpu, on_gpu)]
        return Outputs(y=torch.stack(columns, 1))


@hf.dataflow
def read_kept(inputs: Inputs, writer: Writer, reader: Reader) -> Outputs:
    responses = writer.write(inputs)
    return reader.read(hf.filter(responses, responses.keep))


class Accumulator(hf.Worker):
    """The class of the field's notebooks, on whatever device there is."""

    def __init__(self, x: int) -> None:
        self.value = torch.full((1,), float(self.rank + x), device=device())

    def add(self, x: float) -> float:
        self.value += x
        return float(self.value)

    @register(Dispatch.ONE_TO_ALL)
    def reduced(self) -> float:
        """The sum over ranks, by a process group made of the environment that the group sets up."""
        import torch.distributed as dist

        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        total = self.value.clone()
        dist.all_reduce(total)
        dist.destroy_process_group()
        return float(total)

    @register(Dispatch.ONE_TO_ALL)
    def uuid(self) -> Any:
        return str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None
