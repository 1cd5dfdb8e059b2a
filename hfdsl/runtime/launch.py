"""The launch of a plan on a backend."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from hfdsl.check.rules.dataflow.serialization import unsendable_values
from hfdsl.deploy.retries import Retries
from hfdsl.errors import HfError, PackageError, ResourceError, WiringError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Backend, Lowering
from hfdsl.runtime.local import LocalBackend
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.protocol_probes import probe_protocols
from hfdsl.runtime.queues.dispatch_loads import check_in_flight
from hfdsl.runtime.recovery.steps import RecoverableBackend, Recovery
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.loaded_states import check_copied_states
from hfdsl.types.numbers import brief, checked_deadline, checked_seed


class LaunchedError(BaseException):
    """Raised when a script that is loaded for its definitions launches a plan; ``except Exception`` lets it pass."""


_loading: ContextVar[bool] = ContextVar("hfdsl_loading", default=False)


@contextmanager
def nothing_launched() -> Iterator[None]:
    """Within this context, a launch raises ``LaunchedError``."""
    token = _loading.set(True)
    try:
        yield
    finally:
        _loading.reset(token)


def launch(
    plan: Plan,
    backend: str | Lowering,
    *,
    seed: int,
    timeout: float,
    deadline: float,
    worker_env: Mapping[str, str],
    retries: Retries | None = None,
) -> Running:
    """Start the processes of a plan, on a predefined backend or on that of a lowering.

    Locally no process can be lost, so ``retries`` change nothing there.

    Raises:
        ResourceError: HF931 for a deadline that is not a positive number, HF932 for a seed that is not a whole number,
            HF518 for an unknown backend, HF801 for a module of the program that workers cannot import; see
            ``CompiledPlan.launch`` for the others.
        PackageError: HF990 if Ray or torch is not installed.
        CheckpointError: HF908 if a role loads a state that ``retries`` would need and cannot copy.
        WiringError: HF802 if the program holds what cannot be sent to another process.
        HfError: HF765 if a run cannot follow the decisions of a queue, or deliver weights in flight.
        ProtocolError: HF427 if a protocol given as two functions returns rows in another order, or some twice.
    """
    if _loading.get():
        raise LaunchedError
    if retries is not None and not isinstance(retries, Retries):
        raise ResourceError("HF841", f"launch(retries=) takes an hf.Retries, got {brief(retries)}")
    seed, deadline = checked_seed(seed, "launch(seed=)"), checked_deadline(deadline, "launch(deadline=)")
    probe_protocols(plan)
    check_in_flight(plan, recovers=retries is not None)
    if backend == "local":
        return Running(plan, Processes(LocalBackend(plan, seed), {plan.name: 0}, seed, [plan]))
    if retries is not None and retries.every is not None:
        check_copied_states([plan])
    if backend == "ray":
        for package in ("ray", "torch"):
            if not _is_installed(package):
                needed = "launch(backend='ray') needs Ray and torch: pip install 'hfdsl[ray]'"
                raise PackageError("HF990", f"{needed}; the package {package} is not installed here")
        from hfdsl.runtime.ray.backend import RayBackend

        try:
            ray = RayBackend(plan, seed, timeout, deadline, worker_env)
        except HfError as error:
            raise _explained(plan, error) from error
        return _started(plan, ray, seed, retries)
    if callable(backend):
        lowered = backend(plan, seed=seed, timeout=timeout, deadline=deadline, worker_env=worker_env)
        return _started(plan, lowered, seed, retries)
    raise ResourceError("HF518", f"no backend {backend!r}; there are 'local' and 'ray'")


def _is_installed(package: str) -> bool:
    return sys.modules.get(package) is not None or find_spec(package) is not None


def _started(plan: Plan, backend: Backend, seed: int, retries: Retries | None) -> Running:
    processes = Processes(backend, {plan.name: 0}, seed, [plan])
    try:
        check_in_flight(plan, recovers=False, backend=backend)
        if retries is not None:
            if not isinstance(backend, RecoverableBackend):
                lacks = f"{type(backend).__name__} cannot replace processes"
                raise ResourceError("HF841", f"retries= needs a backend that can, such as 'ray': {lacks}")
            processes.recovery = Recovery(backend, retries, processes.steps)
            processes.recovery.begin()
    except BaseException:
        processes.close()
        raise
    return Running(plan, processes)


def _explained(plan: Plan, error: HfError) -> HfError:
    """The error of a pickler, or of an import on a worker, in terms of the program."""
    if error.code == "HF802" and (problem := next(unsendable_values(plan.graph, plan.deployment), None)):
        return WiringError("HF802", problem.message)  # a pickler names only the type, and not where the value is
    missing = re.search(r"outside of a role's method.*No module named '([\w.]+)'", error.message, re.DOTALL)
    module = sys.modules.get(missing[1]) if missing else None
    if module is None:
        return error
    file = getattr(module, "__file__", None) or "no file"
    return ResourceError(
        "HF801",
        f"a worker cannot import '{module.__name__}', which this process imported from {file}; classes and functions "
        "of a module are pickled by its name: put its folder on PYTHONPATH, "
        'launch(..., worker_env={"PYTHONPATH": ...}), or install it as a package',
    )
