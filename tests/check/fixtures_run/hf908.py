"""A role that trains, and keeps nothing."""

from tempfile import TemporaryDirectory

import torch

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Critic(hf.Worker):
    def __init__(self) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    @register(Dispatch.DP_PROTO)
    def value(self, rows: Rows) -> Rows:
        return Rows(x=self.model(rows.x.tensor[:, None])[:, 0])

    # good: def state(self) -> dict[str, object]:
    # good:     return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
    # good: def load_state(self, state: dict[str, dict[str, object]]) -> None:
    # good:     self.model.load_state_dict(state["model"])
    # good:     self.optimizer.load_state_dict(state["optimizer"])


@hf.dataflow
def program(rows: Rows, critic: Critic) -> Rows:
    return critic.value(rows)


plan = program.compile(hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2], name="pool"))))
with plan.launch("local") as running, TemporaryDirectory() as folder:
    running.save(folder)  # <-
