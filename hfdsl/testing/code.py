"""Values as Python source to paste: how hypothesis prints a shrunk example."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hfdsl.deploy.cluster import Cluster, Nodes
from hfdsl.deploy.pools import ResourcePool
from hfdsl.protocols.dispatch import Dispatch
from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.protocols.placement import At, Partial, Replicated, Sharded, Varying
from hfdsl.protocols.protocol import Protocol
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column, Obj
from hfdsl.types.ragged import Jagged


def as_code(value: Any) -> str:
    """Python source that makes an equal value, where ``hf``, ``torch`` and numpy as ``np`` are imported.

    >>> import torch
    >>> as_code(Mesh(dp=2, tp=2, gen_tp=1, order=("tp", "dp", "pp")))
    "hf.Mesh(dp=2, tp=2, gen_tp=1, order=('tp', 'dp', 'pp'))"
    >>> as_code(torch.tensor([0.5, float("inf")]))
    "torch.tensor([0.5, float('inf')], dtype=torch.float32)"
    """
    maker = next((make for kind, make in _MAKERS if isinstance(value, kind)), None)
    if maker is not None:
        return maker(value)
    if type(value) in _BRACKETS:
        return _BRACKETS[type(value)](list(map(as_code, value)))
    if type(value).__name__ == "ndarray":
        return f"np.array({as_code(value.tolist())}, dtype={str(value.dtype)!r})"
    return _tensor(value) if hasattr(value, "untyped_storage") else repr(value)


_BRACKETS: dict[type, Callable[[list[str]], str]] = {
    list: lambda shown: f"[{', '.join(shown)}]",
    tuple: lambda shown: f"({', '.join(shown)}{',' * (len(shown) == 1)})",
    set: lambda shown: f"{{{', '.join(shown)}}}" if shown else "set()",
    frozenset: lambda shown: f"frozenset({{{', '.join(shown)}}})" if shown else "frozenset()",
}
"""Containers whose entries are shown one by one: ``repr`` of a NaN is a name that a program does not have."""


def _batch(batch: Batch) -> str:
    columns = [f"{name}={as_code(raw)}" for name, raw in batch.__hf_columns__.items() if raw is not None]
    return f"{type(batch).__name__}({', '.join(columns)})"


def _dict(mapping: dict[Any, Any]) -> str:
    return f"{{{', '.join(f'{as_code(key)}: {as_code(value)}' for key, value in mapping.items())}}}"


def _protocol(protocol: Protocol) -> str:
    split = [f"split={protocol.split!r}"] if protocol.split else []
    lists = [f"{name}={value!r}" for name in ("gives", "takes") if (value := getattr(protocol, name)) != "whole"]
    collect = f"collect={dict(protocol.picks)!r}"
    return f"hf.Protocol({', '.join([repr(protocol.name), *split, collect, *lists])})"


def _mesh(mesh: Mesh) -> str:
    sizes = [f"{axis}={getattr(mesh, axis)}" for axis in AXES if getattr(mesh, axis) > 1]
    folds = [f"{axis}={size}" for axis in ("gen_pp", "gen_tp") if (size := getattr(mesh, axis)) is not None]
    order = [f"order={mesh.order!r}"] if mesh.order != AXES else []
    return f"hf.Mesh({', '.join([*sizes, *folds, *order])})"


def _pool(pool: ResourcePool) -> str:
    if pool.part_of is not None:
        owner, start = pool.part_of
        sizes = [size for size in (start, pool.world_size, owner.world_size - start - pool.world_size) if size]
        return f"{_pool(owner)}.split({sizes})[{int(start > 0)}]"
    if pool.parts:
        first, second = pool.parts
        return f"{_pool(first)}.merge({_pool(second)}, {pool.name!r})"
    return f"hf.ResourcePool({list(pool.processes)}{'' if pool.use_gpu else ', use_gpu=False'}, name={pool.name!r})"


def _nodes(nodes: Nodes) -> str:
    gpus = f"gpus={nodes.gpus}, gpu_memory_gib={nodes.gpu_memory_gib}, " if nodes.gpus else ""
    memory = f", memory_gib={nodes.memory_gib}" if nodes.memory_gib is not None else ""
    domain = f", domain={nodes.domain}" if nodes.domain != 1 else ""
    return f"hf.Nodes({nodes.count}, {gpus}cpus={nodes.cpus}{memory}{domain})"


def _number(number: Any) -> str:
    finite = not isinstance(number, float) or math.isfinite(number)
    return repr(number) if finite else f"float('{number}')"


def _tensor(tensor: Any) -> str:
    """A tensor with its dtype; a tensor that is not contiguous is every second element of a larger one."""

    def nested(value: Any) -> str:
        return f"[{', '.join(map(nested, value))}]" if isinstance(value, list) else _number(value)

    empty = tensor.numel() == 0 and tensor.dim() > 1  # its shape is not in its values
    call = f"torch.zeros({tuple(tensor.shape)}" if empty else f"torch.tensor({nested(tensor.tolist())}"
    strided = "" if tensor.is_contiguous() else ".repeat_interleave(2, -1)[..., ::2]"
    return f"{call}, dtype={tensor.dtype}){strided}"


_MAKERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (Mesh, _mesh),
    (ResourcePool, _pool),
    (Cluster, lambda cluster: f"hf.Cluster({', '.join(map(as_code, cluster.kinds))})"),
    (Nodes, _nodes),
    (Protocol, _protocol),
    (Dispatch, lambda mode: f"hf.{mode}"),
    ((Replicated, Sharded, Partial, Varying, At), lambda placement: f"hf.{placement!r}"),
    (Batch, _batch),
    (Jagged, lambda jagged: f"[{', '.join(map(_tensor, jagged.rows))}]"),
    (Column, lambda column: f"hf.{type(column).__name__}({as_code(column._value)})"),
    (Obj, lambda objects: f"hf.Obj({as_code(objects._value)})"),
    (dict, _dict),
    (float, _number),
)
