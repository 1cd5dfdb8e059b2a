"""The plan as data: what runs where, on which rows, and what moves. ``CompiledPlan`` prints and launches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from hfdsl.check.offloads import IdlePeriod, ResidentMemory
from hfdsl.check.report import Report
from hfdsl.deploy.deployment import Deployment, ProcessGroup
from hfdsl.graph.infer import Inference
from hfdsl.graph.program import Graph, Node, Operand, Ref, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span, definition_span
from hfdsl.graph.stages import HeldState, Split, Stage, split
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.plan.versions import VersionCounts, read_lags, version_counts
from hfdsl.protocols.dispatch import Functions
from hfdsl.protocols.layouts import Parameter
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.partitioning import Pad
from hfdsl.types.dims import Dim

Transport: TypeAlias = Literal[
    "in process", "cuda ipc", "nccl", "gloo", "shared memory", "object store", "from caller", "through driver"
]

DRIVER = "<driver>"  # no role can have this name
"""The group whose only rank is the driver itself: it holds the caller's inputs."""


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """The location of a value: chunk i on rank ``holders[i]`` of ``group``. With ``lists`` every chunk is a value."""

    group: str
    holders: tuple[int, ...]
    lists: bool = False

    @property
    def chunks(self) -> int:
        """The number of pieces."""
        return len(self.holders)

    def producer(self, chunk: int) -> tuple[str, int]:
        """The process that produces a chunk, as (group, rank)."""
        return self.group, self.holders[chunk]


@dataclass(frozen=True, slots=True)
class Balance:
    """The row weights of a balanced step; ``query`` is the runtime query that reads them."""

    query: int
    weights: Ref


@dataclass(frozen=True, slots=True)
class WholeExport:
    """Weights that one rank exports for all readers: their stated parameters, all of which it returns whole.

    They are ``copied`` for readers in the same process if their role declares a layout, as parts of them would be; of a
    role with ``held_weights`` only tensors in the memory that this gives.
    """

    parameters: tuple[Parameter, ...]
    copied: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a role method or function: on which ranks of which group, and which rows each of them gets.

    ``chunk_of[i]`` is the chunk of ``ranks[i]``. With ``per_rank`` every rank gets its own entry of a list,
    otherwise with ``chunks == 1`` the whole value. ``rows_from`` is the node whose rows are split, ``balance``
    what they are balanced by; a function keeps the partition of its rows that the steps it ``follows`` have. ``custom``
    is a protocol given as a pair of functions. ``parts`` are the syncs by schedule of the weights that it exports,
    ``exports`` describes them where they go as one whole value, and ``sync`` is the sync of those that it loads.
    """

    node: int
    label: str
    group: str
    role: str | None
    signature: Signature
    call: int
    ranks: tuple[int, ...]
    chunks: int
    chunk_of: tuple[int, ...]
    per_rank: bool
    arguments: tuple[tuple[str, Operand], ...]
    layout: ValueLayout
    pad: Pad | None = None
    custom: Functions | None = None
    rows_from: int | None = None
    balance: Balance | None = None
    follows: tuple[int, ...] = ()
    stage: int = 0
    parts: tuple[ScheduledSync, ...] = ()
    exports: WholeExport | None = None
    sync: ScheduledSync | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that a step reads: columns, their bytes, and how many of these come from another process."""

    source: int
    target: int
    columns: tuple[str, ...]
    bytes: int | None
    moved: int | None
    transport: Transport


@dataclass(frozen=True, slots=True)
class StageOf:
    """The dataflow whose stage a plan is, from which its random streams derive, and how many steps may be in flight.

    ``number`` is that of the stage in the dataflow.
    """

    dataflow: str
    steps_in_flight: int
    number: int


@dataclass(frozen=True)
class Plan:
    """A compiled dataflow.

    ``steps`` are in program order, those before a queue ahead of those behind it. Steps of one ``stage`` may run at the
    same time, which print and pictures show; the run itself waits for values, not for stages. ``layouts`` says of every
    value where its chunks are. ``presence`` says of optional columns, by node, whether they are there, where that is
    known.
    ``value_bytes`` are the bytes of values without rows (of each entry of a list), None if nothing declares them.
    ``offloads`` are the periods in which parts of roles are in host memory, ``resident`` the calls in which roles keep
    most memory of their GPUs. ``first_syncs`` is what a stream runs once before its first dispatch,
    ``stage_of`` what the plan of a stage is a stage of, ``stage_plans`` those of a plan with a dynamic queue.
    """

    graph: Graph
    inference: Inference
    deployment: Deployment
    dims: Mapping[type[Dim], int]
    groups: tuple[ProcessGroup, ...]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    layouts: Mapping[int, ValueLayout]
    report: Report = field(compare=False)
    presence: Mapping[int, Mapping[str, bool]] = field(default_factory=dict)
    value_bytes: Mapping[int, int | None] = field(default_factory=dict)
    optimize: Optimize = field(default_factory=Optimize)
    offloads: tuple[IdlePeriod, ...] = ()
    resident: tuple[ResidentMemory, ...] = ()
    first_syncs: Plan | None = field(default=None, compare=False, repr=False)
    stage_of: StageOf | None = None
    stage_plans: tuple[tuple[Stage, Plan], ...] = field(default=(), compare=False, repr=False)

    @property
    def name(self) -> str:
        """The dataflow's name."""
        return self.graph.name

    @cached_property
    def split(self) -> Split:
        """The stages between its queues; one without queues."""
        return split(self.graph)

    @cached_property
    def read_lags(self) -> Mapping[tuple[int, int], Mapping[HeldState, int]]:
        """By the nodes of a value and of its reader: by how many updates the states may be late that it is of."""
        return read_lags(self.graph, self.split)

    @cached_property
    def counts(self) -> VersionCounts:
        """The counting of versions of the states that the plan trains."""
        return version_counts(self.graph, self.split)

    @cached_property
    def steps_in_flight(self) -> int:
        """The most steps in flight where stages step on their own; 0 for a plan without queues."""
        if self.stage_of is not None:
            return self.stage_of.steps_in_flight
        return sum((queue.lag or 0) + 1 for _, queue in self.split.queues)

    @property
    def dataflow(self) -> str:
        """The dataflow from whose name random streams derive."""
        return self.name if self.stage_of is None else self.stage_of.dataflow

    def node(self, number: int) -> Node:
        """A node of the graph."""
        return self.graph.nodes[number]

    def body_span(self, step: Step) -> Span:
        """The ``def`` that a step runs: of a role that of the placed class, which may override the called one."""
        if step.role is None:
            return step.signature.span
        return definition_span(getattr(self.deployment[step.role].role, step.signature.name))

    def loads_in_flight(self, step: Step) -> bool:
        """Whether a step loads weights between the tokens of a call that runs, so that no process may wait for it."""
        op = self.node(step.node).op
        return isinstance(op, RoleCall) and op.during is not None

    @cached_property
    def sent_in_flight(self) -> frozenset[int]:
        """The exports that such steps load."""
        loads = (self.node(step.node) for step in self.steps if self.loads_in_flight(step))
        return frozenset(ref.node for load in loads for ref in load.refs)

    def mesh(self, role: str) -> Mesh:
        """The mesh of a role."""
        return self.deployment[role].mesh
