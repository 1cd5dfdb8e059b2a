"""Deployments: every role of a dataflow with its class, its arguments and its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

from hfdsl.deploy.memory import GpuMemory
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import ResourceError
from hfdsl.graph.spans import NOWHERE, Span, caller_span
from hfdsl.protocols.mesh import Mesh, check_mesh
from hfdsl.protocols.offloading import not_offloadable
from hfdsl.protocols.worker import PROCESSES_PER_SLOT, Worker
from hfdsl.types.arguments import constructor_takes
from hfdsl.types.numbers import checked_deadline
from hfdsl.types.similar_names import closest

W = TypeVar("W", bound=Worker, covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

TransportName: TypeAlias = Literal["object store", "cuda ipc"]
"""The transport by which values leave the process that produced them."""


@dataclass(frozen=True, slots=True)
class Placement(Generic[W]):
    """A role's class and constructor arguments, the pool that it runs on, and the mesh of its ranks."""

    role: type[W]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    pool: ResourcePool
    mesh: Mesh
    colocate: bool
    gpu_memory: GpuMemory | None = None
    transport: TransportName | None = None
    offload: bool | None = None
    deadline: float | None = None
    span: Span = field(default=NOWHERE, compare=False)


def _named_parts(place: F) -> F:
    """Refuse a call without a role or ``pool=`` with HF507; for type checkers both remain required."""

    @wraps(place)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if not args:
            passed = f", with {', '.join(kwargs)}=" if kwargs else ""
            raise ResourceError(
                "HF507", f"place is called without a role{passed}: its first argument is the role class"
            )
        if "pool" not in kwargs:
            role_name = getattr(args[0], "__name__", repr(args[0]))
            raise ResourceError(
                "HF507",
                f"place({role_name}) needs pool=, the hf.ResourcePool whose slots {role_name} runs on",
            )
        return place(*args, **kwargs)

    return checked  # type: ignore[return-value]  # the signature is that of `place`


@_named_parts
def place(
    role: type[W],
    /,
    *args: Any,
    pool: ResourcePool,
    mesh: Mesh | None = None,
    colocate: bool = True,
    gpu_memory: str | Mapping[str, str] | None = None,
    transport: TransportName | None = None,
    offload: bool | None = None,
    deadline: float | None = None,
    **kwargs: Any,
) -> Placement[W]:
    """Place a role on a pool; ``args`` and ``kwargs`` go to its constructor, on every rank.

    Without a mesh, all ranks are data parallel. Roles on one pool share one process per rank; ``colocate=False`` gives
    a role processes of its own on the same devices. ``gpu_memory``, such as ``"40GiB"`` or ``"60%"`` of the device, or
    ``{"weights": "14GiB", "optimizer": "42GiB"}``, is the GPU memory that a rank keeps, so that ``check`` can add up
    the roles on each GPU. ``transport`` is how the role's outputs leave its process; by default CUDA IPC between GPUs
    of a node and within one, otherwise the object store. Weights go by NCCL by default, for which a role waits until
    their readers have them; with a transport they wait in copies.

    ``offload=True`` moves the role's parameters, gradients and optimizer states to host memory while it is idle and
    others use its GPUs; by default, this happens only if the GPUs could not hold all roles otherwise.

    ``deadline`` is how many seconds the role's constructor, ``state()``, ``load_state()``, each method call and
    each function in the role's processes may take, instead of the launch's deadline; that of a method (``register``)
    takes precedence. Exceeding it ends the run (HF807).

    Raises:
        ResourceError: HF507 if ``pool`` is missing or not a pool, or ``role`` is not a role class; HF501 if ``mesh``
            is not a mesh; HF504 if ``gpu_memory`` is not an amount; HF524 for an unknown ``transport``; HF525 if the
            role cannot be offloaded; HF931 if ``deadline`` is not a positive number.

    >>> import hfdsl as hf
    >>> class Actor(hf.Worker): ...
    >>> str(hf.place(Actor, pool=hf.ResourcePool([2]), mesh=hf.Mesh(tp=2)).mesh)
    'Mesh(pp=1 dp=1 tp=2)'
    """
    if not (isinstance(role, type) and issubclass(role, Worker)):
        if isinstance(role, Worker):
            kind = type(role).__name__
            got = f"an object of class {kind}: write hf.place({kind}, ...), with the arguments of its constructor"
        elif isinstance(role, type):
            got = f"class {role.__name__}: write class {role.__name__}(hf.Worker)"
        else:
            got = repr(role)
        raise ResourceError("HF507", f"place takes a role class derived from hf.Worker, got {got}")
    if not isinstance(pool, ResourcePool):
        raise ResourceError("HF507", f"place({role.__name__}): pool= takes an hf.ResourcePool, got {pool!r}")
    check_mesh(mesh, f"place({role.__name__})")
    memory = None if gpu_memory is None else GpuMemory.read(gpu_memory, f"place({role.__name__})")
    for name, flag in (("colocate", colocate), ("offload", offload)):
        if not isinstance(flag, bool) and (name, flag) != ("offload", None):
            raise ResourceError("HF507", f"place({role.__name__}): {name}= is True or False, got {flag!r}")
    if transport is not None and transport not in (transports := get_args(TransportName)):
        choices = ", ".join(map(repr, transports))
        raise ResourceError("HF524", f"place({role.__name__}): transport= takes one of {choices}, got {transport!r}")
    if offload:
        reason = not_offloadable(role) if pool.use_gpu else f"pool '{pool.name}' has no GPUs"
        if reason is not None:
            raise ResourceError("HF525", f"place({role.__name__}): offload=True, and {reason}")
    if deadline is not None:
        deadline = checked_deadline(deadline, f"place({role.__name__}): deadline=")
    mesh = mesh or Mesh(dp=pool.world_size)
    return Placement(
        role=role,
        args=args,
        kwargs=kwargs,
        pool=pool,
        mesh=mesh,
        colocate=colocate,
        gpu_memory=memory,
        transport=transport,
        offload=offload,
        deadline=deadline,
        span=caller_span(),
    )


