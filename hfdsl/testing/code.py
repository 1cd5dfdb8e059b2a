"""Values as Python source that can be pasted: what hypothesis prints of a shrunk example."""

from __future__ import annotations

import math
from typing import Any

from hfdsl.deploy.cluster import Cluster, Nodes
from hfdsl.deploy.pools import ResourcePool
from hfdsl.protocols.mesh import AXES, Mesh
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column, Obj
from hfdsl.types.ragged import Jagged


def as_code(value: Any) -> str:
    """Python source that makes an equal value, where ``hf`` and ``torch`` are imported.

    >>> import torch
    >>> as_code(Mesh(dp=2, tp=2, gen_tp=1, order=("tp", "dp", "pp")))
    "hf.Mesh(dp=2, tp=2, gen_tp=1, order=('tp', 'dp', 'pp'))"
    >>> as_code(torch.tensor([0.5, float("inf")]))
    "torch.tensor([0.5, float('inf')], dtype=torch.float32)"
    """
    match value:
        case Mesh():
            return _mesh(value)
        case ResourcePool():
            return _pool(value)
        case Cluster():
            return f"hf.Cluster({', '.join(map(as_code, value.kinds))})"
        case Nodes():
            return _nodes(value)
        case Batch():
            columns = [f"{name}={as_code(raw)}" for name, raw in value.__hf_columns__.items() if raw is not None]
            return f"{type(value).__name__}({', '.join(columns)})"
        case Jagged():
            return f"[{', '.join(map(_tensor, value.rows))}]" if len(value) else "[]"
        case Column():
            return f"hf.{type(value).__name__}({as_code(value._value)})"
        case Obj():
            return f"hf.Obj({as_code(value._value)})"
        case list():
            return f"[{', '.join(map(as_code, value))}]"
        case float():
            return _number(value)
    return _tensor(value) if hasattr(value, "untyped_storage") else repr(value)


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
        one, other = pool.parts
        return f"{_pool(one)}.merge({_pool(other)}, {pool.name!r})"
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
    """A tensor with its dtype; one that is not contiguous, as every second of twice as many."""

    def nested(value: Any) -> str:
        return f"[{', '.join(map(nested, value))}]" if isinstance(value, list) else _number(value)

    empty = tensor.numel() == 0 and tensor.dim() > 1  # its shape is not in its values
    made = f"torch.zeros({tuple(tensor.shape)}" if empty else f"torch.tensor({nested(tensor.tolist())}"
    strided = "" if tensor.is_contiguous() else ".repeat_interleave(2, -1)[..., ::2]"
    return f"{made}, dtype={tensor.dtype}){strided}"
