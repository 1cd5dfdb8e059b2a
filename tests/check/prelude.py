# mypy: disable-error-code="empty-body"
"""What the snippets of the explain pages build on."""

from typing import Literal

import hfdsl as hf
from hfdsl import Add, Dispatch, Div, Mul, f32, i64, register
from hfdsl.protocols.dispatch import get_predefined_dispatch_fn
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, Slices, Stages, Tied

__all__ = ["Actor", "Add", "B", "Dispatch", "Div", "Kept", "Literal", "Mul", "P", "Prompts", "R", "Rollout", "Scores"]
__all__ += ["Engine", "Parameter", "Slices", "Stages", "Tied", "Trainer"]
__all__ += ["f32", "group", "hf", "i64", "pool", "register"]


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    ids: i64[B, P]


class Rollout(hf.Batch):
    ids: i64[B, Add[P, R]]
    log_probs: f32[B, R]


class Scores(hf.Batch):
    reward: f32[B]


class Kept(hf.Batch):
    keep: hf.bool_[B]


class Actor(hf.Worker):
    @register(Dispatch.THREE_D_PROTO)
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.THREE_D_PROTO)
    def score(self, rollout: Rollout) -> Scores: ...

    @register(Dispatch.THREE_D_PROTO)
    def update(self, rollout: Rollout, scores: Scores) -> None: ...


pool = hf.ResourcePool([4])
WHOLE = Replicas()


class Trainer(hf.Worker):
    def __init__(self, *parameters: Parameter) -> None: ...

    @staticmethod
    def state_parameters(*parameters: Parameter) -> dict[str, tuple[Parameter, ...]]:
        return {"policy": parameters}

    @register(Dispatch.THREE_D_PROTO)
    @hf.corrects("policy", lag=8)
    @hf.writes("policy")
    def update(self, rollout: Rollout) -> None: ...

    @register(Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    @hf.exports("policy")
    def weights(self) -> dict[str, list[float]]: ...


def engine_layout(mesh: hf.Mesh, *parameters: Parameter, layout: Layout = WHOLE) -> Layout:
    return layout


class Engine(hf.Worker):
    def __init__(self, *parameters: Parameter, layout: Layout = WHOLE) -> None: ...

    @staticmethod
    def state_parameters(*parameters: Parameter, layout: Layout = WHOLE) -> dict[str, tuple[Parameter, ...]]:
        return {"policy": parameters}

    @register(Dispatch.DP_PROTO)
    @hf.reads("policy")
    def generate(self, prompts: Prompts) -> Rollout: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=engine_layout)
    def load(self, weights: dict[str, list[float]]) -> None: ...


class Group:
    """A worker group of two ranks, as far as protocols read one."""

    world_size, mesh, workers = 2, None, ("a", "b")

    def score(self, *args: object) -> object:
        return get_predefined_dispatch_fn(Dispatch.DP_PROTO)["dispatch_fn"](self, *args)

    def set_temperature(self, *args: object) -> object:
        return get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)["dispatch_fn"](self, *args)


group = Group()
