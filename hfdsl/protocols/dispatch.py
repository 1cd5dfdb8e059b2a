"""``Dispatch`` and ``Execute``: the names that ``register`` takes, and the functions behind every name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, EnumMeta
from typing import TYPE_CHECKING, Any, TypeAlias
from typing import Protocol as Structural

from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.protocols import transfer
from hfdsl.protocols.mesh import Mesh, mesh_or_flat
from hfdsl.protocols.predefined import PREDEFINED
from hfdsl.protocols.protocol import Protocol


class Group(Structural):
    """The part of a worker group that the functions of a protocol may read."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def mesh(self) -> Mesh | None:
        """The layout of the ranks, or None for one data-parallel axis."""
        ...

    @property
    def workers(self) -> Sequence[Any]:
        """One handle per rank."""
        ...


DispatchFn: TypeAlias = Callable[..., tuple[Any, Any]]
"""``fn(group, *args, **kwargs) -> (args, kwargs)``, every value a list with one entry per rank."""

CollectFn: TypeAlias = Callable[..., Any]
"""``fn(group, outputs) -> value``, from a list with one output per rank."""


@dataclass(frozen=True, slots=True)
class Functions:
    """A dispatch function and a collect function: a protocol without a declaration on coordinates."""

    dispatch_fn: DispatchFn
    collect_fn: CollectFn


_OF_YOUR_OWN = "register_dispatch_mode makes a mode of two functions"
FORMER_MODES: Mapping[str, str] = {
    "RANK_ZERO": "register(Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO) runs a method on rank 0 alone",
    "DP_COMPUTE": "Dispatch.ALL_TO_ALL takes a list with one value for each rank, and gives the list of their outputs",
    "DP_COMPUTE_METRIC": "Dispatch.DP_PROTO splits rows; for a list of outputs, register a mode with "
    "get_predefined_dispatch_fn(Dispatch.DP_PROTO)['dispatch_fn'] and collect_all_to_all",
    "DP_COMPUTE_PROTO_WITH_FUNC": "Dispatch.DP_PROTO splits rows; make the function an argument of the constructor",
    "DIRECT_ROLLOUT_METHOD": "group.execute_rank_zero_async(name, ...) calls a method of a worker by its name",
    "MEGATRON_COMPUTE": f"Dispatch.THREE_D_PROTO splits rows over data-parallel ranks; for lists, {_OF_YOUR_OWN}",
    "MEGATRON_PP_AS_DP": f"Dispatch.THREE_D_ALL_MICRO_DP splits rows over replicas; for lists, {_OF_YOUR_OWN}",
}
"""Names of modes in other libraries that have no counterpart here, each with a replacement."""


class UnknownModeError(ProtocolError, AttributeError):
    """HF410, HF412: a name that is no mode, with what to write instead; an ``AttributeError``, too."""


class _ModeNames(EnumMeta):
    """Gives an enum an error for unknown members that says what to write instead."""

    if not TYPE_CHECKING:  # a type checker refuses unknown members by itself

        def __getattr__(cls, name: str) -> Any:
            members = cls.__dict__.get("_member_map_", {})
            if name in members:
                return members[name]
            if name.startswith("_"):  # what Python and notebooks look for in any object
                raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
            if cls is Execute:
                suggestion = _suggest(name, list(members), "execute modes")
                raise UnknownModeError("HF410", f"Execute has no {name}; {suggestion}")
            if name in FORMER_MODES:
                raise UnknownModeError("HF412", f"Dispatch has no {name}: {FORMER_MODES[name]}")
            raise UnknownModeError("HF412", f"Dispatch has no {name}; {_suggest(name, list(members), 'protocols')}")


class Execute(Enum, metaclass=_ModeNames):
    """The ranks that run a method: all of them, or rank 0 alone (arguments then pass through unchanged).

    Raises ``ProtocolError`` (HF410) for an unknown member.
    """

    ALL = "ALL"
    RANK_ZERO = "RANK_ZERO"

    @classmethod
    def _missing_(cls, value: object) -> Execute:
        suggestion = _suggest(value, list(cls.__members__), "execute modes")
        raise ProtocolError("HF410", f"no execute mode is called {value!r}; {suggestion}")


