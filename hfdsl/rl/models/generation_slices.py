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
buckets, two at a time (``gathering``), so the peak is M/2, the rank's own slices of two buckets, and the buffers of
their columns. Afterward each training slice is copied out and the rest is freed.

With FSDP, the slices of a unit are gathered over ``dp`` first, and then over ``tp`` in the same way; the shards stay.

Buckets and the parameters of generation slices are laid out at the first use, and again when a training slice has
another dtype, shape or device. They keep no memory, and refer to none that the policy has. After an error all are
dropped: a collective that was begun may still write into their memory.

Why this is right: the slices of a dim are equal and in the order of ``tp``, and the ranks of a group are neighbors, so
their joined slices are a slice of ``gen_tp``. A weight that ``tp`` replicates serves both. A weight that only
``gen_tp`` slices, since only its size divides it, comes from the rank's own replica.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM

from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.protocols.worker import Worker
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.gathering import JoinedBucket, joined_buckets
from hfdsl.rl.models.sharding import is_sharded
from hfdsl.rl.models.tensor_parallel import parallelize, slice_dims
from hfdsl.rl.workers.layouts import GATHERED_BUCKETS, GATHERED_BYTES

ParameterPlace: TypeAlias = tuple[dict[str, nn.Parameter | None], str]
"""The parameters of a module, and the name of one: looked up once, since a walk over modules takes longer than a
copy."""


NOTHING: Final = torch.empty(0)
"""The data of a parameter without memory."""


