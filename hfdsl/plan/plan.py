"""The plan: what runs where, on which rows, and what moves; a value that can be printed, compared and launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from hfdsl.check.offloads import Idle, Keeps
from hfdsl.check.report import Report
from hfdsl.deploy.deployment import Deployment, ProcessGroup
from hfdsl.graph.infer import Inference
from hfdsl.graph.program import Graph, Node, Operand, Ref
from hfdsl.graph.signatures import Signature
from hfdsl.plan.optimize import Optimize
from hfdsl.protocols.dispatch import Functions
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.partitioning import Pad
from hfdsl.types.dims import Dim

if TYPE_CHECKING:
    from hfdsl.plan.memory import ProcessMemory
    from hfdsl.runtime.backend import Lowering
    from hfdsl.runtime.running import Running

Transport: TypeAlias = Literal[
    "in process", "cuda ipc", "nccl", "shared memory", "object store", "from caller", "through driver"
]

DRIVER = "<driver>"  # no role can have this name
"""The group of one rank that is the driver itself: it holds what the caller hands in."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a value lies: chunk i on rank ``holders[i]`` of ``group``. ``lists``: every chunk is a value of its own."""

    group: str
    holders: tuple[int, ...]
    lists: bool = False

    @property
    def chunks(self) -> int:
        """The number of pieces."""
        return len(self.holders)

    def maker(self, chunk: int) -> tuple[str, int]:
        """The process that makes a chunk, as (group, rank)."""
        return self.group, self.holders[chunk]


@dataclass(frozen=True, slots=True)
class Balance:
    """By what the rows of a step are balanced: ``number`` is the first step of those with the same weights."""

    number: int
    weights: Ref


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a role method or function: on which ranks of which group, and which rows each of them gets.

    ``chunk_of[i]`` is the chunk of ``ranks[i]``; with ``chunks == 1`` every rank gets the whole value, and with
    ``per_rank`` the entry of a list that has its number.
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
    layout: Layout
    pad: Pad | None = None
    custom: Functions | None = None
    rows_from: int | None = None  # the node whose rows are split
    balance: Balance | None = None
    follows: tuple[int, ...] = ()  # the steps whose partition of rows a function follows, where they have one
    stage: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """What a step reads of a value: columns, bytes a step in all, and how many of them come from another process."""

    source: int
    target: int
    columns: tuple[str, ...]
    bytes: int | None
    moved: int | None
    transport: Transport


@dataclass(frozen=True)
class Plan:
    """A compiled dataflow. ``print(plan)`` shows it; ``launch`` runs it.

    ``steps`` are in program order; steps of one ``stage`` wait for nothing in common and may run at the same time.
    """

    graph: Graph
    inference: Inference
    deployment: Deployment
    dims: Mapping[type[Dim], int]
    groups: tuple[ProcessGroup, ...]
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    layouts: Mapping[int, Layout]
    report: Report = field(compare=False)
    presence: Mapping[int, Mapping[str, bool]] = field(
        default_factory=dict
    )  # of optional columns, by node, where known
    optimize: Optimize = field(default_factory=Optimize)
    offloads: tuple[Idle, ...] = ()  # what lies on the host when
    kept: tuple[Keeps, ...] = ()  # for every lot of GPUs the call in which roles keep most of them

    @property
    def name(self) -> str:
        """The dataflow's name."""
        return self.graph.name

    def node(self, number: int) -> Node:
        """A node of the graph."""
        return self.graph.nodes[number]

    def mesh(self, role: str) -> Mesh:
        """The mesh of a role."""
        return self.deployment[role].mesh

    @property
    def peaks(self) -> tuple[ProcessMemory, ...]:
        """For each group the process that holds most bytes of columns in a step; nothing where sizes are unknown."""
        from hfdsl.plan.edges import sizes_known
        from hfdsl.plan.memory import peaks, process_memory
        from hfdsl.plan.phases import phases

        return peaks(process_memory(self, self.dims, phases(self, self.dims)).values()) if sizes_known(self) else ()

    def __str__(self) -> str:
        from hfdsl.plan.show import show

        return show(self)

    def launch(
        self,
        backend: Literal["local", "ray"] | Lowering = "local",
        *,
        seed: int = 0,
        timeout: float = 60.0,
        deadline: float = 1800.0,
        worker_env: Mapping[str, str] | None = None,
    ) -> Running:
        """Start the plan's processes; use it as a context manager, which also ends them.

        ``backend="local"`` simulates all ranks in this process, ``"ray"`` makes worker groups on the Ray cluster that
        is connected (or starts one); a lowering of your own may stand in their place. ``seed`` is the root of every
        random stream; ``timeout`` (seconds) bounds placing and starting, ``deadline`` one step. ``worker_env`` adds
        environment variables to Ray workers.

        Raises:
            ResourceError: HF502, HF505 where the cluster cannot hold the pools.
            RoleError: HF806 where a role's constructor raises.
            HfError: HF807 where Ray knows a cluster's address, and nobody answers there.
        """
        from hfdsl.runtime.launch import launch

        return launch(self, backend, seed=seed, timeout=timeout, deadline=deadline, worker_env=worker_env or {})
