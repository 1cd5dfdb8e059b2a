"""``register``: what a role method declares about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from types import FunctionType
from typing import Any, Literal, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, get_args, overload
from typing import Protocol as Structural

from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.protocols.dispatch import Dispatch, Execute, Functions, Mode, as_dispatch, as_functions, meaning_of
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.protocols.partitioning import Pad
from hfdsl.protocols.placement import AxisPlacement, Sharded
from hfdsl.protocols.predefined import ALL_TO_ALL, ONE_TO_ALL
from hfdsl.protocols.protocol import Gives, Protocol
from hfdsl.types.arguments import takes
from hfdsl.types.numbers import checked_deadline
from hfdsl.types.rows import Grouped, Independent, IndependentRows, RowDependence, WholeRows, group_size
from hfdsl.types.similar_names import closest

P = ParamSpec("P")
R = TypeVar("R")
Me = TypeVar("Me")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
F = TypeVar("F", bound=Callable[..., Any])

REGISTRATION = "__hf_registration__"
"""The attribute under which ``register`` leaves a ``Registration`` on a function."""


ModeLike: TypeAlias = Dispatch | Protocol | str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Registration:
    """The declaration of a method by ``register``."""

    dispatch_mode: Mode
    execute_mode: Execute = Execute.ALL
    blocking: bool = True
    pad: Pad | None = None
    rows: RowDependence = Independent
    leaves: tuple[tuple[str, AxisPlacement], ...] = ()
    balance: str | None = None
    deadline: float | None = None

    @property
    def meaning(self) -> Protocol | Functions:
        """The current mode: a declared protocol, or a pair of functions."""
        return meaning_of(self.dispatch_mode)

    @property
    def protocol(self) -> Protocol | None:
        """The declared protocol, or None if a pair of functions does the work."""
        meaning = self.meaning
        return meaning if isinstance(meaning, Protocol) else None

    @property
    def functions(self) -> Functions | None:
        """The pair of functions that runs in the driver; None with a declared protocol, or on rank 0 alone."""
        meaning = self.meaning
        return meaning if isinstance(meaning, Functions) and self.execute_mode is Execute.ALL else None

    @property
    def gives(self) -> Gives:
        """The kind of value that the caller receives; rank 0 alone, and a pair of functions, return it unchanged."""
        protocol = self.protocol
        return "whole" if protocol is None or self.execute_mode is Execute.RANK_ZERO else protocol.gives

    @property
    def group_size(self) -> int:
        """The number of consecutive rows that must stay on one rank."""
        return group_size(self.rows)

    @property
    def cuts(self) -> bool:
        """Whether the method declares that its body leaves rows split along an axis."""
        return any(isinstance(placement, Sharded) for _, placement in self.leaves)

    @property
    def name(self) -> str:
        """The protocol's name, for messages."""
        return _name(self.dispatch_mode)


class _Same(Structural):
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]: ...


class _Gather(Structural):
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, PerRank[R]]: ...


_Each: TypeAlias = PerRank[A1] | list[A1]


class _Scatter(Structural):
    # The caller gives one value per rank for each parameter, which type checkers can say of positional ones alone:
    # of a method with keyword-only ones, or with more than four, it checks the names and not the lists. (The plugin for
    # mypy checks them all.)
    @overload
    def __call__(self, fn: Callable[[Me], R], /) -> Callable[[Me], PerRank[R]]: ...
    @overload
    def __call__(self, fn: Callable[[Me, A1], R], /) -> Callable[[Me, _Each[A1]], PerRank[R]]: ...
    @overload
    def __call__(self, fn: Callable[[Me, A1, A2], R], /) -> Callable[[Me, _Each[A1], _Each[A2]], PerRank[R]]: ...
    @overload
    def __call__(
        self, fn: Callable[[Me, A1, A2, A3], R], /
    ) -> Callable[[Me, _Each[A1], _Each[A2], _Each[A3]], PerRank[R]]: ...
    @overload
    def __call__(
        self, fn: Callable[[Me, A1, A2, A3, A4], R], /
    ) -> Callable[[Me, _Each[A1], _Each[A2], _Each[A3], _Each[A4]], PerRank[R]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, PerRank[R]]: ...


class _Stages(Structural):
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, PerStage[R]]: ...


_Joined: TypeAlias = Literal[Dispatch.DP_PROTO, Dispatch.THREE_D_PROTO, Dispatch.THREE_D_ALL_MICRO_DP]
_Staged: TypeAlias = Literal[Dispatch.THREE_D_PP_ONLY, "3D_PP_ONLY", "THREE_D_PP_ONLY", "MEGATRON_PP_ONLY"]


class _Options(TypedDict, total=False):
    """Options of every method."""

    blocking: bool
    pad: None
    rows: RowDependence
    leaves: Mapping[str, AxisPlacement] | None
    balance: None
    deadline: float | None


class _SplitOptions(TypedDict, total=False):
    """Options of a method whose protocol splits rows and joins them again."""

    blocking: bool
    pad: Pad | None
    rows: RowDependence
    leaves: Mapping[str, AxisPlacement] | None
    balance: str | None
    deadline: float | None


