"""A checkpoint that is not there."""

# good: from tempfile import TemporaryDirectory

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Counter(hf.Worker):
    def __init__(self) -> None:
        self.seen = torch.zeros(1)

    @register(Dispatch.DP_PROTO)
    def count(self, rows: Rows) -> Rows:
        self.seen += len(rows)
        return rows

    def state(self) -> dict[str, torch.Tensor]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        self.seen = state["seen"]


@hf.dataflow
def program(rows: Rows, counter: Counter) -> Rows:
    return counter.count(rows)


plan = program.compile(hf.Deployment(counter=hf.place(Counter, pool=hf.ResourcePool([2], name="pool"))))
# good: with plan.launch("local") as running, TemporaryDirectory() as folder:
# good:     running.save(folder)
# good:     running.load(folder)
with plan.launch("local") as running:  # bad
    running.load("no/such/checkpoint")  # <- bad