class Dispatch(Enum, metaclass=_ModeNames):
    """A transfer protocol by name; ``Dispatch("3D_PROTO")`` and the field's other names find the same members.

    ``register_dispatch_mode`` adds members. Raises ``ProtocolError`` (HF412) for an unknown name; a name of another
    library for which there is no member says what to write instead.

    >>> Dispatch("MEGATRON_COMPUTE_PROTO")
    <Dispatch.THREE_D_PROTO: '3D_PROTO'>
    """

    ONE_TO_ALL = "ONE_TO_ALL"
    ALL_TO_ALL = "ALL_TO_ALL"
    DP_PROTO = "DP_PROTO"
    THREE_D_PROTO = "3D_PROTO"
    THREE_D_ALL_MICRO_DP = "3D_ALL_MICRO_DP"
    THREE_D_PP_ONLY = "3D_PP_ONLY"

    # Other names of the field for the same protocols: aliases of the members above.
    DP_COMPUTE_PROTO = "DP_PROTO"
    MEGATRON_COMPUTE_PROTO = "3D_PROTO"
    MEGATRON_PP_AS_DP_PROTO = "3D_ALL_MICRO_DP"
    MEGATRON_PP_ONLY = "3D_PP_ONLY"

    @classmethod
    def _missing_(cls, value: object) -> Dispatch:
        if isinstance(value, str) and value in cls.__members__:
            return cls.__members__[value]
        if isinstance(value, str) and value in FORMER_MODES:
            raise UnknownModeError("HF412", f"no protocol is called {value!r}: {FORMER_MODES[value]}")
        protocol_names = sorted({*cls.__members__, *(str(member.value) for member in cls)})
        raise ProtocolError("HF412", f"no protocol is called {value!r}; {_suggest(value, protocol_names, 'protocols')}")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if self.name in PREDEFINED:
            return Dispatch, (self.value,)
        # A process in which a mode is not registered gets its meaning with the member itself.
        return _restore, (self.name, _MEANINGS[self])


def _suggest(value: object, names: list[str], modes: str) -> str:
    from difflib import get_close_matches

    written = str(value).upper()
    similar = get_close_matches(written, names) or [name for name in names if name.startswith(f"{written}_")]
    listed = f"the {modes} are {', '.join(names)}"
    return f"did you mean {similar[0]!r}? T{listed[1:]}" if similar else listed


_MEANINGS: dict[Dispatch, Protocol | Functions] = {member: PREDEFINED[member.name] for member in Dispatch}


def as_dispatch(mode: Dispatch | str) -> Dispatch:
    """The member with this name; HF412 for a name that no protocol has."""
    if isinstance(mode, Dispatch):
        return mode
    if isinstance(mode, str):
        return Dispatch(mode)
    raise ProtocolError("HF412", f"a dispatch mode is a Dispatch member or its name, got {mode!r}")


