"""The slices with which an actor samples if ``gen_tp`` is less than ``tp`` (Sheng et al., 2025, HybridFlow).

An example
----------
``Mesh(tp=4, gen_tp=2)``, and a weight of 8 rows that ``tp`` slices. Neighbors along ``tp`` share a generation slice,
so every rank's training slice lies inside its generation slice::

    tp rank    training    receives     generation slice    replica    samples
       0       rows 0-1    2-3 of 1     0-3                    0       the first half of the prompts
       1       rows 2-3    0-1 of 0     0-3                    1       the second half
       2       rows 4-5    6-7 of 3     4-7                    0       the first half
       3       rows 6-7    4-5 of 2     4-7                    1       the second half

With M bytes of weights, a rank holds M/4, receives (2 - 1) M/4, and has M/2 while it samples: no byte twice. Weight by
weight, the training slice becomes a view of the generation slice, and its own memory is freed. Weights travel in
buckets, each while the one before is copied into its place (``gathering``), so the peak is M/2 and two buckets.
Afterward each training slice is copied out and the rest is freed.

With FSDP, the slices of a unit are gathered over ``dp`` first, and then over ``tp`` in the same way; the shards stay.

Why this is right: the slices of a dim are equal and in the order of ``tp``, and the ranks of a group are neighbors, so
their joined slices are a slice of ``gen_tp``. A weight that ``tp`` replicates serves both. A weight that only
``gen_tp`` slices, since only its size divides it, comes from the rank's own replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM

from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.protocols.worker import Worker
from hfdsl.rl.copying import copy_all
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.gathering import gathered_in_buckets
from hfdsl.rl.models.sharding import is_sharded
from hfdsl.rl.models.tensor_parallel import parallelize, slice_dims
from hfdsl.rl.workers.layouts import GATHERED_BYTES

ParameterPlace: TypeAlias = tuple[dict[str, nn.Parameter | None], str]
"""The parameters of a module, and the name of one: looked up once, as walks over modules take longer than copies."""


def generation_slices(policy: Policy, worker: Worker) -> GenerationSlices | None:
    """The slices with which a role samples; None if it learns with the same slices."""
    mesh = worker.mesh
    if mesh.gen_tp_size == mesh.tp:
        return None
    return GenerationSlices(policy, worker.axis("gen_tp"), worker.axis("micro_dp"), mesh.tp // mesh.gen_tp_size)


class GenerationSlices:
    """A policy of the same model, sliced over ``peers``, with weights only within ``gathered``.

    It is made of a policy that has its shards. ``fold`` neighbors of ``tp`` share one of its slices; they are
    consecutive among ``replicas``. A bucket has at most ``bucket_bytes`` of this rank's.
    """

    def __init__(
        self, policy: Policy, peers: AxisGroup, replicas: AxisGroup, fold: int, bucket_bytes: int = GATHERED_BYTES
    ) -> None:
        self._replicas, self._fold, self.bucket_bytes = replicas, fold, bucket_bytes
        self.policy = _without_weights(policy, peers)
        self._weights = tuple(_weights(policy, self.policy))
        self._units = _units(policy, self._weights) if is_sharded(policy) else {}
        self._buffers = tuple(_buffers(policy, self.policy))

    @contextmanager
    @torch.no_grad()
    def gathered(self) -> Iterator[Policy]:
        """Give the policy its weights within this context; entering it is a collective of all replicas."""
        views: list[tuple[nn.Parameter, torch.Tensor]] = []
        try:
            if self._units:
                self._gather_units()
            else:
                self._gather_in_place(views)
            for training, sampling, name in self._buffers:  # such as rotary frequencies, which an offload moves
                sampling[name] = training[name]
            yield self.policy
        finally:
            for weight in self._weights:
                weight.take()
            while views:  # each is the only reference to its generation slice that is left
                parameter, view = views.pop()
                parameter.data = view.clone(memory_format=torch.contiguous_format)

    def _gather_in_place(self, views: list[tuple[nn.Parameter, torch.Tensor]]) -> None:
        """Gather bucket by bucket; the training slices, which now lie in generation slices, go into ``views``."""
        for weight, joined, own in self._joined(self._weights):
            parameter = weight.training
            parameter.data = own
            views.append((parameter, own))
            weight.give(joined)
        for weight in self._weights:
            if weight.training_dim is None:
                weight.give(self._cut(weight))

    def _gather_units(self) -> None:
        """Gather sharded weights: unit by unit over ``dp``, then over the replicas. The shards do not change."""
        for unit, weights in self._units.items():
            unit.unshard()
            for weight, joined, _ in self._joined(weights):
                weight.give(joined)
            for weight in weights:
                if weight.training_dim is None:
                    weight.give(self._cut(weight).clone())  # FSDP frees what it gathered
            unit.reshard()

    def _joined(self, weights: Iterable[_Weight]) -> Iterable[tuple[_Weight, torch.Tensor, torch.Tensor]]:
        """The generation slice of each weight that is sliced for training, and the training slice in it."""
        sliced = ((weight, weight.training.data) for weight in weights if weight.training_dim is not None)
        buckets = gathered_in_buckets(sliced, self._replicas.begin_all_gather, self.bucket_bytes)
        # unlike a generator expression, this keeps no bucket while the next one begins
        return chain.from_iterable(map(self._arrived_slices, buckets))

    def _arrived_slices(
        self, bucket: Sequence[tuple[_Weight, list[torch.Tensor]]]
    ) -> list[tuple[_Weight, torch.Tensor, torch.Tensor]]:
        """The generation slices, and the training slices in them, of a bucket that has arrived."""
        place = self._replicas.rank % self._fold
        neighbors = slice(self._replicas.rank - place, self._replicas.rank - place + self._fold)
        placed, targets = [], list[torch.Tensor]()
        for weight, slices in bucket:
            dim, shape = weight.training_dim or 0, list(slices[0].shape)
            shape[dim] *= self._fold
            joined = slices[0].new_empty(shape)
            parts = joined.chunk(self._fold, dim)
            placed.append((weight, joined, parts[place]))
            targets += parts
        copy_all(targets, [part for _, slices in bucket for part in slices[neighbors]])
        return placed

    def _cut(self, weight: _Weight) -> torch.Tensor:
        """The generation slice of a weight that this rank has whole, as a view."""
        value = weight.training.data
        return value if weight.dim is None else value.chunk(self.policy.tp.size, weight.dim)[self.policy.tp.rank]


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight of the policy that learns, and of the one that samples, under all its names there."""

    learns: ParameterPlace
    samples: tuple[ParameterPlace, ...]
    empty: nn.Parameter
    training_dim: int | None
    dim: int | None
    """The dims by which the two policies slice it."""

    @property
    def training(self) -> nn.Parameter:
        """The parameter that learns; with FSDP another one while its unit is gathered."""
        parameters, name = self.learns
        parameter = parameters[name]
        if parameter is None:
            raise TypeError(name)
        return parameter

    def give(self, value: torch.Tensor) -> None:
        """Have the policy that samples use a value."""
        self._set(nn.Parameter(value, requires_grad=False))

    def take(self) -> None:
        """Leave it without one."""
        self._set(self.empty)

    def _set(self, parameter: nn.Parameter) -> None:
        for parameters, name in self.samples:
            parameters[name] = parameter


