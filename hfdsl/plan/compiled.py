"""The compiled plan, as users see it: it prints itself, knows its memory peaks, and can be launched.

``hfdsl.plan.plan`` has the data, which routes, rows and the runtime read. The user's interface is
here, on top of them, so that none of them imports this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hfdsl.deploy.retries import Retries
from hfdsl.plan.edges import sizes_known
from hfdsl.plan.memory import ProcessMemory, peaks, process_memory
from hfdsl.plan.networks import to_networkx
from hfdsl.plan.plan import Plan
from hfdsl.plan.routes import phases
from hfdsl.plan.show import show
from hfdsl.plan.syncs import SyncTraffic, syncs
from hfdsl.types.html import folded, preformatted

if TYPE_CHECKING:
    import networkx as nx

    from hfdsl.plan.timeline import Timeline
    from hfdsl.runtime.backend import Lowering
    from hfdsl.runtime.running import Running


MAX_DRAWN = 40
"""How many steps a picture in a notebook shows."""


@dataclass(frozen=True, repr=False)
class CompiledPlan(Plan):
    """The result of ``flow.compile``. ``print(plan)`` shows it; ``launch`` runs it."""

    @property
    def peaks(self) -> tuple[ProcessMemory, ...]:
        """For each group the process that holds most bytes of columns in a step; empty if sizes are unknown."""
        return peaks(process_memory(self, self.dims, phases(self, self.dims)).values()) if sizes_known(self) else ()

    @cached_property
    def syncs(self) -> tuple[SyncTraffic, ...]:
        """The transfers of each sync between declared layouts, with the proof that every rank gets what it needs."""
        return tuple(syncs(self))

    def to_networkx(self, timeline: Timeline | None = None) -> nx.DiGraph:
        """The plan for networkx: inputs, steps and results by name, and an edge for each value that a step reads.

        Nodes have what those of ``TracedGraph.to_networkx`` have, with sizes in ``rows`` and ``shapes``; steps also
        have ``stage``, ``pool``, ``group``, ``ranks``, ``chunks`` and ``mesh``. Edges have ``columns``, ``transport``,
        ``bytes``, and ``moved``, the bytes among them that come from another process. With a measured or predicted
        ``timeline``, steps have ``start`` and ``seconds``.

        Raises:
            PackageError: HF990 if networkx is not installed.
            WiringError: HF991 for a timeline with other steps than the plan.

        >>> import networkx as nx
        >>> import hfdsl as hf
        >>> class B(hf.Dim): ...
        >>> class Rows(hf.Batch):
        ...     x: hf.f32[B]
        >>> class Role(hf.Worker):
        ...     @hf.register(hf.Dispatch.DP_PROTO)
        ...     def work(self, rows: Rows) -> Rows: ...
        >>> @hf.dataflow
        ... def flow(rows: Rows, role: Role) -> Rows:
        ...     return role.work(rows)
        >>> plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 8})
        >>> network = plan.to_networkx()
        >>> nx.dag_longest_path(network), network.edges["rows", "role.work"]["bytes"]
        (['rows', 'role.work', 'result'], 32)
        """
        return to_networkx(self, timeline)

    def __str__(self) -> str:
        return show(self, self.syncs)

    def __repr__(self) -> str:
        sizes = " ".join(f"{dim}={size}" for dim, size in self.dims.items())
        return f"<plan of '{self.name}': {len(self.steps)} steps{f', {sizes}' if sizes else ''}>"

    def _repr_html_(self) -> str:
        """For notebooks: the picture, unless it is too large for a page, and the printed plan."""
        if len(self.steps) > MAX_DRAWN:
            return preformatted(str(self))
        from hfdsl.tools.draw import picture  # late: an arrow from this room up to the tools

        return (
            f'<div style="overflow-x:auto">{picture(self)}</div>{folded(f"plan of {self.name!r} in print", str(self))}'
        )

    def launch(
        self,
        backend: Literal["local", "ray"] | Lowering = "local",
        *,
        seed: int = 0,
        timeout: float = 60.0,
        deadline: float = 1800.0,
        worker_env: Mapping[str, str] | None = None,
        retries: Retries | None = None,
    ) -> Running:
        """Start the plan's processes; use it as a context manager, which also ends them.

        ``backend="local"`` simulates all ranks in this process, ``"ray"`` makes worker groups on the Ray cluster that
        is connected (or starts one); a lowering of your own may stand in their place. ``seed`` is the root of every
        random stream; ``timeout`` (seconds) bounds placing and starting, ``deadline`` one step and, unless a method or
        the placement of its role has its own, each call, constructors too. ``worker_env`` adds
        environment variables to Ray workers. With ``retries`` the run continues after it has lost processes: it repeats
        the step, with the same values.

        Raises:
            ResourceError: HF502, HF505 if the cluster cannot hold the pools.
            RoleError: HF806 if a role's constructor raises.
            ResourceError: HF931 if ``deadline`` is not a positive number, HF932 if ``seed`` is not a whole number.
            DeadlineError: HF807 if a role's constructor takes longer than its deadline.
            PackageError: HF990 for ``"ray"`` where Ray or torch is not installed.
            HfError: HF807 if Ray knows a cluster's address, but nothing answers there.
        """
        from hfdsl.runtime.launch import launch  # late: the one arrow from this room up to the runtime

        return launch(
            self,
            backend,
            seed=seed,
            timeout=timeout,
            deadline=deadline,
            worker_env=worker_env or {},
            retries=retries,
        )
