"""The protocol under test, declared or a pair of functions, as one thing that dispatches and collects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hfdsl.errors import DefinitionError
from hfdsl.protocols import transfer
from hfdsl.protocols.dispatch import Dispatch, Functions, as_dispatch, as_functions, meaning_of
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import ModeLike
from hfdsl.protocols.split import Pad
from hfdsl.protocols.transfer import NO_PADDING, Padding


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
class Subject:
    """A protocol under test.

    ``declared`` is what is known of it on coordinates: its own declaration, or the one that a pair of functions is to
    behave like. Of a pair without one it is known that it splits rows and joins them again, and no more.
    """

    name: str
    declared: Protocol | None
    functions: Functions | None = None

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
        """Whether the caller gives one value a rank."""
        return self.declared is not None and self.declared.takes == "per_rank"

    def chunks(self, mesh: Mesh) -> int:
        """A number of rows that can be split evenly on a mesh."""
        if not self.splits:
            return 1
        return mesh.world_size if self.declared is None else self.declared.chunk_count(mesh)

    def dispatch(
        self, mesh: Mesh, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, pad: Pad | None = None
    ) -> tuple[Any, Any, Padding]:
        """What every rank is given."""
        if self.functions is not None:
            placed, named = self.functions.dispatch_fn(_Group(mesh), *args, **(kwargs or {}))
            return placed, named, NO_PADDING
        assert self.declared is not None  # noqa: S101  # one of both is there
        return transfer.dispatch(self.declared, mesh, args, kwargs or {}, pad=pad)

    def collect(self, mesh: Mesh, outputs: list[Any], padding: Padding = NO_PADDING) -> Any:
        """What the caller gets."""
        if self.functions is not None:
            return self.functions.collect_fn(_Group(mesh), outputs)
        assert self.declared is not None  # noqa: S101  # one of both is there
        return transfer.collect(self.declared, mesh, outputs, padding=padding)


def subject_of(protocol: ModeLike | Functions, like: Dispatch | Protocol | str | None = None) -> Subject:
    """What ``check_laws`` is given.

    Raises:
        DefinitionError: HF112 for what is no protocol, or ``like`` beside a declared one.
        ProtocolError: HF412 for a name that no protocol has.
    """
    meaning: Protocol | Functions
    if isinstance(protocol, Mapping):
        meaning = as_functions(protocol, "the protocol")
        name = getattr(meaning.dispatch_fn, "__name__", "the pair")
    elif isinstance(protocol, (Protocol, Functions)):
        meaning = protocol
        name = (
            protocol.name if isinstance(protocol, Protocol) else getattr(protocol.dispatch_fn, "__name__", "the pair")
        )
    else:
        mode = as_dispatch(protocol)
        meaning, name = meaning_of(mode), str(mode.value)
    declared = None if like is None else like if isinstance(like, Protocol) else meaning_of(as_dispatch(like))
    if isinstance(meaning, Protocol):
        if like is not None:
            raise DefinitionError("HF112", f"like= is for a pair of functions; {name} is declared on mesh axes itself")
        return Subject(name, meaning)
    if isinstance(declared, Functions):
        raise DefinitionError("HF112", f"like= takes a protocol declared on mesh axes; {like} is a pair of functions")
    return Subject(name, declared, meaning)
