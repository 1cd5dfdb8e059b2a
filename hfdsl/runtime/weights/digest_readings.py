"""The launches that a sync keeps for the next one, which read the weights of a rank (``digest_stream``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hfdsl.protocols.boxes import Box

if TYPE_CHECKING:
    from hfdsl.runtime.weights.fused_digests import KernelLaunch


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Parts on devices that were read together where they are: their places, and the launches of the kernel."""

    places: Sequence[tuple[str, Box, str]]
    launches: Sequence[KernelLaunch]


@dataclass(frozen=True, slots=True)
class DigestReading:
    """The launches that read all pieces where they are, and all that they follow from (``of``); no memory."""

    of: tuple[Any, ...]
    groups: Sequence[tuple[int, ReadGroup, bool]]
    """Each with the number of the moment that it waits for, and whether it reads beside an exchange."""
