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

    Rows: ``ranks[i]`` gets the chunk ``chunk_of[i]`` of the rows of the node ``rows_from``; with ``chunks == 1`` it
    gets the whole value, and with ``per_rank`` its own entry of a list. ``balance`` has the weights by which rows are
    balanced; a function keeps the partition of the steps that it ``follows``. ``custom`` is a protocol that is a pair
    of functions. ``level`` is the number in a printed plan: steps of one level may run at the same time.

    Weights: ``parts`` are the scheduled syncs of what the step exports, and ``exports`` describes weights that go as
    one whole value. ``sync`` is the scheduled sync of what it loads.
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
    level: int = 0
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

    ``steps`` are in program order, those before a queue ahead of those behind it. A run waits for values, not for
    levels. By node of a value, ``layouts`` says where its chunks are, ``presence`` which optional columns are certainly
    present or absent, and ``value_bytes`` how large a value without rows is (or an entry of a list of such values),
    None if nothing declares it.

    ``offloads`` are the periods in which parts of roles are in host memory, and ``resident`` the calls in which roles
    keep most memory of their GPUs. A stream runs the plan ``first_syncs`` once, before its first dispatch. If a queue
    is dynamic, each stage has a plan of its own in ``stage_plans``, whose ``stage_of`` names this dataflow.
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
        """By value and reader, how many updates old each state may be that the value was made under."""
        return read_lags(self.graph, self.split)

    @cached_property
    def counts(self) -> VersionCounts:
        """The counting of versions of the states that the plan trains."""
        return version_counts(self.graph, self.split)

    @cached_property
    def steps_in_flight(self) -> int:
        """The most steps in flight if the program has queues, or the plan is that of a stage; 0 otherwise."""
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
        """The exports that steps load in flight."""
        loads = (self.node(step.node) for step in self.steps if self.loads_in_flight(step))
        return frozenset(ref.node for load in loads for ref in load.refs)

    def mesh(self, role: str) -> Mesh:
        """The mesh of a role."""
        return self.deployment[role].mesh
