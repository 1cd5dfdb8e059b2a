"""An optimizer step over the micro-batches of all data-parallel ranks.

How gradients meet
------------------
Losses are shares of the whole batch's loss (see ``updates``), so the gradient of the whole batch is the *sum* of the
ranks' gradients:

- Ranks that hold all parameters add them up with one all-reduce of a flat tensor, in coordinate order, so that every
  rank has the same bits.
- FSDP reduces gradients itself and takes the mean over ranks, so each loss is first multiplied by the number of ranks.
  Its passes are collective: with 3 micro-batches on rank 0 and 2 on rank 1, the third pass would wait forever, so rank
  1 repeats one in which no row counts (``padded_to_peers``).
- Over ``tp`` nothing is added up. The ranks of ``tp`` have the same rows; each has the gradient of its own slices, and
  the same gradient as its peers of replicated parameters.

The norm over slices
--------------------
With ``tp=2``, a sliced weight and a replicated bias::

             gradient of the slice   gradient of the bias   slice**2 + bias**2 / 2
    rank 0            3                       12                  9 + 72 = 81
    rank 1            4                       12                 16 + 72 = 88
                                                                 sum:    169 = 13**2

The norm of the whole gradient (3, 4, 12) is 13. Each rank counts its slices in full and replicated gradients by 1/tp,
and one all-reduce gives the square on every rank. If each took the norm of its own gradients, ranks would clip by
different factors, and replicas would drift apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from hfdsl.errors import HfError
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.protocols.offloading import Part
from hfdsl.rl.models.device import device
from hfdsl.rl.models.forward import Policy, Scorer
from hfdsl.rl.models.master_weights import MasterWeights
from hfdsl.rl.models.micro_batches import MicroBatch
from hfdsl.rl.models.offloading import model_to_device, model_to_host, optimizer_to_device, optimizer_to_host
from hfdsl.rl.models.sharding import is_sharded, local_part, shard, sharded_like
from hfdsl.rl.models.tensor_parallel import parameters_with_partial_gradients, sliced_parameters
from hfdsl.rl.workers.config import OptimizerConfig, TrainingConfig
from hfdsl.rl.workers.obstacles import refuse, schedule_obstacles


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """The figures of one optimizer step."""

    grad_norm: float
    """The norm of the whole batch's gradient before clipping."""

    learning_rate: float
    """The learning rate of the step."""