def register_dispatch_mode(dispatch_mode_name: str, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> Dispatch:
    """Add a member to ``Dispatch``, with its functions, for this process and every worker that it reaches.

    Raises ``DefinitionError``: HF111 for a name that is taken or no identifier, HF112 for a function that is none.

    >>> def to_every_rank(group, x):
    ...     return ([x] * group.world_size,), {}
    >>> def of_the_last(group, outputs):
    ...     return outputs[-1]
    >>> LAST = register_dispatch_mode("LAST_RANK", to_every_rank, of_the_last)
    >>> LAST is Dispatch.LAST_RANK  # a method takes it: @register(LAST)
    True
    >>> register_dispatch_mode("LAST_RANK", to_every_rank, of_the_last)
    Traceback (most recent call last):
    hfdsl.errors.DefinitionError: HF111: dispatch mode 'LAST_RANK' exists; ...
    """
    name = dispatch_mode_name
    if not isinstance(name, str) or not name.isidentifier():
        raise DefinitionError("HF111", f"a dispatch mode's name is an identifier, got {name!r}")
    name = name.upper()
    functions = as_functions({"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}, name)
    if name in _ARRIVED:
        _ARRIVED.discard(name)
        _MEANINGS[Dispatch.__members__[name]] = functions
        return Dispatch.__members__[name]
    if name in Dispatch.__members__:
        raise DefinitionError(
            "HF111",
            f"dispatch mode {name!r} exists; choose another name, or change its functions with update_dispatch_mode",
        )
    return _add_member(name, functions)


def _add_member(name: str, functions: Functions) -> Dispatch:
    member = object.__new__(Dispatch)
    member._name_ = name
    member._value_ = name
    member.__objclass__ = Dispatch  # type: ignore[attr-defined]  # what EnumType sets on a member that it makes
    member._sort_order_ = len(Dispatch.__members__)  # type: ignore[attr-defined]  # the same
    setattr(Dispatch, name, member)
    Dispatch._member_names_.append(name)
    Dispatch._member_map_[name] = member
    Dispatch._value2member_map_[name] = member
    _MEANINGS[member] = functions
    return member


_ARRIVED: set[str] = set()
"""The modes that came from another process and whose own module, if any, has not been imported here."""


def _restore(name: str, functions: Functions) -> Dispatch:
    if name in Dispatch.__members__:
        return Dispatch.__members__[name]
    _ARRIVED.add(name)
    return _add_member(name, functions)


def update_dispatch_mode(dispatch_mode: Dispatch | str, dispatch_fn: DispatchFn, collect_fn: CollectFn) -> None:
    """Replace the functions of a mode in this process; errors as for ``register_dispatch_mode``.

    >>> def to_every_rank(group, x):
    ...     return ([x] * group.world_size,), {}
    >>> mode = register_dispatch_mode("LARGEST", to_every_rank, lambda group, outputs: max(outputs))
    >>> update_dispatch_mode(mode, to_every_rank, lambda group, outputs: max(outputs, key=abs))
    >>> dispatch_functions(mode)[1](None, [1, -2])
    -2
    """
    mode = as_dispatch(dispatch_mode)
    _MEANINGS[mode] = as_functions({"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}, mode.name)


def as_functions(mode: Mapping[str, Any], name: str) -> Functions:
    """A ``{"dispatch_fn", "collect_fn"}`` dict as ``Functions``; HF112 when one is missing, unknown or not callable."""
    for key in ("dispatch_fn", "collect_fn"):
        if not callable(mode.get(key)):
            got = f"got {mode[key]!r}" if key in mode else "it has none"
            raise DefinitionError("HF112", f"{name} is a pair of functions and needs a callable {key!r}; {got}")
    unknown = sorted(set(mode) - {"dispatch_fn", "collect_fn"})
    if unknown:
        raise DefinitionError("HF112", f"{name} has {unknown}; it takes 'dispatch_fn' and 'collect_fn' only")
    return Functions(mode["dispatch_fn"], mode["collect_fn"])


Mode: TypeAlias = Dispatch | Protocol | Functions
"""The stored form of a method's protocol."""


def meaning_of(mode: Mode) -> Protocol | Functions:
    """The meaning of a mode: its declaration, or the functions registered for it."""
    return _MEANINGS[mode] if isinstance(mode, Dispatch) else mode


def dispatch_functions(mode: Mode) -> tuple[DispatchFn, CollectFn]:
    """The pair of functions behind a mode, whether it is declared or a pair of functions itself."""
    meaning = meaning_of(mode)
    functions = protocol_functions(meaning) if isinstance(meaning, Protocol) else meaning
    return functions.dispatch_fn, functions.collect_fn


def protocol_functions(protocol: Protocol) -> Functions:
    """A declared protocol as the pair of functions that a group calls."""

    def dispatch_fn(group: Group, *args: Any, **kwargs: Any) -> tuple[tuple[list[Any], ...], dict[str, list[Any]]]:
        placed, named, _ = transfer.dispatch(protocol, mesh_of(group), args, kwargs)
        return placed, named

    def collect_fn(group: Group, outputs: Sequence[Any]) -> Any:
        return transfer.collect(protocol, mesh_of(group), outputs)

    return Functions(dispatch_fn, collect_fn)


def mesh_of(group: Group) -> Mesh:
    """The mesh of a group: its own, or ``Mesh(dp=world_size)``; HF501 when the two sizes differ."""
    return mesh_or_flat(getattr(group, "mesh", None), group.world_size, "the worker group")


def get_predefined_dispatch_fn(dispatch_mode: Dispatch | str) -> dict[str, Callable[..., Any]]:
    """The functions of a mode as ``{"dispatch_fn": f, "collect_fn": g}``.

    They read only ``world_size``, ``mesh`` and ``workers`` of the group, their first argument.

    >>> from types import SimpleNamespace
    >>> group = SimpleNamespace(world_size=2, mesh=None, workers=["a", "b"])
    >>> get_predefined_dispatch_fn(Dispatch.DP_PROTO)["dispatch_fn"](group, [1, 2, 3, 4])
    (([[1, 2], [3, 4]],), {})
    """
    dispatch_fn, collect_fn = dispatch_functions(as_dispatch(dispatch_mode))
    return {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def collect_all_to_all(worker_group: Group, output: Any) -> Any:
    """Return the outputs unchanged: a list with one output from every rank.

    >>> collect_all_to_all(None, [1, 2])
    [1, 2]
    """
    return output