@constructor_takes(ResourceError, "HF507", "hf.Deployment")
class Deployment:
    """The places of all roles, by the names that they have in the dataflow.

    Raises:
        ResourceError: HF507 if a value is not made by ``hf.place``.
    """

    __slots__ = ("placements", "span")

    def __init__(self, **roles: Placement[Any]) -> None:
        for name, placement in roles.items():
            if not isinstance(placement, Placement):
                raise ResourceError("HF507", f"role '{name}' takes hf.place(...), got {placement!r}")
        self.placements: Mapping[str, Placement[Any]] = dict(roles)
        self.span = caller_span()

    def __getitem__(self, role: str) -> Placement[Any]:
        if not isinstance(role, str) or role not in self.placements:
            raise ResourceError("HF507", f"role {role!r} has no place; {closest(str(role), list(self.placements))}")
        return self.placements[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self.placements)

    def __repr__(self) -> str:
        places = [f"{name}={p.role.__name__} on {p.pool} {p.mesh}" for name, p in self.placements.items()]
        return f"Deployment({', '.join(places)})"

    @property
    def pools(self) -> tuple[ResourcePool, ...]:
        """The pools in use, in order of first use."""
        return tuple(dict.fromkeys(placement.pool for placement in self.placements.values()))


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Roles that live in the same processes: one process per slot of the pool, holding one worker of each role."""

    name: str
    pool: ResourcePool
    roles: tuple[str, ...]


def process_groups(deployment: Deployment) -> tuple[ProcessGroup, ...]:
    """The processes of a deployment: one group per pool, and one for each role with ``colocate=False``."""
    shared: dict[ResourcePool, list[str]] = {}
    groups: list[ProcessGroup] = []
    for name, placement in deployment.placements.items():
        if placement.colocate:
            shared.setdefault(placement.pool, []).append(name)
        else:
            groups.append(ProcessGroup(name, placement.pool, (name,)))
    return (*(ProcessGroup("+".join(names), pool, tuple(names)) for pool, names in shared.items()), *groups)


def processes_per_slot(groups: Sequence[ProcessGroup]) -> int:
    """The number of processes for which the slots of every pool are sized: enough for all groups of the deployment."""
    return max(PROCESSES_PER_SLOT, len(groups))
