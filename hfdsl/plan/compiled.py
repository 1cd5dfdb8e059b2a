"""The compiled plan, as users hold it: a plan that prints itself, knows its memory peaks, and can be launched.

``hfdsl.plan.plan`` has the data, which routes, rows and the runtime read. What a user does with a plan stands
here, above them all, so that none of them needs to import this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hfdsl.deploy.retries import Retries
from hfdsl.plan.edges import sizes_known
from hfdsl.plan.memory import ProcessMemory, peaks, process_memory
from hfdsl.plan.plan import Plan
from hfdsl.plan.routes import phases
from hfdsl.plan.show import show
from hfdsl.plan.syncs import SyncTraffic, syncs

if TYPE_CHECKING:
    from hfdsl.runtime.backend import Lowering
    from hfdsl.runtime.running import Running


@dataclass(frozen=True)
class CompiledPlan(Plan):
    """The result of ``flow.compile``. ``print(plan)`` shows it; ``launch`` runs it."""

    @property
    def peaks(self) -> tuple[ProcessMemory, ...]:
        """For each group the process that holds most bytes of columns in a step; empty where sizes are unknown."""
        return peaks(process_memory(self, self.dims, phases(self, self.dims)).values()) if sizes_known(self) else ()

    @cached_property
    def syncs(self) -> tuple[SyncTraffic, ...]:
        """What each sync between declared layouts needs to move, with the proof that every rank gets what it needs."""
        return tuple(syncs(self))

    def __str__(self) -> str:
        return show(self, self.syncs)

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
        random stream; ``timeout`` (seconds) bounds placing and starting, ``deadline`` one step. ``worker_env`` adds
        environment variables to Ray workers. With ``retries`` the run goes on after it has lost processes: the step is
        repeated, with the same values.

        Raises:
            ResourceError: HF502, HF505 where the cluster cannot hold the pools.
            RoleError: HF806 where a role's constructor raises.
            HfError: HF807 where Ray knows a cluster's address, but nothing answers there.
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
