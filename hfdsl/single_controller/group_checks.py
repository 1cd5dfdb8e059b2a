"""Checks of a worker group before any process starts: its arguments, and the names and rows of its methods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from hfdsl.errors import DefinitionError, ResourceError, SizeError, WiringError
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.register import Registration
from hfdsl.single_controller.roles import Target
from hfdsl.types.rows import WholeRows

ATTRIBUTES: Final = ("workers", "worker_names", "world_size", "mesh", "master_address", "master_port")
"""The attributes of a group's instances, which no method may hide."""

ARGUMENTS: Final = "its arguments are mesh, name_prefix, worker_env, detached, timeout and deadline"

FORMER_ARGUMENTS: Mapping[str, str] = {
    "device_name": "the pool says it, RayResourcePool(..., use_gpu=True) or use_gpu=False; leave it out",
    "bin_pack": "a pool places each node's processes together (STRICT_PACK); leave it out",
    "worker_names": "group.worker_names lists them; a group of processes that run is made by group.spawn(roles)",
    "worker_handles": "group.workers lists them; a group of processes that run is made by group.spawn(roles)",
    "ray_wait_register_center_timeout": "timeout= has the seconds in which the processes must be up",
    "use_gpu": "the pool says it: RayResourcePool(..., use_gpu=...)",
    "profile_steps": "leave it out; `running.trace(file)` traces the steps of a plan",
    "worker_nsight_options": "give Ray the runtime_env by @ray.remote(runtime_env=...) on the class",
}
"""Arguments of other libraries' worker groups, each with what to write instead."""


class UnknownMethodError(WiringError, AttributeError):
    """A group has no method of this name (HF202)."""


def refuse_arguments(names: Iterable[str]) -> None:
    """Refuse unknown keyword arguments, with advice for those of other libraries (``ResourceError``, HF507)."""
    for name in names:
        raise ResourceError("HF507", f"a worker group takes no {name!r}: {FORMER_ARGUMENTS.get(name, ARGUMENTS)}")


def unknown_method(group: str, name: str, names: Collection[str], kind: str) -> UnknownMethodError:
    """The error for a method that a group lacks, with the nearest name or all names."""
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(names)) or 'none'}"
    return UnknownMethodError("HF202", f"group {group} has no {kind} {name!r}; {hint}")


def check_method(group: type, name: str, target: Target, registration: Registration, mesh: Mesh) -> None:
    """Check that a registered method fits a group class and its mesh.

    Raises:
        DefinitionError: HF111 for a name that the group itself has.
        ProtocolError: HF404 for a coordinate that the mesh lacks.
        SizeError: HF313 for a split of a method that needs all rows.
    """
    method = f"{target.owner}.{target.method}"
    if hasattr(group, name) or name in ATTRIBUTES:
        raise DefinitionError("HF111", f"{method} has a name that a worker group has itself; rename the method")
    protocol = registration.protocol
    if protocol is None or registration.execute_mode is Execute.RANK_ZERO:
        return
    protocol.collected(mesh)  # HF404
    if isinstance(registration.rows, WholeRows) and protocol.splits and protocol.chunk_count(mesh) > 1:
        raise SizeError(
            "HF313",
            f"{method} needs all rows together (rows=Whole), and {registration.name} splits them into "
            f"{protocol.chunk_count(mesh)} chunks on {mesh}; use a ONE_TO_ALL method or a mesh with dp=1",
        )
