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
buckets, each while the one before is copied into its place, so the peak is M/2 and two buckets. Afterward each training
slice is copied out and the rest is freed.

Why this is right: the slices of a dim are equal and in the order of ``tp``, and the ranks of a group are neighbors, so
their joined slices are a slice of ``gen_tp``. A weight that ``tp`` replicates serves both. A weight that only
``gen_tp`` slices, since only its size divides it, comes from the rank's own replica.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM

from hfdsl.protocols.collectives import AxisGroup, SoleRank
from hfdsl.protocols.worker import Worker
from hfdsl.rl.models.forward import Policy
from hfdsl.rl.models.sharding import is_sharded
from hfdsl.rl.models.tensor_parallel import parallelize, slice_dims
from hfdsl.rl.workers.layouts import GATHERED_BUCKETS, GATHERED_BYTES


def generation_slices(policy: Policy, worker: Worker) -> GenerationSlices | None:
    """The slices with which a role samples; None if it learns with the same slices."""
    mesh = worker.mesh
    if mesh.gen_tp_size == mesh.tp:
        return None
    return GenerationSlices(policy, worker.axis("gen_tp"), worker.axis("micro_dp"), mesh.tp // mesh.gen_tp_size)


class GenerationSlices:
    """A policy of the same model, sliced over ``peers``, with weights only within ``gathered``.

    ``fold`` neighbors of ``tp`` share one of its slices; they are consecutive among ``replicas``.
    """

    def __init__(self, policy: Policy, peers: AxisGroup, replicas: AxisGroup, fold: int) -> None:
        self._training, self._replicas, self._fold = policy, replicas, fold
        self.policy = _without_weights(policy, peers)
        self._training_dims, self._dims = slice_dims(policy), slice_dims(self.policy)
        self._names = [name for name, _ in self.policy.named_parameters(remove_duplicate=False)]
        self._empty = {name: self.policy.get_parameter(name) for name in self._names}

    @contextmanager
    @torch.no_grad()
    def gathered(self) -> Iterator[Policy]:
        """Give the policy its weights within this context; entering it is a collective of all replicas."""
        views: dict[str, torch.Tensor] = {}
        try:
            if is_sharded(self._training):
                self._gather_units()
            else:
                self._gather_in_place(views)
            self._share_buffers()
            yield self.policy
        finally:
            for name, empty in self._empty.items():
                _set_parameter(self.policy, name, empty)
                if name in views:  # the only reference to the generation slice that is left
                    self._training.get_parameter(name).data = views.pop(name).clone(
                        memory_format=torch.contiguous_format
                    )

    def _gather_in_place(self, views: dict[str, torch.Tensor]) -> None:
        """Gather bucket by bucket; the training slices, which now lie in generation slices, go into ``views``."""
        names: dict[nn.Parameter, list[str]] = {}
        for name in self._names:
            names.setdefault(self._training.get_parameter(name), []).append(name)
        sliced = [parameter for parameter, tied in names.items() if tied[0] in self._training_dims]
        for parameter, parts in self._joined(sliced):
            dim = self._training_dims[names[parameter][0]]
            joined, size = torch.cat(parts, dim), parameter.shape[dim]
            parameter.data = joined.narrow(dim, self._replicas.rank % self._fold * size, size)
            views[names[parameter][0]] = parameter.data
            self._set(names[parameter], joined)
        for parameter, tied in names.items():
            if tied[0] not in self._training_dims:
                self._set(tied, self._slice(tied[0], parameter.data))

    def _joined(self, parameters: Iterable[nn.Parameter]) -> Iterator[tuple[nn.Parameter, list[torch.Tensor]]]:
        """Each parameter with its parts on the ranks that share a generation slice.

        A bucket travels while the one before it is read.
        """
        waiting: deque[tuple[list[nn.Parameter], Callable[[], list[torch.Tensor]]]] = deque()
        for bucket in _buckets(parameters):
            flat = torch.cat([parameter.data.reshape(-1) for parameter in bucket])
            waiting.append((bucket, self._replicas.begin_all_gather(flat)))
            if len(waiting) == GATHERED_BUCKETS:
                yield from self._arrived(*waiting.popleft())
        while waiting:
            yield from self._arrived(*waiting.popleft())

    def _arrived(
        self, bucket: list[nn.Parameter], gathered: Callable[[], list[torch.Tensor]]
    ) -> Iterator[tuple[nn.Parameter, list[torch.Tensor]]]:
        first = self._replicas.rank - self._replicas.rank % self._fold
        sizes = [parameter.numel() for parameter in bucket]
        flats = [flat.split(sizes) for flat in gathered()[first : first + self._fold]]
        for parameter, *parts in zip(bucket, *flats, strict=True):
            yield parameter, [part.view(parameter.shape) for part in parts]

    def _set(self, names: Iterable[str], value: torch.Tensor) -> None:
        """Give the policy that samples a weight, under all its names."""
        parameter = nn.Parameter(value, requires_grad=False)
        for name in names:
            _set_parameter(self.policy, name, parameter)

    def _gather_units(self) -> None:
        """Gather sharded weights: unit by unit over ``dp``, then over the replicas. The shards do not change."""
        for unit, names in _units(self._training, self._names).items():
            unit.unshard()
            slices: dict[nn.Parameter, nn.Parameter] = {}
            for name in names:
                parameter = self._training.get_parameter(name)
                if parameter not in slices:
                    value = self._slice(name, parameter.data)
                    value = value if name in self._training_dims else value.clone()  # FSDP frees what it gathered
                    slices[parameter] = nn.Parameter(value, requires_grad=False)
                _set_parameter(self.policy, name, slices[parameter])
            unit.reshard()

    def _slice(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """The generation slice of a weight, of which this rank has a training slice or the whole."""
        if name in self._training_dims:
            parts = self._replicas.all_gather(part)
            first = self._replicas.rank - self._replicas.rank % self._fold
            return torch.cat(parts[first : first + self._fold], self._training_dims[name])
        if name in self._dims:
            return part.chunk(self.policy.tp.size, self._dims[name])[self.policy.tp.rank]
        return part

    def _share_buffers(self) -> None:
        """Share buffers such as rotary frequencies, which an offload moves."""
        for name, buffer in self._training.named_buffers():
            path, _, leaf = name.rpartition(".")
            self.policy.get_submodule(path)._buffers[leaf] = buffer


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of consecutive parameters of one dtype that fit in a bucket."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        size = sum(member.nbytes for member in bucket) + parameter.nbytes
        if bucket and (size > GATHERED_BYTES or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


def _without_weights(policy: Policy, peers: AxisGroup) -> Policy:
    """A policy of the same model, sliced over other ranks, whose parameters and buffers take no memory."""
    config = deepcopy(policy.model.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation)
    return Policy(parallelize(model, peers, type(model).__name__).eval(), policy.temperature, peers)


def _set_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, leaf = name.rpartition(".")
    module.get_submodule(path)._parameters[leaf] = parameter


def _units(module: nn.Module, names: list[str]) -> Mapping[FSDPModule, list[str]]:
    """The modules that FSDP gathers as a unit, and the names of the parameters of each."""
    units = {path: inner for path, inner in module.named_modules() if isinstance(inner, FSDPModule)}
    members: dict[FSDPModule, list[str]] = {unit: [] for unit in units.values()}
    for name in names:
        owner = max((path for path in units if f"{name}.".startswith(f"{path}." if path else "")), key=len)
        members[units[owner]].append(name)
    return members


def replicas_of(worker: Worker | None) -> AxisGroup:
    """The ranks that sample the rows of one training chunk of a role."""
    return SoleRank() if worker is None else worker.axis("micro_dp")