# The overloads tell a type checker the kinds: a joined output keeps its type, a list becomes PerRank or PerStage. The
# first that fits counts, so a member is seen before "any mode"; hence the ignores. At run time the function comes back.
@overload
def register(
    dispatch_mode: ModeLike = ..., *, execute_mode: Literal[Execute.RANK_ZERO], **options: Unpack[_Options]
) -> _Same: ...
@overload
def register(
    dispatch_mode: ModeLike, execute_mode: Literal[Execute.RANK_ZERO], **options: Unpack[_Options]
) -> _Same: ...
@overload
def register(
    dispatch_mode: _Joined, execute_mode: Literal[Execute.ALL] = ..., **options: Unpack[_SplitOptions]
) -> _Same: ...
@overload
def register(  # type: ignore[overload-overlap]  # see above
    dispatch_mode: Literal[Dispatch.ALL_TO_ALL, "ALL_TO_ALL"] = ...,
    execute_mode: Literal[Execute.ALL] = ...,
    **options: Unpack[_Options],
) -> _Scatter: ...
@overload
def register(  # type: ignore[overload-overlap]  # see above
    dispatch_mode: Literal[Dispatch.ONE_TO_ALL, "ONE_TO_ALL"],
    execute_mode: Literal[Execute.ALL] = ...,
    **options: Unpack[_Options],
) -> _Gather: ...
@overload
def register(  # type: ignore[overload-overlap]  # see above
    dispatch_mode: _Staged, execute_mode: Literal[Execute.ALL] = ..., **options: Unpack[_Options]
) -> _Stages: ...
@overload
def register(
    dispatch_mode: ModeLike, execute_mode: Literal[Execute.ALL] = ..., **options: Unpack[_SplitOptions]
) -> _Same: ...
@takes(ProtocolError, "HF412", "register")
def register(
    dispatch_mode: ModeLike = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    *,
    blocking: bool = True,
    pad: Pad | None = None,
    rows: RowDependence = Independent,
    leaves: Mapping[str, AxisPlacement] | None = None,
    balance: str | None = None,
    deadline: float | None = None,
) -> Any:
    """Declare how a role method is dispatched, run and collected; the function itself is unchanged.

    ``pad`` adds rows up to an even split and removes them again; ``rows`` says which rows must stay together.
    ``leaves`` says along which mesh axes the output is laid out differently from that of a split, pipelined model:
    ``{"tp": hf.Partial("sum")}``. ``balance`` names a column that weighs the rows, such as a mask of their tokens: a
    plan gives every chunk the same number of rows and about the same weight; readers see the result in the caller's
    order. (If two arguments have the column, write ``"rollout.mask"``.) ``deadline`` is how many seconds a call may
    take once its inputs exist, instead of the deadline of the role's placement or of the launch.

    Raises ``DefinitionError`` (HF112 for a mode without its functions, HF113 for rows, HF118 if it is not on a method),
    ``ProtocolError`` (HF409 for ``leaves`` along an axis that the protocol does not have, HF410 for RANK_ZERO with
    anything but whole values, HF412 for an unknown mode, HF418 for padding and HF425 for balancing without split and
    join), and ``ResourceError`` (HF931) if the deadline is not a positive number.

    >>> class Critic:
    ...     @register(Dispatch.THREE_D_PROTO, pad="repeat_last")
    ...     def values(self, rows: list[float]) -> list[float]:
    ...         return rows
    >>> registered_methods(Critic)["values"].name
    '3D_PROTO'
    """
    if deadline is not None:
        deadline = checked_deadline(deadline, "register: deadline=")
    registration = Registration(
        dispatch_mode=_mode(dispatch_mode),
        execute_mode=execute_mode,
        blocking=blocking,
        pad=pad,
        rows=rows,
        balance=balance,
        deadline=deadline,
    )
    _check(registration)
    registration = replace(registration, leaves=_leaves(registration, leaves))

    def declare(fn: F) -> F:
        if not _is_function(fn):
            name = getattr(getattr(fn, "fget", fn), "__qualname__", repr(fn))  # a property has its name in its function
            raise DefinitionError(
                "HF118", f"register goes directly on a method (def or async def), got the {type(fn).__name__} {name}"
            )
        setattr(fn, REGISTRATION, registration)
        return fn

    return declare


def _is_function(value: object) -> bool:
    return isinstance(value, FunctionType)


def _mode(mode: ModeLike) -> Mode:
    if isinstance(mode, Protocol):
        return mode
    if isinstance(mode, Mapping):
        return as_functions(mode, "the protocol")
    if isinstance(mode, FunctionType):  # @register without parentheses
        raise ProtocolError("HF412", f"register takes a protocol: @register(Dispatch.DP_PROTO) above '{mode.__name__}'")
    return as_dispatch(mode)


def _name(mode: Mode) -> str:
    if isinstance(mode, Functions):
        return getattr(mode.dispatch_fn, "__name__", type(mode.dispatch_fn).__name__)
    return mode.name if isinstance(mode, Protocol) else str(mode.value)


