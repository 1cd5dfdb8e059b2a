"""The start of a group: checks before any process starts, the processes, and their ranks."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hfdsl.errors import DeadlineError, ResourceError, WiringError
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import RESERVED_ENV, RankContext
from hfdsl.single_controller.host import InitArguments, host_class
from hfdsl.single_controller.pool import RayResourcePool
from hfdsl.single_controller.ray_internals import actor_id, forget_start, is_restarting
from hfdsl.single_controller.roles import RayClassWithInitArgs
from hfdsl.single_controller.stacks import ranks_in_words
from hfdsl.single_controller.waiting import Waiter, fetch

TENSOR_TRANSPORT_OPTION = "enable_tensor_transport"
"""The option of an actor class whose tensors may travel by one of Ray's transports."""

THREADS_OPTION = "concurrency_groups"
"""The option of an actor class with threads beside the one that runs its calls in order: their number by name."""

CLASS_OPTIONS = (TENSOR_TRANSPORT_OPTION, THREADS_OPTION)
"""The options of a class alone, which Ray ignores among those of an actor."""

PICKLING_ERRORS = (TypeError, AttributeError, pickle.PicklingError)
"""Exceptions that Ray raises for a value that cannot be pickled."""


class Lease:
    """A group's claim on its slots, until the group and the groups spawned from it end."""

    def __init__(self, pool: RayResourcePool | None) -> None:
        self._slots = pool.slots if pool else ()
        self.ended = False
        for slot in self._slots:
            slot.users.add(self)

    def end(self) -> None:
        """Release the claim."""
        self.ended = True
        for slot in self._slots:
            slot.users.discard(self)


def checked_env(env: Mapping[str, str]) -> dict[str, str]:
    """A user's variables; ``ResourceError`` (HF520) for one that the group sets, or whose value is not a string."""
    reserved = sorted(set(env) & set(RESERVED_ENV))
    if reserved:
        raise ResourceError("HF520", f"worker_env sets {', '.join(reserved)}, which the group sets; leave it out")
    invalid = [name for name, value in env.items() if not isinstance(value, str)]
    if invalid:
        raise ResourceError("HF520", f"worker_env holds strings; {invalid[0]} is {env[invalid[0]]!r}")
    return dict(env)


def check_room(pool: RayResourcePool, name: str) -> None:
    """Refuse one group too many for a slot of the pool (``ResourceError``, HF504)."""
    groups = max(len(slot.users) for slot in pool.slots)
    if groups >= pool.max_colocate_count:
        raise ResourceError(
            "HF504",
            f"group {name} does not fit on pool {pool}: {groups} groups have a process in one of its slots, and "
            f"max_colocate_count is {pool.max_colocate_count}; shut one down, raise it, or colocate the roles",
        )


def create_actors(
    role_class: RayClassWithInitArgs,
    pool: RayResourcePool,
    names: Sequence[str],
    detached: bool,
    env: Mapping[str, str],
) -> list[Any]:
    """Create one actor per slot; after ``ResourceError`` (HF521) for a name in use, those before it end again."""
    options = {**role_class.options, **pool.process_share, "lifetime": "detached" if detached else None}
    if env:
        runtime = dict(options.get("runtime_env") or {})
        options["runtime_env"] = {**runtime, "env_vars": {**runtime.get("env_vars", {}), **env}}
    remote: Any = ray.remote  # its types lack these options
    class_options = {name: options.pop(name) for name in CLASS_OPTIONS if options.get(name)}
    if class_options:
        remote = remote(**class_options)
    actor_class = remote(host_class(role_class.name, role_class.classes, restarts=restarts(role_class)))
    arguments = (_init_arguments(role_class),) if restarts(role_class) else ()
    workers: list[Any] = []
    try:
        for slot, name in zip(pool.slots, names, strict=True):
            strategy = PlacementGroupSchedulingStrategy(slot.node.placed, placement_group_bundle_index=slot.bundle)
            workers.append(actor_class.options(**options, name=name, scheduling_strategy=strategy).remote(*arguments))
    except BaseException as error:
        end_actors(workers)
        if isinstance(error, ValueError) and "already taken" in str(error):
            name_in_use = names[len(workers)]
            raise ResourceError("HF521", f"worker {name_in_use!r} runs already; use another name_prefix") from None
        if isinstance(error, PICKLING_ERRORS):
            raise WiringError(
                "HF802",
                f"class {role_class.name}, or a function that its methods are registered with, cannot be sent to a "
                f"worker; let it use plain data alone: {error}",
            ) from error
        raise
    return workers


def end_actors(workers: Sequence[Any]) -> None:
    """End the processes immediately."""
    for worker in workers:
        ray.kill(worker)
        forget_start(actor_id(worker).hex())


def restarts(role_class: RayClassWithInitArgs) -> bool:
    """Whether Ray restarts a process of the class that dies, by ``@ray.remote(max_restarts=...)``."""
    return bool(role_class.options.get("max_restarts"))


def await_restarts(workers: Sequence[Any], name: str, deadline: float | None) -> None:
    """Wait until Ray has restarted dead processes, since it refuses calls before; ``DeadlineError`` (HF807) if late."""
    until = inf if deadline is None else time.monotonic() + deadline
    while starting := [rank for rank, worker in enumerate(workers) if is_restarting(worker)]:
        if time.monotonic() > until:
            raise DeadlineError(
                "HF807", f"{ranks_in_words(starting)} of group {name} did not restart within {deadline:g} s"
            )
        time.sleep(0.05)


def _init_arguments(role_class: RayClassWithInitArgs) -> InitArguments:
    return {role: (hosted.args, hosted.kwargs) for role, hosted in role_class.roles.items()}


def start_actors(
    workers: Sequence[Any],
    role_class: RayClassWithInitArgs,
    pool: RayResourcePool,
    mesh: Mesh,
    timeout: float,
    deadline: float | None,
) -> tuple[str, int, Waiter]:
    """Send every process its rank, construct the roles, and return the meeting point and the waiter for calls.

    Raises ``ResourceError`` (HF504) if the processes are not up in time, ``RoleError`` (HF806) if a constructor raises,
    ``DeadlineError`` (HF807) if one takes longer than the deadline, and ``WiringError`` (HF802) for an argument that
    cannot be sent.
    """
    meeting = workers[0].hf_reserve.remote()
    up = [meeting, *(worker.hf_process.remote() for worker in workers)]
    late = ray.wait(up, num_returns=len(up), timeout=timeout)[1]
    if late:
        raise ResourceError(
            "HF504",
            f"{len(set(late) - {meeting})} of {len(workers)} processes of group {role_class.name} were not up after "
            f"{timeout:g} s on pool {pool}; other programs may use its slots, or the processes need longer: raise "
            "timeout",
        )
    (address, port), *processes = fetch(up)
    waiter = Waiter(deadline, tuple(processes))
    places = enumerate(zip(workers, pool.local_rank_list(), pool.local_world_size_list(), strict=True))
    arguments = () if restarts(role_class) else (_init_arguments(role_class),)
    try:
        started = [
            worker.hf_start.remote(
                RankContext(
                    rank=rank,
                    world_size=len(workers),
                    local_rank=local,
                    local_world_size=size,
                    mesh=mesh,
                    master_addr=address,
                    master_port=port,
                ),
                *arguments,
            )
            for rank, (worker, local, size) in places
        ]
    except PICKLING_ERRORS as error:
        raise WiringError("HF802", f"an argument of {role_class.name}() cannot be sent to a worker: {error}") from error
    waiter.fetch(started, f"{role_class.name}.__init__")
    return address, port, waiter
