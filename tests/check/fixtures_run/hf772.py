"""A state that no role exports."""

import torch

import hfdsl as hf


class Actor(hf.Worker):
    @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, torch.Tensor]:
        return {"bias": torch.arange(3.0)}


class Engine(hf.Worker):
    def __init__(self) -> None:
        self.bias = torch.zeros(3)

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy")
    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.bias = weights["bias"].clone()

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return {"bias": self.bias}


@hf.dataflow
def synced(actor: Actor, engine: Engine) -> None:
    hf.sync(actor, engine)


pool = hf.ResourcePool([1], use_gpu=False)
deployment = hf.Deployment(actor=hf.place(Actor, pool=pool), engine=hf.place(Engine, pool=pool))
with synced.compile(deployment).launch("local") as running:
    running.step()
    # good: running.verify("policy")
    running.verify("actor")  # <- bad
