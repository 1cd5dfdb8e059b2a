"""Starting a group: what is checked before any process starts, and how the processes learn their ranks."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hfdsl.errors import ResourceError, WiringError
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import RESERVED_ENV, RankContext
from hfdsl.single_controller.calls import fetch
from hfdsl.single_controller.host import host_class
from hfdsl.single_controller.pool import RayResourcePool
from hfdsl.single_controller.roles import RayClassWithInitArgs

TENSORS = "enable_tensor_transport"
"""The option of an actor class whose tensors may travel by a transport of Ray's."""


class Lease:
    """A group's claim on its slots: it lasts as long as the group, or a group spawned from it, is in use."""

    def __init__(self, pool: RayResourcePool | None) -> None:
        self._slots = pool.slots if pool else ()
        self.over = False
        for slot in self._slots:
            slot.users.add(self)

    def end(self) -> None:
        """Give the claim up."""
        self.over = True
        for slot in self._slots:
            slot.users.discard(self)


def checked_env(env: Mapping[str, str]) -> dict[str, str]:
    """What a user adds; ``ResourceError`` (HF520) for one of the group's own or a value that is no text."""
    reserved = sorted(set(env) & set(RESERVED_ENV))
    if reserved:
        raise ResourceError("HF520", f"worker_env sets {', '.join(reserved)}, which the group sets; leave it out")
    odd = [name for name, value in env.items() if not isinstance(value, str)]
    if odd:
        raise ResourceError("HF520", f"worker_env holds strings; {odd[0]} is {env[odd[0]]!r}")
    return dict(env)


def check_room(pool: RayResourcePool, name: str) -> None:
    """Raise ``ResourceError`` (HF504) when one more group would be too many for a slot of the pool."""
    full = max(len(slot.users) for slot in pool.slots)
    if full >= pool.max_colocate_count:
        raise ResourceError(
            "HF504",
            f"group {name} does not fit on pool {pool}: {full} groups have a process in one of its slots, and "
            f"max_colocate_count is {pool.max_colocate_count}; shut one down, raise it, or colocate the roles",
        )


def create_actors(
    role_class: RayClassWithInitArgs,
    pool: RayResourcePool,
    names: Sequence[str],
    detached: bool,
    env: Mapping[str, str],
) -> list[Any]:
    """One actor a slot; ``ResourceError`` (HF521) for a name that is taken, and those before it end again."""
    options = {**role_class.options, **pool.process_share, "lifetime": "detached" if detached else None}
    if env:
        runtime = dict(options.get("runtime_env") or {})
        options["runtime_env"] = {**runtime, "env_vars": {**runtime.get("env_vars", {}), **env}}
    remote: Any = ray.remote  # its types do not know the option
    if options.pop(TENSORS, False):  # of a class alone: Ray overlooks it among those of an actor
        remote = remote(**{TENSORS: True})
    actor_class = remote(host_class(role_class.name, role_class.classes))
    workers: list[Any] = []
    try:
        for slot, name in zip(pool.slots, names, strict=True):
            where = PlacementGroupSchedulingStrategy(slot.node.placed, placement_group_bundle_index=slot.bundle)
            workers.append(actor_class.options(**options, name=name, scheduling_strategy=where).remote())
    except BaseException as error:
        end_actors(workers)
        if isinstance(error, ValueError) and "already taken" in str(error):
            taken = names[len(workers)]
            raise ResourceError("HF521", f"worker {taken!r} runs already; use another name_prefix") from None
        raise
    return workers


def end_actors(workers: Sequence[Any]) -> None:
    """End the processes at once."""
    for worker in workers:
        ray.kill(worker)


def start_actors(
    workers: Sequence[Any], role_class: RayClassWithInitArgs, pool: RayResourcePool, mesh: Mesh, timeout: float
) -> tuple[str, int]:
    """Tell every process its rank and construct the roles in it; the address and port where the group meets.

    Raises ``ResourceError`` (HF504) when the processes are not up in time, ``RoleError`` (HF806) when a constructor
    raises, and ``WiringError`` (HF802) for an argument that cannot be sent.
    """
    up = [workers[0].hf_reserve.remote(), *(worker.hf_context.remote() for worker in workers[1:])]
    late = ray.wait(up, num_returns=len(up), timeout=timeout)[1]
    if late:
        raise ResourceError(
            "HF504",
            f"{len(late)} of {len(up)} processes of group {role_class.name} were not up after {timeout:g} s on pool "
            f"{pool}; other programs may use its slots, or the processes need longer: raise timeout",
        )
    (address, port), *_ = fetch(up)
    arguments = {role: (hosted.args, hosted.kwargs) for role, hosted in role_class.roles.items()}
    places = enumerate(zip(workers, pool.local_rank_list(), pool.local_world_size_list(), strict=True))
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
                arguments,
            )
            for rank, (worker, local, size) in places
        ]
    except (TypeError, pickle.PicklingError) as error:
        raise WiringError("HF802", f"an argument of {role_class.name}() cannot be sent to a worker: {error}") from error
    fetch(started)
    return address, port
