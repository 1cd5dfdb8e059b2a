"""A rank's report of the digests that it has taken during a sync."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from hfdsl.protocols.boxes import Box
from hfdsl.runtime.verification.verified_syncs import VerifiedSync

PartTable: TypeAlias = tuple[tuple[str, Box, str], ...]
"""The name, the box and the dtype of each part that a rank has."""


class DigestReport(NamedTuple):
    """The digests that a rank has taken of a sync's state, which it ``exported`` or loaded.

    ``key`` identifies the parts, which are sent along the first time.
    """

    sync: VerifiedSync
    rank: int
    exported: bool
    key: str
    parts: PartTable | None
    values: Sequence[int]

    def to_wire(self) -> list[Any]:
        """Convert to plain values."""
        sync = [self.sync.state, self.sync.source, self.sync.target]
        return [sync, self.rank, self.exported, self.key, self.parts, list(self.values)]

    @classmethod
    def from_wire(cls, values: Sequence[Any]) -> DigestReport:
        """Convert from plain values."""
        sync, rank, exported, key, parts, numbers = values
        table = None if parts is None else tuple(_part(*part) for part in parts)
        return cls(sync=VerifiedSync(*sync), rank=rank, exported=exported, key=key, parts=table, values=numbers)


def _part(name: str, box: Sequence[Sequence[int]], dtype: str) -> tuple[str, Box, str]:
    return name, tuple((start, stop) for start, stop in box), dtype
