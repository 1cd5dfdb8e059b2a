"""An optimizer step over the micro-batches of all data-parallel ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from hfdsl.errors import HfError, ResourceError
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.protocols.offloading import Part
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.micro_batches import MicroBatch
from hfdsl.rl.models.offloading import model_to_device, model_to_host, optimizer_to_device, optimizer_to_host
from hfdsl.rl.models.sharding import is_sharded, local, shard, sharded_like
from hfdsl.rl.models.tensor_parallel import parameters_with_partial_gradients, sliced_parameters
from hfdsl.rl.workers.config import OptimizerConfig, TrainingConfig


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """What one optimizer step was: the norm of the whole batch's gradient before it was clipped, and the rate."""

    grad_norm: float
    learning_rate: float


class Learner:
    """A module and its optimizer.

    Gradients of whole copies are added up in coordinate order, those of parts by FSDP. Over ``tp`` nothing is added
    up: a rank has the gradients of its slices, and of what is whole the same as the others.
    """

    def __init__(self, module: Policy | Scorer, model: Any, config: TrainingConfig, peers: AxisGroup) -> None:
        if config.checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None)  # the name of late
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        if config.sharding == "fsdp":
            if model.base_model._compiled_call_impl is not None:
                raise ResourceError("HF812", 'compile=true and sharding="fsdp" do not go together; leave one out')
            shard(module, tuple(model._no_split_modules or ()), config.autocast, peers)  # as accelerate does
        self.module, self.config = module, config
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.sliced = sliced_parameters(module)
        o = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=o.learning_rate,
            betas=o.betas,
            eps=o.epsilon,
            weight_decay=o.weight_decay,
            fused=device().type == "cuda" or None,
        )
        self.steps = 0

    def evened(self, parts: list[MicroBatch], peers: AxisGroup) -> list[MicroBatch]:
        """As many micro-batches as any peer has, where all take each pass together; those added count for nothing."""
        if not is_sharded(self.module):
            return parts
        most = peers.all_reduce(len(parts), "max")
        return [*parts, *[replace(parts[0], real_rows=0)] * (most - len(parts))]

    def step(self, losses: Iterable[torch.Tensor], peers: AxisGroup) -> OptimizerStep:
        """One update with the sum of these losses and of those of all peers.

        Raises:
            HfError: HF811 where the gradient is not finite; nothing is changed then.
        """
        sharded = is_sharded(self.module)
        self.module.train()
        self.optimizer.zero_grad()
        for loss in losses:
            (loss * peers.size if sharded else loss).backward()  # FSDP takes the mean over ranks
        self.module.eval()
        if not sharded and peers.size > 1:
            self._add_up(peers)
        norm = self._clip(peers) if self.module.tp.size == 1 else self._clip_slices(peers)
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise HfError("HF811", f"the norm of the gradient is {norm}, although the loss of every row is finite")
        learning_rate = self.config.optimizer.learning_rate * lr_factor(self.config.optimizer, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.steps += 1
        return OptimizerStep(norm, learning_rate)

    def _clip(self, peers: AxisGroup) -> float:
        found = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.clip_norm).detach()
        return float(found.full_tensor() if isinstance(found, DTensor) else found)

    def _clip_slices(self, peers: AxisGroup) -> float:
        """The same where ranks of ``tp`` have slices."""
        tp, clip = self.module.tp, self.config.optimizer.clip_norm
        for parameter in parameters_with_partial_gradients(self.module):
            if parameter.grad is not None:
                own = local(parameter.grad)
                own.copy_(tp.all_reduce(own.contiguous()))
        found = [(p, local(p.grad)) for p in self.parameters if p.grad is not None]
        own = get_total_norm([gradient for p, gradient in found if p in self.sliced])
        same = get_total_norm([gradient for p, gradient in found if p not in self.sliced])
        square = own.float().square() + same.float().square() / tp.size  # those that are the same count once
        square = peers.all_reduce(square) if is_sharded(self.module) else square
        norm = float(tp.all_reduce(square).sqrt())
        for _, gradient in found:
            gradient.mul_(min(1.0, clip / (norm + 1e-6)))
        return norm

    def _add_up(self, peers: AxisGroup) -> None:
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        summed = peers.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(self.parameters, summed.split([g.numel() for g in gradients]), strict=True):
            parameter.grad = part.view_as(parameter)

    def offload(self, part: Part) -> None:
        """The weights, or what an update uses besides, go to the host."""
        if part == "weights":
            model_to_host(self.module)
        else:
            optimizer_to_host(self.optimizer)

    def onload(self, part: Part) -> None:
        """They come back."""
        if part == "weights":
            model_to_device(self.module)
        else:
            optimizer_to_device(self.optimizer)

    def state(self) -> dict[str, Any]:
        """What this rank needs to go on as if it had never stopped: its weights, its optimizer's states, its steps."""
        return {
            "weights": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from there; the tensors of ``state`` are this rank's parts."""
        own = self.module.state_dict()
        for name, value in state["weights"].items():
            local(own[name]).copy_(local(value))
        found = {
            number: {name: sharded_like(value, self.parameters[number]) for name, value in moments.items()}
            for number, moments in state["optimizer"].items()
        }
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": found})
        self.steps = state["steps"]


def lr_factor(config: OptimizerConfig, step: int) -> float:
    """The learning rate of a step, as a share of its peak.

    >>> [lr_factor(OptimizerConfig(schedule="linear", warmup_steps=2, total_steps=4), step) for step in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    done = min((step - config.warmup_steps) / max(config.total_steps - config.warmup_steps, 1), 1.0)
    shape = 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape
