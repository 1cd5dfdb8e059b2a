"""Calls of a group: from arguments to the messages that travel to each rank.

A worked example, calls by name on a group of two ranks::

    group.execute_all_async("add", [1, 2], to=[10, 20])    rank 0: add(1, to=10)    rank 1: add(2, to=20)
    group.execute_all_async("add", 1, to=10)               both: add(1, to=10)
    group.execute_all_async("add", [1, 2], to=10)          HF411: a list beside a single value

A ``Future`` among the arguments travels as the references of its parts, with a ``Recipe`` by which the worker joins and
cuts them, so its rows never pass through the driver.
"""

from __future__ import annotations

import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import ObjectRef

from hfdsl.errors import ProtocolError, WiringError
from hfdsl.protocols.kinds import PerRank
from hfdsl.protocols.partitioning import Pad
from hfdsl.protocols.split import Site, kind_of
from hfdsl.single_controller.host import RankCall, Recipe
from hfdsl.single_controller.outputs import JoinedOutput
from hfdsl.single_controller.waiting import UNBOUNDED, Waiter

OBJECT_STORE_BYTES = 64 * 1024
"""The bytes above which a value for several ranks goes into the object store once, instead of to each rank."""


# -- pending values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Future:
    """The joined output of a call that still runs; also an argument of other calls, which wait for it themselves.

    As an argument, its parts travel from worker to worker; only ``get`` fetches them to the driver.
    """

    refs: tuple[ObjectRef[Any], ...]
    output: JoinedOutput
    waiter: Waiter = UNBOUNDED

    def get(self, timeout: float | None = None) -> Any:
        """The value, joined and without pad rows, within ``timeout`` seconds or else the group's deadline.

        Raises:
            RoleError: HF806 if a rank failed.
            DeadlineError: HF807 if it is late, with what every rank is doing.
            SizeError: HF930 if the ranks' rows do not add up.
        """
        # Wait for all ranks, not to miss a failure of one whose output is not collected, which sends only None.
        outputs = self.waiter.fetch(self.refs, self.output.subject.removeprefix("the output of "), seconds=timeout)
        return self.output.assemble([outputs[rank] for rank in self.output.ranks])

    def whole(self) -> PendingArgument:
        """The whole value as an argument."""
        refs = tuple(self.refs[rank] for rank in self.output.ranks)
        return PendingArgument(refs, Recipe(len(refs), self.output))

    def __hf_cut__(self, index: int, count: int, *, pad: Pad | None, group: int, subject: str) -> PendingArgument:
        argument = self.whole()
        cut = replace(argument.recipe, chunks=count, index=index, pad=pad, group=group, argument=subject)
        return PendingArgument(argument.refs, cut)


@dataclass(frozen=True, slots=True, eq=False)
class PendingArgument:
    """An argument that its worker assembles from other calls' outputs."""

    refs: tuple[ObjectRef[Any], ...]
    recipe: Recipe


def as_future(value: Any) -> Any:
    """A reference to an object of Ray as a future, which can be cut; any other value unchanged."""
    if not isinstance(value, ObjectRef):
        return value
    return Future((value,), JoinedOutput("the referenced object", ranks=(0,), joined=False))


# -- from a call to messages -------------------------------------------------------------------------------------------


def entries_by_rank(
    args: Sequence[Any], kwargs: Mapping[str, Any], world_size: int, site: Site
) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """The entries of each argument by rank: those of lists, or single values for all; HF411 for a mixture."""
    items: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    lists = [(key, value) for key, value in items if isinstance(value, (list, PerRank))]
    for key, value in lists:
        if len(value) != world_size:
            raise ProtocolError(
                "HF411",
                f"{site.argument(key)} is a list of {len(value)}, and the group has {world_size} ranks; give a list "
                "with one entry per rank, or a tuple where everyone gets all of it",
            )
    if lists and len(lists) < len(items):
        single = next(key for key, value in items if not isinstance(value, (list, PerRank)))
        raise ProtocolError(
            "HF411",
            f"{site.argument(lists[0][0])} is a list and {site.argument(single)} is not; give every argument as a list "
            "with one entry per rank, or none of them",
        )

    def entries(value: Any) -> list[Any]:
        return list(value) if lists else [value] * world_size

    return [entries(value) for value in args], {key: entries(value) for key, value in kwargs.items()}


def checked_pair(returned: Any, site: Site) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The result of a user's dispatch function, as ``(args, kwargs)``; HF407 for anything else."""
    match returned:
        case (tuple() | list() as args, dict() as kwargs):
            return args, kwargs
    raise ProtocolError("HF407", f"the dispatch_fn of {site.method} gives (args, kwargs), got {kind_of(returned)}")


def checked_lists(
    args: Sequence[Any], kwargs: Mapping[str, Any], world_size: int, site: Site
) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """The arguments from a dispatch function, each a list with one entry per rank; HF407 if one is not."""
    items: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in items:
        if not isinstance(value, (list, tuple, PerRank)) or len(value) != world_size:
            count = f"{len(value)} entries" if isinstance(value, (list, tuple, PerRank)) else kind_of(value)
            raise ProtocolError(
                "HF407",
                f"the dispatch_fn of {site.method} gave {count} for {site.argument(key)}; it gives a list with one "
                f"entry for each of the {world_size} ranks",
            )
    return [list(value) for value in args], {key: list(value) for key, value in kwargs.items()}


def messages(
    call: RankCall, args: Sequence[Sequence[Any]], kwargs: Mapping[str, Sequence[Any]], ranks: int
) -> list[tuple[RankCall, list[Any]]]:
    """The message to each rank: the call and its values."""
    columns = [_sendable(entries) for entries in (*args, *kwargs.values())]
    call = replace(call, keywords=tuple(kwargs))
    return [_message(call, [column[rank] for column in columns]) for rank in range(ranks)]


def _message(call: RankCall, entries: list[Any]) -> tuple[RankCall, list[Any]]:
    if not any(isinstance(entry, PendingArgument) for entry in entries):
        return call, entries
    recipes = tuple(entry.recipe if isinstance(entry, PendingArgument) else None for entry in entries)
    values = [value for entry in entries for value in (entry.refs if isinstance(entry, PendingArgument) else (entry,))]
    return replace(call, recipes=recipes), values


def _sendable(entries: Sequence[Any]) -> list[Any]:
    """The entries of an argument, ready to send: futures as recipes, and bulky values for many ranks in the store."""
    uses = Counter(id(entry) for entry in entries)
    prepared: dict[int, Any] = {}
    for entry in entries:
        if id(entry) in prepared:
            continue
        value = entry.whole() if isinstance(entry, Future) else _own_rows(entry)
        prepared[id(entry)] = _put(value) if uses[id(entry)] > 1 and _is_bulky(value) else value
    return [prepared[id(entry)] for entry in entries]


def _put(value: Any) -> ObjectRef[Any]:
    ref: ObjectRef[Any] = ray.put(value)
    return ref


def _own_rows(value: Any) -> Any:
    # Pickling a view of a tensor would also send the rows of all other ranks.
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def _is_bulky(value: Any) -> bool:
    size = getattr(value, "nbytes", 0)
    return hasattr(type(value), "__hf_rows__") or (isinstance(size, int) and size > OBJECT_STORE_BYTES)


def send(method: Any, call: RankCall, values: Sequence[Any], label: str, *leading: Any) -> ObjectRef[Any]:
    """Submit one rank's message after ``leading`` values; ``WiringError`` (HF802) for one that cannot be sent."""
    try:
        ref: ObjectRef[Any] = method.remote(*leading, call.packed(), *values)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise WiringError(
            "HF802", f"an argument of {label} cannot be sent to a worker; give plain data instead: {error}"
        ) from error
    return ref
