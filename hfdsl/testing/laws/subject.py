"""The protocol under test, declared or a pair of functions, as one thing that dispatches and collects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hfdsl.errors import DefinitionError, ProtocolError
from hfdsl.protocols import transfer
from hfdsl.protocols.dispatch import Dispatch, Functions, as_dispatch, as_functions, meaning_of
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.partitioning import NO_SPLIT, Pad, RowSplit
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import ModeLike
from hfdsl.protocols.split import kind_of
from hfdsl.testing.arguments import refused

__tracebackhide__ = True  # pytest shows the user's own lines


@dataclass(frozen=True, slots=True)
class _Group:
    """A worker group, as far as the functions of a protocol may look at one."""

    mesh: Mesh

    @property
    def world_size(self) -> int:
        return self.mesh.world_size

    @property
    def workers(self) -> list[str]:
        return [f"worker {rank}" for rank in range(self.mesh.world_size)]


@dataclass(frozen=True, slots=True)
class LawSubject:
    """A protocol under test, ``tested``, and how it is called in reports.

    ``declared`` is what is known of it on coordinates: its own declaration, or the one that a pair of functions is to
    behave like. Of a pair without one it is known that it splits rows and joins them again, and no more.
    """

    name: str
    tested: Protocol | Functions
    declared: Protocol | None = None

    @property
    def functions(self) -> Functions | None:
        """The pair of functions, if the subject is one."""
        return self.tested if isinstance(self.tested, Functions) else None

    @property
    def splits(self) -> bool:
        """Whether dispatch cuts rows."""
        return self.declared is None or self.declared.splits

    @property
    def joins(self) -> bool:
        """Whether collect joins rows."""
        return self.declared is None or self.declared.joins

    @property
    def per_rank(self) -> bool:
        """Whether the caller gives one value per rank."""
        return self.declared is not None and self.declared.takes == "per_rank"

    def chunks(self, mesh: Mesh) -> int:
        """A number of rows that can be split evenly on a mesh."""
        if not self.splits:
            return 1
        return mesh.world_size if self.declared is None else self.declared.chunk_count(mesh)

    def dispatch(
        self, mesh: Mesh, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, pad: Pad | None = None
    ) -> tuple[Any, Any, RowSplit]:
        """The values that every rank receives."""
        if isinstance(self.tested, Functions):
            returned = self.tested.dispatch_fn(_Group(mesh), *args, **(kwargs or {}))
            match returned:
                case (tuple() | list() as placed, dict() as named):
                    return placed, named, NO_SPLIT
            message = f"{_name(self.tested.dispatch_fn)} has to give (args, kwargs), and gave {kind_of(returned)}"
            raise ProtocolError("HF407", message)
        return transfer.dispatch(self.tested, mesh, args, kwargs or {}, pad=pad)

    def collect(self, mesh: Mesh, outputs: list[Any], row_split: RowSplit = NO_SPLIT) -> Any:
        """The value that the caller receives."""
        if isinstance(self.tested, Functions):
            return self.tested.collect_fn(_Group(mesh), outputs)
        return transfer.collect(self.tested, mesh, outputs, row_split=row_split)


def subject_of(protocol: ModeLike | Functions, like: Dispatch | Protocol | str | None = None) -> LawSubject:
    """The subject of ``check_laws``.

    Raises:
        DefinitionError: HF112 for a pair that lacks a function, HF921 for what is not a protocol, or ``like`` beside
            one that is declared.
        ProtocolError: HF412 for a name that no protocol has.
    """
    tested = _resolve_protocol(protocol, "protocol")
    if isinstance(tested, Protocol):
        if like is not None:
            message = f"check_laws: like= is for a pair of functions; {tested.name} is declared on mesh axes itself"
            raise DefinitionError("HF921", message)
        return LawSubject(tested.name, tested, tested)
    name = f"the pair {_name(tested.dispatch_fn)}, {_name(tested.collect_fn)}"
    if like is None:
        return LawSubject(name, tested)
    declared = _resolve_protocol(like, "like=")
    if isinstance(declared, Functions):
        raise refused("check_laws", "like=", "a protocol that is declared on mesh axes", like)
    return LawSubject(name, tested, declared)


def _name(function: object) -> str:
    return getattr(function, "__name__", "?")


def _resolve_protocol(protocol: object, argument: str) -> Protocol | Functions:
    if isinstance(protocol, (Protocol, Functions)):
        return protocol
    if isinstance(protocol, Mapping):
        return as_functions(protocol, "the protocol")
    if isinstance(protocol, (str, Dispatch)):
        return meaning_of(as_dispatch(protocol))
    raise refused("check_laws", argument, "an hf.Protocol, the name of one, or a pair of functions in a dict", protocol)