def _check(declared: Registration) -> None:
    meaning = declared.meaning
    if not isinstance(declared.execute_mode, Execute):
        raise ProtocolError("HF410", f"execute_mode is Execute.ALL or Execute.RANK_ZERO, got {declared.execute_mode!r}")
    if not isinstance(declared.blocking, bool):
        raise ProtocolError("HF410", f"blocking is True or False, got {declared.blocking!r}")
    if not isinstance(declared.rows, (IndependentRows, WholeRows, Grouped)):
        raise DefinitionError("HF113", f"rows is Independent, Whole or Grouped(n), got {declared.rows!r}")
    whole_values = not isinstance(meaning, Protocol) or meaning in (ONE_TO_ALL, ALL_TO_ALL)
    if declared.execute_mode is Execute.RANK_ZERO and not whole_values:
        raise ProtocolError(
            "HF410",
            f"{declared.name} with Execute.RANK_ZERO would leave all but rank 0's part undone; "
            "use Dispatch.ALL_TO_ALL (arguments pass through as they are) or Execute.ALL",
        )
    if declared.pad is not None and declared.pad not in get_args(Pad):
        raise ProtocolError("HF418", f'pad is "repeat_last", "cycle" or None, got {declared.pad!r}')
    if declared.pad is not None and not (isinstance(meaning, Protocol) and meaning.splits and meaning.joins):
        raise ProtocolError(
            "HF418",
            f"pad={declared.pad!r} needs a protocol that splits rows and joins them again, so that pad rows never come "
            f"back; {declared.name} does not: use DP_PROTO, 3D_PROTO or 3D_ALL_MICRO_DP, or leave pad out",
        )
    if declared.balance is not None and not (isinstance(declared.balance, str) and declared.balance):
        raise ProtocolError(
            "HF425", f'balance is the name of a column, such as "response_mask", got {declared.balance!r}'
        )
    if declared.balance is not None and not (isinstance(meaning, Protocol) and meaning.splits and meaning.joins):
        raise ProtocolError(
            "HF425",
            f"balance={declared.balance!r} needs a protocol that splits rows and joins them again, so that they come "
            f"back in the caller's order; {declared.name} does not: use DP_PROTO, 3D_PROTO or 3D_ALL_MICRO_DP, or "
            "leave balance out",
        )


def _leaves(declared: Registration, leaves: object) -> tuple[tuple[str, AxisPlacement], ...]:
    if leaves is None:
        return ()
    example = 'such as {"tp": hf.Partial("sum")}'
    if not isinstance(leaves, Mapping):
        raise ProtocolError("HF409", f"leaves takes a dict of mesh axes and placements, {example}; got {leaves!r}")
    protocol = declared.protocol
    if protocol is None:
        raise ProtocolError(
            "HF409", f"leaves is for a protocol declared on mesh axes; {declared.name} is two functions"
        )
    axes = [axis for axis, _ in protocol.picks]
    for axis, placement in leaves.items():
        if axis not in axes:
            raise ProtocolError("HF409", f"{declared.name} has no axis {axis!r}; {closest(str(axis), axes)}")
        if not isinstance(placement, AxisPlacement):
            raise ProtocolError("HF409", f"leaves takes a placement for axis {axis!r}, {example}; got {placement!r}")
    return _padded_alike(declared, protocol, dict(leaves))


def _padded_alike(declared: Registration, protocol: Protocol, leaves: dict[str, AxisPlacement]) -> tuple[Any, ...]:
    """Pad rows are cut off where they were made, and balanced rows are put back: they come from whom they went to."""
    for axis, placement in leaves.items():
        if (placement == Sharded(0)) is (axis in protocol.split):
            continue
        as_given = f"come back split as they were given; {declared.name} splits over {', '.join(protocol.split)}"
        if declared.pad is not None:
            raise ProtocolError(
                "HF418",
                f"pad={declared.pad!r} with leaves {axis}={placement}: pad rows are found only where rows {as_given}",
            )
        if declared.balance is not None:
            raise ProtocolError(
                "HF425",
                f"balance={declared.balance!r} with leaves {axis}={placement}: rows are put back into the caller's "
                f"order only where they {as_given}",
            )
    return tuple(leaves.items())


def registration_of(fn: Callable[..., Any]) -> Registration | None:
    """The registration of a function or bound method, or None."""
    registration = getattr(fn, REGISTRATION, None)
    return registration if isinstance(registration, Registration) else None


def registered_methods(cls: type) -> dict[str, Registration]:
    """The registered methods of a class by name, inherited ones too; an override counts as it declares itself."""
    members = dict[str, Any]()
    for base in reversed(cls.__mro__[:-1]):  # object has half of all members, and registers none
        members |= vars(base)
    registrations = ((name, registration_of(member)) for name, member in members.items())
    registered = [(name, registration) for name, registration in registrations if registration is not None]
    return dict(sorted(registered, key=itemgetter(0)))
