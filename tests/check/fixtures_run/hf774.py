"""A rank whose memory for a weight has another size than its layout says."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import hfdsl as hf
from hfdsl.protocols.layouts import Parameter, Slices


class Actor(hf.Worker):
    @staticmethod
    def state_parameters() -> dict[str, list[Parameter]]:
        return {"policy": [Parameter("bias", (8,), "float32")]}

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=Slices(0))
    def weights(self) -> dict[str, torch.Tensor]:
        return {"bias": torch.arange(4.0) + 4 * self.rank}


class Engine(hf.Worker):
    def __init__(self) -> None:
        self.bias = torch.zeros(8)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.bias = weights["bias"].clone()

    @contextmanager
    def receiving(self, state: str) -> Iterator[dict[str, torch.Tensor]]:
        # good: yield {"bias": self.bias}
        yield {"bias": self.bias[1:]}  # bad


@hf.dataflow
def synced(actor: Actor, engine: Engine) -> None:
    hf.sync(actor, engine)


pools = [hf.ResourcePool([count], use_gpu=False) for count in (2, 1)]
actor = hf.place(Actor, pool=pools[0], mesh=hf.Mesh(tp=2))
deployment = hf.Deployment(actor=actor, engine=hf.place(Engine, pool=pools[1]))
with synced.compile(deployment).launch("local") as running:
    running.step()  # <-