def generation_slices(policy: Policy, worker: Worker) -> GenerationSlices | None:
    """The slices with which a role samples; None if it learns with the same slices."""
    mesh = worker.mesh
    if mesh.gen_tp_size == mesh.tp:
        return None
    return GenerationSlices(policy, worker.axis("gen_tp"), worker.axis("micro_dp"), mesh.tp // mesh.gen_tp_size)


class GenerationSlices:
    """A policy of the same model, sliced over ``peers``, with weights only within ``gathered``.

    It is built from a policy that already has its shards. ``fold`` neighboring ranks of ``tp`` share one of its slices;
    they are consecutive among ``replicas``. A bucket has at most ``bucket_bytes`` of this rank's slices.
    """

    def __init__(
        self, policy: Policy, peers: AxisGroup, replicas: AxisGroup, fold: int, bucket_bytes: int = GATHERED_BYTES
    ) -> None:
        self._replicas, self._fold, self.bucket_bytes = replicas, fold, bucket_bytes
        self.policy = _without_weights(policy, peers)
        # What is sliced comes first, in the order of buckets.
        self._weights = tuple(sorted(_weights(policy, self.policy), key=lambda weight: weight.training_dim is None))
        self._units = _units(policy, self._weights) if is_sharded(policy) else {}
        self._buffers = tuple(_buffers(policy, self.policy))
        self._layouts: dict[FSDPModule | None, _Layout] = {}  # by unit; None stands for all weights without FSDP

    @contextmanager
    @torch.no_grad()
    def gathered(self) -> Iterator[Policy]:
        """Give the policy its weights within this context; entering it is a collective of all replicas."""
        buckets: list[_Bucket] = []
        try:
            if self._units:
                self._gather_units(buckets)
            else:
                self._gather_in_place(buckets)
            for training, sampling, name in self._buffers:  # such as rotary frequencies, which an offload moves
                sampling[name] = training[name]
            yield self.policy
        except BaseException:
            self._layouts.clear()
            raise
        finally:
            for weight in self._weights:
                weight.take()
            while buckets:
                bucket = buckets.pop()
                if not self._units:
                    bucket.move_back()
                bucket.joined.free()
            for layout in self._layouts.values():
                layout.forget_whole()

    def _gather_in_place(self, buckets: list[_Bucket]) -> None:
        """Gather bucket by bucket, and make the training slices views of the generation slices."""
        training = [weight.training for weight in self._weights]
        layout = self._layout(None, self._weights, training)
        for bucket in layout.gathered(training):
            buckets.append(bucket)
            bucket.move()
        for weight, parameter in layout.whole:
            parameter.data = self._cut(weight)
            weight.give(parameter)

    def _gather_units(self, buckets: list[_Bucket]) -> None:
        """Gather sharded weights: unit by unit over ``dp``, then over the replicas. The shards do not change."""
        for unit, weights in self._units.items():
            unit.unshard()
            training = [weight.training for weight in weights]
            layout = self._layout(unit, weights, training)
            for bucket in layout.gathered(training):
                buckets.append(bucket)
                bucket.give()
            for weight, parameter in layout.whole:
                parameter.data = self._cut(weight).clone()  # FSDP frees what it gathered
                weight.give(parameter)
            unit.reshard()

    def _layout(self, unit: FSDPModule | None, weights: Sequence[_Weight], training: Sequence[nn.Parameter]) -> _Layout:
        """The layout of weights; of a unit while it is gathered."""
        kinds = [(parameter.dtype, parameter.shape, parameter.device) for parameter in training]
        layout = self._layouts.get(unit)
        if layout is None or (layout.bucket_bytes, layout.kinds) != (self.bucket_bytes, kinds):
            sliced = [
                (weight, parameter.detach(), weight.training_dim)
                for weight, parameter in zip(weights, training, strict=True)
                if weight.training_dim is not None
            ]
            layout = self._layouts[unit] = _Layout(
                kinds=kinds,
                bucket_bytes=self.bucket_bytes,
                buckets=[
                    _Bucket(keys, joined, [_parameter(value) for value in joined.joined])
                    for keys, joined in joined_buckets(sliced, self._replicas, self._fold, self.bucket_bytes)
                ],
                whole=[(weight, _parameter()) for weight in weights if weight.training_dim is None],
            )
        return layout

    def _cut(self, weight: _Weight) -> torch.Tensor:
        """The generation slice of a weight that this rank holds as a whole: a view."""
        value = weight.training
        return value if weight.dim is None else value.chunk(self.policy.tp.size, weight.dim)[self.policy.tp.rank]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Weights that travel together, and the parameters of their generation slices."""

    weights: Sequence[_Weight]
    joined: JoinedBucket
    parameters: Sequence[nn.Parameter]

    def give(self) -> None:
        """Have the policy that samples use the generation slices."""
        for weight, parameter in zip(self.weights, self.parameters, strict=True):
            weight.give(parameter)

    def move(self) -> None:
        """Do the same, and make the parameters that learn views of the generation slices."""
        for weight, parameter, own in zip(self.weights, self.parameters, self.joined.own, strict=True):
            weight.training.data = own
            weight.give(parameter)

    def move_back(self) -> None:
        """Give the parameters that learn memory of their own again."""
        for weight, own in zip(self.weights, self.joined.own_copies(), strict=True):
            weight.training.data = own


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of weights whose training slices are of these ``kinds``: dtypes, shapes and devices."""

    kinds: Sequence[tuple[torch.dtype, torch.Size, torch.device]]
    bucket_bytes: int
    buckets: Sequence[_Bucket]
    whole: Sequence[tuple[_Weight, nn.Parameter]]
    """The weights that ``tp`` does not slice, each with a parameter for its generation slice."""

    def gathered(self, training: Sequence[nn.Parameter]) -> Iterator[_Bucket]:
        """The buckets whose generation slices have arrived, each yielded while the next one travels."""
        waiting: deque[tuple[_Bucket, Callable[[], None]]] = deque()
        start = 0
        for bucket in self.buckets:
            slices = training[start : start + len(bucket.weights)]
            start += len(bucket.weights)
            waiting.append((bucket, bucket.joined.begin(slices)))
            if len(waiting) == GATHERED_BUCKETS:
                yield _arrived(*waiting.popleft())
        while waiting:
            yield _arrived(*waiting.popleft())

    def forget_whole(self) -> None:
        """Keep no memory of weights that are not sliced."""
        for _, parameter in self.whole:
            parameter.data = NOTHING


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight in the policy that learns, and in the policy that samples, under all of its names there."""

    learns: ParameterPlace
    samples: tuple[ParameterPlace, ...]
    empty: nn.Parameter
    training_dim: int | None
    dim: int | None
    """The dims by which the two policies slice it."""

    @property
    def training(self) -> nn.Parameter:
        """The parameter that learns; with FSDP, a different object while its unit is gathered."""
        parameters, name = self.learns
        parameter = parameters[name]
        if parameter is None:
            raise TypeError(name)
        return parameter

    def give(self, value: nn.Parameter) -> None:
        """Have the policy that samples use a value."""
        self._set(value)

    def take(self) -> None:
        """Take the value away from the policy that samples."""
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


def _arrived(bucket: _Bucket, wait: Callable[[], None]) -> _Bucket:
    wait()
    return bucket


def _parameter(value: torch.Tensor = NOTHING) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


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
