"""The process of a worker: one actor that hosts an instance of every role of its group."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias, cast

import ray

from hfdsl.errors import RoleError
from hfdsl.protocols.partitioning import NO_SPLIT, Pad, RowSplit
from hfdsl.protocols.raised import as_raised, described, ends_process, trace_of
from hfdsl.protocols.register import REGISTRATION
from hfdsl.protocols.split import cut, rows_of
from hfdsl.protocols.transfer import same_rows
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.single_controller.outputs import UNSPLIT, JoinedOutput, Shard, complete, completed
from hfdsl.single_controller.ray_internals import keep_start, kept_start
from hfdsl.single_controller.stacks import WatchedProcess, watched


@dataclass(frozen=True, slots=True)
class Recipe:
    """The assembly of an argument from several values: join an earlier call's outputs, then cut this rank's chunk."""

    values: int
    output: JoinedOutput = UNSPLIT
    chunks: int | None = None
    index: int = 0
    pad: Pad | None = None
    group: int = 1
    argument: str = "argument"

    def whole(self, source: Iterator[Any]) -> Any:
        """The joined value of the next outputs."""
        return self.output.assemble([next(source) for _ in range(self.values)])

    def cut(self, value: Any) -> tuple[Any, RowSplit]:
        """This rank's chunk, and the split of the rows."""
        rows, subject = rows_of(value, self.argument), self.argument
        row_split = RowSplit.even(rows, self.chunks or 1, pad=self.pad, group=self.group, subject=subject)
        return cut(value, row_split.chunk_rows(self.index), subject), row_split


@dataclass(frozen=True, slots=True)
class RankCall:
    """A call on one rank. Its values travel beside it, so that Ray resolves references among them."""

    role: str
    method: str
    keywords: Sequence[str] = ()
    keep: bool = True
    recipes: Sequence[Recipe | None] = ()
    rows: int | None = None
    joins: bool = False

    def packed(self) -> list[Any]:
        """The call as a list of plain values, which Ray sends without pickling, at half the cost."""
        recipes = list(self.recipes)
        return [self.role, self.method, list(self.keywords), self.keep, recipes, self.rows, self.joins]

    def arguments(self, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any], RowSplit]:
        """The arguments of the call, and the split of the rows of those that were cut here."""
        if not self.recipes:
            return *self._split_arguments(list(values)), NO_SPLIT
        source = iter(values)
        values_by_place = [next(source) if recipe is None else recipe.whole(source) for recipe in self.recipes]
        cuts = [(at, recipe) for at, recipe in enumerate(self.recipes) if recipe is not None and recipe.chunks]
        counts = {recipe.argument: rows_of(values_by_place[at], recipe.argument) for at, recipe in cuts}
        same_rows({**counts, **({"what was given at once": self.rows} if counts and self.rows is not None else {})})
        row_split = NO_SPLIT
        for at, recipe in cuts:
            values_by_place[at], row_split = recipe.cut(values_by_place[at])
        return *self._split_arguments(values_by_place), row_split

    def _split_arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        positions = len(values) - len(self.keywords)
        return values[:positions], dict(zip(self.keywords, values[positions:], strict=True))


InitArguments: TypeAlias = Mapping[str, tuple[tuple[Any, ...], dict[str, Any]]]
"""Constructor arguments of a process's roles, by role."""