class Learner:
    """A module and its optimizer."""

    def __init__(self, module: Policy | Scorer, model: Any, config: TrainingConfig, peers: AxisGroup) -> None:
        if config.checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None)  # newer versions
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        if config.sharding == "fsdp":
            blocks = tuple(model._no_split_modules or ())  # as accelerate does
            shard(module, blocks, config.autocast, peers, master_weights=config.master_weights)
        self.module, self.config = module, config
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.masters = MasterWeights(parameters if config.master_weights else ())
        self.parameters = self.masters(parameters)
        self.sliced = frozenset(self.masters(sliced_parameters(module)))
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=config.optimizer.learning_rate,
            betas=config.optimizer.betas,
            eps=config.optimizer.epsilon,
            weight_decay=config.optimizer.weight_decay,
            fused=device().type == "cuda" or None,
        )
        self.steps = 0

    def padded_to_peers(self, parts: list[MicroBatch], peers: AxisGroup) -> list[MicroBatch]:
        """Under FSDP, pad to the largest number of micro-batches on any peer; tokens of the added ones do not count."""
        if not is_sharded(self.module):
            return parts
        count = peers.all_reduce(len(parts), "max")
        return [*parts, *[replace(parts[0], real_rows=0)] * (count - len(parts))]

    def step(self, losses: Iterable[torch.Tensor], peers: AxisGroup) -> OptimizerStep:
        """Update the parameters by the sum of these losses and those of all peers.

        Raises:
            HfError: HF811 for a gradient that is not finite; no parameter has then changed.
        """
        sharded = is_sharded(self.module)
        self.module.train()
        self.optimizer.zero_grad()
        for loss in losses:
            (loss * peers.size if sharded else loss).backward()  # FSDP: a mean
        self.module.eval()
        if not sharded and peers.size > 1:
            self._all_reduce_gradients(peers)
        norm = self._clip() if self.module.tp.size == 1 else self._clip_slices(peers)
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise HfError("HF811", f"the norm of the gradient is {norm}, although the loss of every row is finite")
        learning_rate = self.config.optimizer.learning_rate * lr_factor(self.config.optimizer, self.steps)
        for param_group in self.optimizer.param_groups:
            param_group["lr"] = learning_rate
        self.optimizer.step()
        self.masters.write()
        self.module.writes += 1
        self.steps += 1
        return OptimizerStep(norm, learning_rate)

    def _clip(self) -> float:
        """Clip the gradient, and return its norm before."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimizer.clip_norm).detach()
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _clip_slices(self, peers: AxisGroup) -> float:
        """Clip the gradient of slices over ``tp``, and return its norm before: see the example above."""
        tp, clip = self.module.tp, self.config.optimizer.clip_norm
        for parameter in self.masters(parameters_with_partial_gradients(self.module)):
            if parameter.grad is not None:
                gradient = local_part(parameter.grad)
                gradient.copy_(tp.all_reduce(gradient.contiguous()))
        gradients = [(p, local_part(p.grad)) for p in self.parameters if p.grad is not None]
        slice_norm = get_total_norm([gradient for p, gradient in gradients if p in self.sliced])
        replica_norm = get_total_norm([gradient for p, gradient in gradients if p not in self.sliced])
        square = slice_norm.float().square() + replica_norm.float().square() / tp.size
        square = peers.all_reduce(square) if is_sharded(self.module) else square
        norm = float(tp.all_reduce(square).sqrt())
        for _, gradient in gradients:
            gradient.mul_(min(1.0, clip / (norm + 1e-6)))  # the addend of clip_grad_norm_
        return norm

    def _all_reduce_gradients(self, peers: AxisGroup) -> None:
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        flat = peers.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(self.parameters, flat.split([g.numel() for g in gradients]), strict=True):
            parameter.grad = part.view_as(parameter)

    def offload(self, part: Part) -> None:
        """Move the weights, or the optimizer's states, to the host."""
        if part == "weights":
            model_to_host(self.module)
        else:
            self.masters.offload()
            optimizer_to_host(self.optimizer)

    def onload(self, part: Part) -> None:
        """Move them back to the device."""
        if part == "weights":
            model_to_device(self.module)
        else:
            self.masters.onload()
            optimizer_to_device(self.optimizer)

    def state(self) -> dict[str, Any]:
        """The state from which this rank continues exactly: weights that learn, the optimizer's states, and its steps.

        Frozen weights beside an adapter are loaded from the configuration again.
        """
        parameters = self.module.named_parameters(remove_duplicate=False)
        frozen = {name for name, parameter in parameters if not parameter.requires_grad}
        return {
            "weights": {name: value for name, value in self.module.state_dict().items() if name not in frozen},
            "masters": self.masters.state(),
            "optimizer": self.optimizer.state_dict()["state"],
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a state, whose tensors are this rank's parts."""
        weights = self.module.state_dict()
        for name, value in state["weights"].items():
            local_part(weights[name]).copy_(local_part(value))
        self.masters.load_state(state.get("masters", ()))
        self.module.writes += 1
        # A state holds local tensors; under FSDP each becomes this rank's shard of the parameter's layout again.
        optimizer_states = {
            index: {name: sharded_like(value, self.parameters[index]) for name, value in moments.items()}
            for index, moments in state["optimizer"].items()
        }
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": optimizer_states})
        self.steps = state["steps"]


def lr_factor(config: OptimizerConfig, step: int) -> float:
    """The factor of the peak learning rate in a step, counted from 0.

    Raises:
        ResourceError: HF812 for a falling schedule without its end.

    >>> [lr_factor(OptimizerConfig(schedule="linear", warmup_steps=2, total_steps=4), step) for step in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    refuse(schedule_obstacles(config))
    total_steps = config.total_steps or config.warmup_steps
    progress = min((step - config.warmup_steps) / max(total_steps - config.warmup_steps, 1), 1.0)
    shape = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape
