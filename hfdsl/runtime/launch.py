"""Launching a plan on a backend."""

from __future__ import annotations

from collections.abc import Mapping

from hfdsl.errors import ResourceError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.running import Processes, Running


def launch(
    plan: Plan, backend: str, *, seed: int, timeout: float, deadline: float, worker_env: Mapping[str, str]
) -> Running:
    """Start the processes of a plan.

    Raises:
        ResourceError: HF518 for an unknown backend; see ``Plan.launch`` for the others.
    """
    if backend == "local":
        return Running(plan, Processes(LocalBackend(plan, seed), {plan.name}))
    if backend == "ray":
        from hfdsl.runtime.ray import RayBackend

        return Running(plan, Processes(RayBackend(plan, seed, timeout, deadline, worker_env), {plan.name}))
    raise ResourceError("HF518", f"no backend {backend!r}; there are 'local' and 'ray'")
