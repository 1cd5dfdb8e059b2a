"""hfdsl: a typed dataflow language for reinforcement-learning post-training, checked before launch, run on Ray.

A name is loaded when it is first used: type checkers read the imports below, Python reads the table after them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hfdsl.check.findings import Finding
    from hfdsl.check.report import CheckError, Report
    from hfdsl.deploy.cluster import Cluster, Nodes
    from hfdsl.deploy.deployment import Deployment, Placement, place
    from hfdsl.deploy.experiment import Experiment
    from hfdsl.deploy.pools import ResourcePool
    from hfdsl.deploy.retries import Retries
    from hfdsl.errors import (
        DeadlineError,
        DefinitionError,
        HfError,
        LostProcessError,
        ProtocolError,
        ResourceError,
        RoleError,
        SizeError,
        WiringError,
    )
    from hfdsl.graph.dataflow import Dataflow, dataflow
    from hfdsl.graph.operations import fill, filter, function, merge, minibatches, present, queue, repeat, sync, take  # noqa: A004  # hf.filter
    from hfdsl.plan.optimize import Optimize
    from hfdsl.protocols.call import Call, current_call
    from hfdsl.protocols.conditions import provides, requires
    from hfdsl.protocols.dispatch import Dispatch, Execute, register_dispatch_mode, update_dispatch_mode
    from hfdsl.protocols.kinds import PerRank, PerStage
    from hfdsl.protocols.mesh import Mesh
    from hfdsl.protocols.placement import At, Partial, Replicated, Sharded, Varying
    from hfdsl.protocols.protocol import Protocol
    from hfdsl.protocols.register import register
    from hfdsl.protocols.state import corrects, exports, loads, reads, writes
    from hfdsl.protocols.worker import Worker
    from hfdsl.types.batches import Batch
    from hfdsl.types.bounds import Usual, Within
    from hfdsl.types.columns import Column, Metric, Obj, bf16, bool_, f16, f32, f64, finite, i8, i16, i32, i64, u8
    from hfdsl.types.dims import Add, Dim, Div, Mul
    from hfdsl.types.ragged import Ragged
    from hfdsl.types.rows import Grouped, GroupedBy, Independent, Whole

__version__ = "0.1.0"

__all__ = [
    "Add",
    "At",
    "Batch",
    "Call",
    "CheckError",
    "Cluster",
    "Column",
    "Dataflow",
    "DeadlineError",
    "DefinitionError",
    "Deployment",
    "Dim",
    "Dispatch",
    "Div",
    "Execute",
    "Experiment",
    "Finding",
    "Grouped",
    "GroupedBy",
    "HfError",
    "Independent",
    "LostProcessError",
    "Mesh",
    "Metric",
    "Mul",
    "Nodes",
    "Obj",
    "Optimize",
    "Partial",
    "PerRank",
    "PerStage",
    "Placement",
    "Protocol",
    "ProtocolError",
    "Ragged",
    "Replicated",
    "Report",
    "ResourceError",
    "ResourcePool",
    "Retries",
    "RoleError",
    "Sharded",
    "SizeError",
    "Usual",
    "Varying",
    "Whole",
    "WiringError",
    "Within",
    "Worker",
    "bf16",
    "bool_",
    "corrects",
    "current_call",
    "dataflow",
    "exports",
    "f16",
    "f32",
    "f64",
    "fill",
    "filter",
    "finite",
    "function",
    "i8",
    "i16",
    "i32",
    "i64",
    "loads",
    "merge",
    "minibatches",
    "place",
    "present",
    "provides",
    "queue",
    "reads",
    "register",
    "register_dispatch_mode",
    "repeat",
    "requires",
    "sync",
    "take",
    "u8",
    "update_dispatch_mode",
    "writes",
]

_NAMES = {
    "check.findings": "Finding",
    "check.report": "CheckError Report",
    "deploy.cluster": "Cluster Nodes",
    "deploy.deployment": "Deployment Placement place",
    "deploy.experiment": "Experiment",
    "deploy.pools": "ResourcePool",
    "deploy.retries": "Retries",
    "errors": "DeadlineError DefinitionError HfError LostProcessError ProtocolError ResourceError RoleError SizeError "
    "WiringError",
    "graph.dataflow": "Dataflow dataflow",
    "graph.operations": "fill filter function merge minibatches present queue repeat sync take",
    "plan.optimize": "Optimize",
    "protocols.call": "Call current_call",
    "protocols.conditions": "provides requires",
    "protocols.dispatch": "Dispatch Execute register_dispatch_mode update_dispatch_mode",
    "protocols.kinds": "PerRank PerStage",
    "protocols.mesh": "Mesh",
    "protocols.placement": "At Partial Replicated Sharded Varying",
    "protocols.protocol": "Protocol",
    "protocols.register": "register",
    "protocols.state": "corrects exports loads reads writes",
    "protocols.worker": "Worker",
    "types.batches": "Batch",
    "types.bounds": "Usual Within",
    "types.columns": "Column Metric Obj bf16 bool_ f16 f32 f64 finite i8 i16 i32 i64 u8",
    "types.dims": "Add Dim Div Mul",
    "types.ragged": "Ragged",
    "types.rows": "Grouped GroupedBy Independent Whole",
}
"""The exported names, by module."""

_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}
_ROOMS = {module.partition(".")[0] for module in _NAMES}


def _load(name: str) -> object:
    """A name of this module, or a room, that is used for the first time.

    Raises:
        AttributeError: if there is none.
    """
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without this
    return value


def _names() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})


if not TYPE_CHECKING:  # or a type checker would take any name for one of this module's
    __getattr__, __dir__ = _load, _names
