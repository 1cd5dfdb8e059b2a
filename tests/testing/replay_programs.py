"""A small training step with a collective, a state, minibatches and a function; and a role that fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]
    name: hf.Obj[str, B]


class Loss(hf.Batch):
    loss: hf.Metric[float, Literal["mean"]]


class Actor(hf.Worker):
    def __init__(self, fails: bool = False) -> None:
        self.weight, self.updates, self.fails = torch.ones(1), 0, fails

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, rows: Rows) -> Rows:
        call = hf.current_call()
        noise = call.uniforms(1)[:, 0] + 2 * call.uniforms(1)[:, 0] + torch.rand(())  # two draws, and a global stream
        return Rows(x=rows.x.tensor * self.weight + noise, name=rows.name)

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Loss:
        gradient = self.axis("dp").all_reduce(rows.x.tensor.sum() * self.weight, "mean")
        self.updates += 1
        if self.fails and self.updates == 2 and self.rank == 1:
            raise FloatingPointError(f"gradient {float(gradient):.2f} at {rows.name.objects[0]}")
        self.weight = self.weight - 0.01 * gradient
        return Loss(loss=float(self.weight))

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight, "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        self.weight, self.updates = state["weight"], state["updates"]


class Scaled(torch.autograd.Function):
    """The identity, whose backward pass averages gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, peers: Any) -> torch.Tensor:
        ctx.peers = peers
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.peers.all_reduce(gradients[0], "mean"), None


class Threaded(Actor):
    """Its backward pass runs in a thread of its own, as autograd's does on a GPU."""

    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, rows: Rows) -> Loss:
        weight = self.weight.clone().requires_grad_()
        loss = (Scaled.apply(weight, self.axis("dp")) * rows.x.tensor).sum()  # type: ignore[no-untyped-call]  # torch's
        with ThreadPoolExecutor(1) as pool:
            [gradient] = pool.submit(torch.autograd.grad, loss, [weight]).result()
        self.weight = self.weight - 0.01 * gradient
        return Loss(loss=float(self.weight))


@hf.function
def halved(rows: Rows) -> Rows:
    return Rows(x=rows.x.tensor / 2, name=rows.name)


@hf.dataflow
def program(rows: Rows, actor: Actor) -> Loss:
    rollout = halved(actor.generate(rows))
    losses = [actor.update(part) for part in hf.minibatches(rollout, 2)]
    return losses[-1]


class Tree:
    """An object that is no data."""

    def __init__(self, height: float) -> None:
        self.height = height

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.height == other.height

    __hash__ = None  # type: ignore[assignment]  # it grows


class Trees(hf.Batch):
    tree: hf.Obj[Tree, B]


@hf.function
def planted(rows: Rows) -> Trees:
    return Trees(tree=[Tree(float(x)) for x in rows.x.tensor])


@hf.function
def grown(trees: Trees) -> Trees:
    return Trees(tree=[Tree(2 * tree.height) for tree in trees.tree.objects])


@hf.dataflow
def objects(rows: Rows) -> Trees:
    return grown(planted(rows))


def batch() -> Rows:
    return Rows(x=torch.arange(8.0), name=[f"row {i}" for i in range(8)])


def plan(fails: bool = False) -> Any:
    pool = hf.ResourcePool([2], use_gpu=False)
    return program.compile(hf.Deployment(actor=hf.place(Actor, fails, pool=pool)), {B: 8})


def both() -> hf.Deployment:
    pool = hf.ResourcePool([2], use_gpu=False)
    return hf.Deployment(actor=hf.place(Actor, pool=pool), threaded=hf.place(Threaded, pool=pool))
