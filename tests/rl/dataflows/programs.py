"""Every dataflow with options and roles for tiny models on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, Costs, P, Prompts, R, Sequences
from hfdsl.rl.kl import AdaptiveKL
from hfdsl.rl.lagrangian import Multiplier
from hfdsl.rl.losses import Clip
from tests.rl.workers.tiny import (
    ACTOR,
    CRITIC,
    MODEL,
    PROMPT,
    REFERENCE,
    RESPONSE,
    VERIFIER,
    demonstrations,
    pairs,
    prompts,
)

ROWS = 8
SIZES: dict[type[hf.Dim], int] = {B: ROWS, P: PROMPT, R: RESPONSE}


class Sixes(w.RewardModel):
    """A cost by rule: the share of sixes."""

    def __init__(self) -> None:
        pass

    @register(Dispatch.THREE_D_PROTO)
    def cost(self, prompts: Prompts, sequences: Sequences) -> Costs:
        mask = sequences.response_mask.tensor
        six = (sequences.ids.tensor[:, -mask.shape[1] :] == 6) & mask
        return Costs(cost=six.sum(1) / mask.sum(1).clamp(min=1))


@dataclass(frozen=True)
class Program:
    """A dataflow, what its options are in tests, and its roles: classes with the arguments of their constructors."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    module: str = ""  # that of its name, else this one

    @property
    def plain(self) -> hf.Dataflow[..., Any]:
        """With the options that it comes with."""
        module = import_module(f"hfdsl.rl.dataflows.{self.module or self.name}")
        flow: hf.Dataflow[..., Any] = getattr(module, self.name)
        return flow

    @property
    def flow(self) -> hf.Dataflow[..., Any]:
        """With those of tests."""
        return self.plain.given(**self.options)

    def inputs(self, step: int) -> tuple[hf.Batch, ...]:
        """What a step is fed with."""
        if self.name == "dpo":
            return (pairs(ROWS, step),)
        batch = prompts(ROWS, step)
        return (batch, demonstrations(ROWS, step)) if self.name == "safe_rlhf" else (batch,)


ROLES: dict[str, tuple[type[hf.Worker], tuple[Any, ...]]] = {
    "actor": (w.Actor, (ACTOR,)),
    "left": (w.Actor, (ACTOR,)),
    "right": (w.Actor, (replace(ACTOR, model=replace(MODEL, seed=1)),)),
    "critic": (w.Critic, (CRITIC,)),
    "cost_critic": (w.Critic, (replace(CRITIC, model=replace(MODEL, seed=2)),)),
    "reference": (w.Reference, (REFERENCE,)),
    "teacher": (w.Reference, (replace(REFERENCE, model=replace(MODEL, seed=3)),)),
    "reward": (w.Verifier, (VERIFIER,)),
    "cost": (Sixes, ()),
    "penalty": (w.KLPenalty, (AdaptiveKL(0.05, target=0.1),)),
    "multiplier": (w.LagrangeMultiplier, (Multiplier(1.0, rate=0.1),)),
}
TRAINED = ("actor", "left", "critic", "cost_critic")

PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program("ppo", {}, ("actor", "critic", "reference", "reward")),
        Program("ppo_adaptive_kl", {}, ("actor", "critic", "reference", "reward", "penalty")),
        Program("safe_rlhf", {}, ("actor", "critic", "cost_critic", "reference", "reward", "cost", "multiplier")),
        Program("remax", {}, ("actor", "reference", "reward")),
        Program("grpo", {"group": 4}, ("actor", "reference", "reward")),
        Program(
            "dr_grpo",
            {"group": 4, "loss": Clip(0.2, aggregation="sequence-mean-token-sum", constant=RESPONSE)},
            ("actor", "reward"),
        ),
        Program("gspo", {"group": 4, "updates": 2}, ("actor", "reward")),
        Program("rloo", {}, ("actor", "reference", "reward")),
        Program("reinforce_plus_plus", {}, ("actor", "reference", "reward")),
        Program("dapo", {"group": 4, "rows": 16, "updates": 2, "longest": RESPONSE, "buffer": 2}, ("actor", "reward")),
        Program("dpo", {}, ("actor", "reference")),
        Program("online_dpo", {}, ("actor", "reference", "reward")),
        Program("distillation", {}, ("actor", "teacher")),
        Program("mutual", {"group": 4}, ("left", "right", "reward")),
    )
}


def colocated(program: Program, ranks: int = 2) -> hf.Deployment:
    """All roles share the processes of one pool."""
    pool = hf.ResourcePool([ranks], use_gpu=False)
    return _deployment(program, lambda _: pool)


def split(program: Program, ranks: int = 2) -> hf.Deployment:
    """What is trained is on one pool, and the rest on another."""
    trained, second_pool = (hf.ResourcePool([ranks], use_gpu=False, name=name) for name in ("trained", "other"))
    return _deployment(program, lambda role: trained if role in TRAINED else second_pool)


def merged(program: Program) -> hf.Deployment:
    """What is trained is on two pools together, and the rest in processes of its own on one of them and a third."""
    first, second, third = (hf.ResourcePool([1], use_gpu=False, name=name) for name in ("first", "second", "third"))
    trained, second_pool = first.merge(second, "trained"), second.merge(third, "other")
    return _deployment(program, lambda role: trained if role in TRAINED else second_pool)


def sliced(program: Program) -> hf.Deployment:
    """All models are sliced over the two processes of one pool."""
    pool = hf.ResourcePool([2], use_gpu=False)
    return _deployment(program, lambda _: pool, hf.Mesh(tp=2))


def _deployment(program: Program, pool: Callable[[str], hf.ResourcePool], mesh: hf.Mesh | None = None) -> hf.Deployment:
    placed = {role: (*ROLES[role], pool(role)) for role in program.roles}
    return hf.Deployment(
        **{role: hf.place(kind, *args, pool=where, mesh=mesh) for role, (kind, args, where) in placed.items()}
    )


def numbers(results: Any) -> list[float]:
    """All metrics of a step, in order."""
    if isinstance(results, (tuple, list)):
        return [number for result in results for number in numbers(result)]
    return [float(getattr(results, name).value) for name in type(results).__annotations__]


def run(program: Program, deployment: hf.Deployment, steps: int) -> list[list[float]]:
    """The metrics of the first steps on the local backend."""
    torch.set_num_threads(1)
    with program.flow.compile(deployment, SIZES).launch("local") as running:
        return [numbers(running.step(*program.inputs(step))) for step in range(steps)]
