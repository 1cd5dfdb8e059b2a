"""Worker groups: one process per slot of a pool, called together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Never, Self

from ray import ObjectRef

from hfdsl.errors import DefinitionError, HfError, ProtocolError, ResourceError
from hfdsl.protocols import transfer
from hfdsl.protocols.dispatch import Execute, Functions
from hfdsl.protocols.mesh import Mesh, mesh_or_flat
from hfdsl.protocols.partitioning import NO_SPLIT
from hfdsl.protocols.register import Registration, registration_of
from hfdsl.protocols.split import Site
from hfdsl.single_controller.calls import (
    Future,
    as_future,
    checked_lists,
    checked_pair,
    entries_by_rank,
    messages,
    send,
)
from hfdsl.single_controller.detached import running_workers
from hfdsl.single_controller.group_checks import check_method, refuse_arguments, unknown_method
from hfdsl.single_controller.host import RankCall
from hfdsl.single_controller.outputs import JoinedOutput
from hfdsl.single_controller.pool import RayResourcePool
from hfdsl.single_controller.roles import RayClassWithInitArgs, Target, check_arguments, targets
from hfdsl.single_controller.stacks import WatchedProcess
from hfdsl.single_controller.start import (
    Lease,
    await_restarts,
    check_room,
    checked_env,
    create_actors,
    end_actors,
    restarts,
    start_actors,
)
from hfdsl.single_controller.waiting import DEADLINE_SECONDS, Waiter, checked_deadline
from hfdsl.types.rows import WholeRows

START_SECONDS = 300.0
"""The seconds within which all worker processes have to be up; the deadline of calls then bounds the constructors."""


class RayWorkerGroup:
    """One process of a class for every slot of a pool; its registered methods can be called on the group.

    Workers have WORLD_SIZE, RANK, LOCAL_WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in their environment, and
    the variables of ``worker_env``. ``mesh`` arranges the ranks (default ``Mesh(dp=world_size)``). The processes must
    be up within ``timeout`` seconds; a blocking call and the roles' constructors may take ``deadline`` seconds (None:
    no limit). With ``wait=False`` groups start at the same time; call ``wait_until_up()`` on each before anything else.
    To end the processes, use the group as a context manager or call ``shutdown()``.

    Raises, before any process starts, ``ResourceError`` (HF501 for a mesh of another size, HF502 and HF505 for a pool
    that the cluster cannot hold, HF504 for one group too many on the pool, HF520 for a reserved variable, HF521 for a
    name in use, HF931 for an invalid deadline), ``SizeError`` (HF313 for a split of a method that needs all rows) and
    ``DefinitionError`` (HF111 for a method with a name of the group's own); later ``RoleError`` (HF806) if a
    constructor raises, and ``DeadlineError`` (HF807) if it takes too long.
    """

    _deadline_of_call = False  # whether `with_deadline` set the waiter's

    def __init__(
        self,
        resource_pool: RayResourcePool,
        ray_cls_with_init: RayClassWithInitArgs,
        mesh: Mesh | None = None,
        *,
        name_prefix: str | None = None,
        worker_env: Mapping[str, str] | None = None,
        detached: bool | None = None,
        timeout: float = START_SECONDS,
        deadline: float | None = DEADLINE_SECONDS,
        wait: bool = True,
        **former: Never,
    ) -> None:
        refuse_arguments(former)
        deadline = checked_deadline(deadline)
        if not isinstance(resource_pool, RayResourcePool):
            raise ResourceError("HF507", f"a worker group needs a RayResourcePool, got {resource_pool!r}")
        detached = resource_pool.detached if detached is None else detached
        if detached and not resource_pool.detached:
            raise ResourceError(
                "HF507", f"group is detached, pool {resource_pool} is not: create it with detached=True"
            )
        size = resource_pool.world_size
        self._bind(ray_cls_with_init, mesh_or_flat(mesh, size, f"pool {resource_pool}"), size)
        env = checked_env(worker_env or {})
        check_room(resource_pool, self._name)
        resource_pool.place()
        prefix = secrets.token_hex(3) if name_prefix is None else name_prefix
        ranks = zip(resource_pool.node_index_list(), resource_pool.local_rank_list(), strict=True)
        self.worker_names = [f"{prefix}{self._name}_{node}:{local}" for node, local in ranks]
        self.workers: list[Any] = create_actors(ray_cls_with_init, resource_pool, self.worker_names, detached, env)
        self._lease = Lease(resource_pool)
        self._start = partial(start_actors, self.workers, self._class, resource_pool, self.mesh, timeout, deadline)
        if wait:
            self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until the processes are up and their roles constructed; if that fails, they end."""
        try:
            address, port, self._waiter = self._start()
        except BaseException:
            self.shutdown()
            raise
        self.master_address, self.master_port = address, str(port)

    def _bind(self, ray_cls_with_init: RayClassWithInitArgs, mesh: Mesh, world_size: int, role: str = "") -> None:
        """Bind and check the methods of a class, or of one role of several."""
        if not isinstance(ray_cls_with_init, RayClassWithInitArgs):
            raise DefinitionError("HF118", f"a worker group runs a RayClassWithInitArgs, got {ray_cls_with_init!r}")
        self._class = ray_cls_with_init
        self._name = ray_cls_with_init.classes[role].__name__ if role else ray_cls_with_init.name
        self.mesh = mesh
        self.world_size = world_size
        self._targets = targets(ray_cls_with_init, role)
        self._methods = {
            name: (target, registration)
            for name, target in self._targets.items()
            if (registration := registration_of(target.function)) is not None
        }
        for name, (target, registration) in self._methods.items():
            check_method(RayWorkerGroup, name, target, registration, mesh)

    @classmethod
    def from_detached(
        cls,
        worker_names: Sequence[str] | None = None,
        ray_cls_with_init: RayClassWithInitArgs | None = None,
        *,
        worker_handles: Sequence[Any] | None = None,
        deadline: float | None = DEADLINE_SECONDS,
    ) -> Self:
        """The group of running workers, looked up by name.

        Raises:
            ResourceError: HF521 if they do not form a group.
            DeadlineError: HF807 if one of them is busy for longer than the deadline.
        """
        waiter = Waiter(checked_deadline(deadline))
        running = running_workers(worker_names or (), worker_handles, waiter)
        size, first = len(running.workers), running.contexts[0]
        group = cls.__new__(cls)
        group._bind(ray_cls_with_init, mesh_or_flat(first.mesh, size, "the group"), size)  # type: ignore[arg-type]  # _bind refuses None by name
        group._lease = Lease(None)
        group.workers, group.worker_names = list(running.workers), list(running.names)
        group._waiter = Waiter(waiter.seconds, running.processes)
        group.master_address, group.master_port = first.master_addr, str(first.master_port)
        return group

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, RayWorkerGroup]:
        """A group for each of these roles, over the same processes; ``ResourceError`` (HF507) for an unknown role."""
        groups = {}
        for role in prefix_set:
            if not role or role not in self._class.roles:
                roles = ", ".join(name for name in self._class.roles if name) or "none: it runs one class"
                raise ResourceError("HF507", f"group {self._name} has no role {role!r}; its roles are {roles}")
            group = type(self).__new__(type(self))
            group._bind(self._class, self.mesh, self.world_size, role)
            for shared in ("_lease", "_waiter", "workers", "worker_names", "master_address", "master_port"):
                setattr(group, shared, getattr(self, shared))
            groups[role] = group
        return groups

    spawn_fused = spawn  # its name in other libraries, for roles that share processes

    @property
    def hf_processes(self) -> tuple[WatchedProcess | None, ...]:
        """The processes by rank, with the files of their stacks; None for those whose stacks cannot be read."""
        return self._waiter.processes

    def with_deadline(self, seconds: float | None) -> Self:
        """This group with another deadline for blocking calls and futures, in seconds; None waits forever.

        It overrides the deadline that a method is registered with, which overrides the group's.

        ``group.with_deadline(30).update(batch)`` is one call with a deadline of its own. A late call still runs in
        its workers, and later calls queue behind it: shut the group down, or wait again.

        Raises:
            ResourceError: HF931 for anything but a positive number or None.
        """
        group = type(self).__new__(type(self))
        group.__dict__.update(self.__dict__, _waiter=self._waiter.within(seconds), _deadline_of_call=True)
        return group

    # -- calls by name -------------------------------------------------------------------------------------------------

    def execute_all_async(self, method_name: str, /, *args: Any, **kwargs: Any) -> list[ObjectRef[Any]]:
        """Call any method on every rank, with single values to all and one entry of each list to each rank.

        Raises ``ProtocolError`` (HF411) for a list of another length than ``world_size``, or beside a single value.
        """
        target, site = self._target(method_name), self._site(method_name)
        check_arguments(target.bare, site.method, args, kwargs)
        placed, named = entries_by_rank(args, kwargs, self.world_size, site)
        return self._submit(target, placed, named, range(self.world_size))

    def execute_all_sync(self, method_name: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call as ``execute_all_async`` does, and wait for the outputs, one per rank."""
        return self._wait(self.execute_all_async(method_name, *args, **kwargs), method_name)

    def execute_rank_zero_async(self, method_name: str, /, *args: Any, **kwargs: Any) -> ObjectRef[Any]:
        """Call any method on rank 0 alone, with unchanged arguments."""
        target = self._target(method_name)
        check_arguments(target.bare, self._site(method_name).method, args, kwargs)
        return self._submit(target, *_single(args, kwargs), range(1))[0]

    def execute_rank_zero_sync(self, method_name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call as ``execute_rank_zero_async`` does, and wait for the output."""
        return self._wait([self.execute_rank_zero_async(method_name, *args, **kwargs)], method_name)[0]

    execute_all = execute_all_async
    execute_rank_zero = execute_rank_zero_async

    def execute_func_rank_zero(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function in the process of rank 0 and wait for its output."""
        self._check_open()
        label = getattr(function, "__name__", repr(function))
        [(call, values)] = messages(RankCall("", label), *_single(args, kwargs), 1)
        return self._waiter.fetch([send(self.workers[0].hf_run, call, values, label, function)], label)[0]

    # -- registered methods --------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._methods:
            raise unknown_method(self._name, name, self._methods, "registered method")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        call.__name__ = name
        return call

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, registration = self._methods[name]
        meaning, site = registration.meaning, self._site(name)
        on_rank_zero = registration.execute_mode is Execute.RANK_ZERO
        if isinstance(meaning, Functions):
            return self._call_functions(target, registration, meaning, args, kwargs)
        if on_rank_zero:
            ref = self.execute_rank_zero_async(name, *args, **kwargs)
            return self._waiter_of(name).fetch([ref], site.method)[0] if registration.blocking else ref
        check_arguments(target.bare, site.method, args, kwargs)
        if meaning.splits:
            args, kwargs = tuple(map(as_future, args)), {key: as_future(value) for key, value in kwargs.items()}
        placed, named, row_split = transfer.dispatch(
            meaning,
            self.mesh,
            args,
            kwargs,
            site=site,
            pad=registration.pad,
            group=registration.group_size,
            balance=registration.balance,
        )
        collected = meaning.collected(self.mesh)
        rows = None if row_split is NO_SPLIT else row_split.rows
        call = RankCall(target.role, target.method, rows=rows, joins=meaning.joins)
        refs = self._submit(target, placed, named, range(self.world_size), call, keep=frozenset(collected))
        if meaning.joins:
            unit = None if isinstance(registration.rows, WholeRows) else registration.group_size
            output = JoinedOutput(f"the output of {site.method}", row_split, unit, collected)
            future = Future(tuple(refs), output, self._waiter_of(name))
            return future.get() if registration.blocking else future
        if not registration.blocking:
            return [refs[rank] for rank in collected]
        outputs = self._wait(refs, name)
        return [outputs[rank] for rank in collected]

    def _call_functions(
        self,
        target: Target,
        registration: Registration,
        functions: Functions,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        # Users' functions may grow lists in place; the caller's own must not change.
        site = self._site(target.name)
        copies = [_list_copy(value) for value in args], {key: _list_copy(value) for key, value in kwargs.items()}
        try:
            returned = functions.dispatch_fn(self, *copies[0], **copies[1])
        except HfError:
            raise
        except Exception as error:  # the user's own code, on unchecked arguments
            name = getattr(functions.dispatch_fn, "__qualname__", repr(functions.dispatch_fn))
            raise ProtocolError(
                "HF407", f"the dispatch_fn of {site.method}, {name}, raised {type(error).__name__}: {error}"
            ) from error
        positional, named = checked_pair(returned, site)
        check_arguments(target.bare, site.method, positional, named)
        if registration.execute_mode is Execute.RANK_ZERO:
            refs = self._submit(target, *_single(positional, named), range(1))
            output: Any = self._wait(refs, target.name)[0] if registration.blocking else refs[0]
        else:
            placed, placed_named = checked_lists(positional, named, self.world_size, site)
            refs = self._submit(target, placed, placed_named, range(self.world_size))
            output = self._wait(refs, target.name) if registration.blocking else refs
        return functions.collect_fn(self, output)

    # -- the one way to a worker ---------------------------------------------------------------------------------------

    def _submit(
        self,
        target: Target,
        args: Sequence[Sequence[Any]],
        kwargs: Mapping[str, Sequence[Any]],
        ranks: range,
        call: RankCall | None = None,
        *,
        keep: frozenset[int] | None = None,
    ) -> list[ObjectRef[Any]]:
        self._check_open()
        if restarts(self._class):
            await_restarts(self.workers, self._name, self._waiter.seconds)
        label = f"{target.owner}.{target.method}"
        call = call or RankCall(target.role, target.method)
        return [
            send(
                self.workers[rank].hf_call,
                message if keep is None or rank in keep else replace(message, keep=False),
                values,
                label,
            )
            for rank, (message, values) in zip(ranks, messages(call, args, kwargs, len(ranks)), strict=True)
        ]

    def _wait(self, refs: Sequence[ObjectRef[Any]], name: str) -> list[Any]:
        return self._waiter_of(name).fetch(refs, self._site(name).method)

    def _waiter_of(self, name: str) -> Waiter:
        """The waiter for calls of a method, with the method's own deadline unless ``with_deadline`` overrides it."""
        registration = self._methods[name][1] if name in self._methods else None
        if registration is None or registration.deadline is None or self._deadline_of_call:
            return self._waiter
        return self._waiter.within(registration.deadline)

    def _target(self, name: str) -> Target:
        if name not in self._targets:
            raise unknown_method(self._name, name, self._targets, "method")
        return self._targets[name]

    def _site(self, name: str) -> Site:
        target = self._targets[name]
        return Site(f"{target.owner}.{target.method}", target.parameters)

    def _check_open(self) -> None:
        if self._lease.ended:
            raise ResourceError("HF522", f"group {self._name} was shut down; create it again")

    def shutdown(self) -> None:
        """End the processes and free their share of the pool; groups spawned from this one end too."""
        if self._lease.ended:
            return
        self._lease.end()
        end_actors(self.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name}, {self.world_size} ranks, {self.mesh})"


def _single(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """The arguments of a call of one rank, each as the list of its values by rank."""
    return [[value] for value in args], {name: [value] for name, value in kwargs.items()}


def _list_copy(value: Any) -> Any:
    return list(value) if type(value) is list else value
