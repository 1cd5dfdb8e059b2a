"""hfdsl: a typed dataflow language for reinforcement-learning post-training, checked before launch, run on Ray."""

from hfdsl.check.findings import CheckError, Finding, Report
from hfdsl.deploy.cluster import Cluster, Nodes
from hfdsl.deploy.deployment import Deployment, Placement, place
from hfdsl.deploy.experiment import Experiment
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import DefinitionError, HfError, ProtocolError, ResourceError, RoleError, SizeError, WiringError
from hfdsl.graph.dataflow import Dataflow, dataflow
from hfdsl.graph.operations import fill, filter, function, merge, minibatches, present, repeat, sync, take  # noqa: A004  # hf.filter
from hfdsl.protocols.call import Call, current_call
from hfdsl.protocols.conditions import provides, requires
from hfdsl.protocols.dispatch import Dispatch, Execute, register_dispatch_mode, update_dispatch_mode
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.placement import At, Partial, Replicated, Sharded, Varying
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import register
from hfdsl.protocols.state import exports, loads, reads, writes
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column, Metric, Obj, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8
from hfdsl.types.dims import Add, Dim, Div, Mul
from hfdsl.types.ragged import Ragged
from hfdsl.types.rows import Grouped, Independent, Whole

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
    "DefinitionError",
    "Deployment",
    "Dim",
    "Dispatch",
    "Div",
    "Execute",
    "Experiment",
    "Finding",
    "Grouped",
    "HfError",
    "Independent",
    "Mesh",
    "Metric",
    "Mul",
    "Nodes",
    "Obj",
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
    "RoleError",
    "Sharded",
    "SizeError",
    "Varying",
    "Whole",
    "WiringError",
    "Worker",
    "bf16",
    "bool_",
    "current_call",
    "dataflow",
    "exports",
    "f16",
    "f32",
    "f64",
    "fill",
    "filter",
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