class Host:
    """The actor of one rank. Its own constructor is cheap, so a group needs only one process start per rank.

    ``hf_start`` passes rank, meeting point and the roles' arguments. If Ray may restart the process (``max_restarts``),
    the arguments are those of its own constructor, which Ray keeps and calls again; rank and meeting point are then in
    Ray's own store.
    """

    hf_classes: Mapping[str, type] = {}
    hf_restarts: bool = False

    def __init__(self, arguments: InitArguments | None = None) -> None:
        self._roles: dict[str, Any] = {}
        self._context = RankContext()
        self._reserved: socket.socket | None = None
        self._process: WatchedProcess | None = None
        context = kept_start() if self.hf_restarts else None
        if context is not None:
            with suppress(OSError):  # another program may have the port by now; a group that has met no longer needs it
                self._reserve(context.master_addr, context.master_port)
            self._construct(context, arguments or {})
        self._arguments = arguments

    def _reserve(self, address: str, port: int) -> int:
        # Bound but not listening: other programs that ask for a free port never get it, while the rendezvous of this
        # group, which sets the same option, can still listen on it. So the port cannot be lost in between.
        self._reserved = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("", port))
        return int(self._reserved.getsockname()[1])

    def hf_reserve(self) -> tuple[str, int]:
        """An address of this node, and a port that no other program gets while this process lives."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # of Ray
        return address, self._reserve(address, 0)

    def hf_start(self, context: RankContext, arguments: InitArguments | None = None) -> None:
        """Set the rank of the process and construct the roles, by default with the arguments of its start."""
        if self.hf_restarts:
            keep_start(context)
        self._construct(context, arguments or self._arguments or {})
        self._arguments = None  # they may be large, and Ray keeps them for a restart

    def hf_process(self) -> WatchedProcess | None:
        """This process with the file of its stacks; None if they cannot be read."""
        if self._process is None:
            self._process = watched()
        return self._process

    def _construct(self, context: RankContext, arguments: InitArguments) -> None:
        self._context = context
        os.environ.update(context.env())
        token = current_rank.set(context)
        try:
            for role, (args, kwargs) in arguments.items():
                try:
                    self._roles[role] = self.hf_classes[role](
                        *map(_arrived, args), **{key: _arrived(value) for key, value in kwargs.items()}
                    )
                except BaseException as error:  # noqa: BLE001  # as in hf_call
                    raise self._role_error(role, "__init__", error) from None
        finally:
            current_rank.reset(token)

    def hf_context(self) -> RankContext:
        """The rank of this process in its group."""
        return self._context

    def hf_run(self, function: Callable[..., Any], packed: list[Any], *values: Any) -> Any:
        """Run a caller's function in this process."""
        args, kwargs, _ = RankCall(*packed).arguments(values)
        try:
            return complete(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # the user's code may raise anything, even SystemExit
            raise self._role_error("", getattr(function, "__name__", repr(function)), error) from None

    def hf_call(self, packed: list[Any], *values: Any) -> Any:
        """Run one method of one role."""
        call = RankCall(*packed)
        args, kwargs, row_split = call.arguments(values)
        try:
            result = complete(getattr(self._roles[call.role], call.method)(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # the user's code may raise anything, even SystemExit
            raise self._role_error(call.role, call.method, error) from None
        return _reply(call, result, row_split)

    def _role_error(self, role: str, method: str, error: BaseException) -> RoleError:
        if ends_process(error):
            raise error
        if isinstance(error, RoleError):
            return error  # already complete: a plan's process names role, method, rank and step itself
        owner = f"{self.hf_classes[role].__name__}." if role in self.hf_classes else ""
        # The first frame is in this file; the user's lines begin below it.
        trace = trace_of(error, error.__traceback__ and error.__traceback__.tb_next)
        kind, _, message = described(error).partition(": ")
        text = (
            f"{owner}{method} raised {kind} on rank {self._context.rank} of {self._context.world_size}: {message}"
            f"\n\nIn the worker: {trace}"
        )
        return as_raised(RoleError("HF806", text), error)


class AsyncHost(Host):
    """The host of roles with ``async def`` methods: calls share the actor's event loop."""

    async def hf_call(self, packed: list[Any], *values: Any) -> Any:
        """Run one method of one role, and await it if it is a coroutine."""
        call = RankCall(*packed)
        args, kwargs, row_split = call.arguments(values)
        try:
            result = await completed(getattr(self._roles[call.role], call.method)(*args, **kwargs))
        except asyncio.CancelledError:  # Ray cancels the call
            raise
        except BaseException as error:  # noqa: BLE001  # the user's code may raise anything
            raise self._role_error(call.role, call.method, error) from None
        return _reply(call, result, row_split)


def _arrived(value: Any) -> Any:
    return ray.get(value) if isinstance(value, ray.ObjectRef) else value


def _reply(call: RankCall, result: Any, row_split: RowSplit) -> Any:
    if not call.keep:
        return None  # no call collects it
    return Shard(result, row_split) if call.joins and row_split.rows else result


def methods_of(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that a class defines or inherits, by name, without Python's own."""
    for name in dir(cls):
        function = inspect.getattr_static(cls, name)
        if isinstance(function, (staticmethod, classmethod)):
            function = getattr(cls, name)
        if not name.startswith("__") and (inspect.isfunction(function) or inspect.ismethod(function)):
            yield name, function


def method_name(role: str, method: str) -> str:
    """The name of a role's method on its group, after the role's name if several roles share the group."""
    return f"{role}_{method}" if role else method


def host_class(name: str, classes: Mapping[str, type], *, restarts: bool = False) -> type[Host]:
    """An actor class that hosts these roles; its handles offer their methods too, as for any Ray actor."""
    functions = {(role, method): function for role, cls in classes.items() for method, function in methods_of(cls)}
    asynchronous = any(map(_is_asynchronous, functions.values()))
    forwards = {method_name(*target): _forward(*target, function) for target, function in functions.items()}
    base: type[Host] = AsyncHost if asynchronous else Host
    return cast("type[Host]", type(name, (base,), {**forwards, "hf_classes": dict(classes), "hf_restarts": restarts}))


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    return asyncio.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _forward(role: str, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def forward(self: Host, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._roles[role], method)(*args, **kwargs)

    @wraps(function)
    async def forward_async(self: Host, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self._roles[role], method)(*args, **kwargs)

    forwarded: Callable[..., Any] = forward_async if asyncio.iscoroutinefunction(function) else forward
    # The class carries its registrations; a mode sent beside it would arrive before the module that registers it.
    forwarded.__dict__.pop(REGISTRATION, None)
    return forwarded