def _weights(training: Policy, sampling: Policy) -> Iterator[_Weight]:
    """The weights of two policies of one model, in order."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, _ in sampling.named_parameters(remove_duplicate=False):
        names.setdefault(training.get_parameter(name), []).append(name)
    training_dims, dims = slice_dims(training), slice_dims(sampling)
    for tied in names.values():
        yield _Weight(
            learns=_place(training, tied[0]),
            samples=tuple(_place(sampling, name) for name in tied),
            empty=sampling.get_parameter(tied[0]),
            training_dim=training_dims.get(tied[0]),
            dim=dims.get(tied[0]),
        )


def _place(module: nn.Module, name: str) -> ParameterPlace:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path)._parameters, leaf


def _units(module: nn.Module, weights: Sequence[_Weight]) -> Mapping[FSDPModule, Sequence[_Weight]]:
    """The modules that FSDP gathers as a unit, and the weights of each."""
    # By the parameters of a module, which is in the innermost of the units around it.
    owners: dict[int, FSDPModule] = {}
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            owners |= {id(submodule._parameters): inner for submodule in inner.modules()}
    members: dict[FSDPModule, list[_Weight]] = {unit: [] for unit in owners.values()}
    for weight in weights:
        members[owners[id(weight.learns[0])]].append(weight)
    return members


def _buffers(training: nn.Module, sampling: nn.Module) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Where both policies have their buffers, by name."""
    modules = dict(sampling.named_modules())
    for path, module in training.named_modules():
        for name in module._buffers:
            yield module._buffers, modules[path]._buffers, name


def _without_weights(policy: Policy, peers: AxisGroup) -> Policy:
    """A policy of the same model, sliced over other ranks, whose parameters and buffers take no memory."""
    config = deepcopy(policy.model.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation)
    return Policy(parallelize(model, peers, type(model).__name__).eval(), policy.temperature, peers)


def replicas_of(worker: Worker | None) -> AxisGroup:
    """The ranks that sample the rows of one training chunk of a role."""
    return SoleRank() if worker is None else worker.axis("micro_dp")
