"""The launches that a sync keeps for the next one, which read the weights of a rank (``digest_stream``).

An example
----------
Three parts were read after two moments. Each launch adds to its digests in one tensor, which the next sync clears::

    moment    launch    parts    totals
    0         0         q        0
    1         1         embed    1        the digests in the order of the parts, embed q v: totals 1, 0, 2
    1         2         v        2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from hfdsl.protocols.boxes import Box
from hfdsl.runtime.verification.digest_report import PartTable

if TYPE_CHECKING:
    from hfdsl.runtime.verification.fused_digests import KernelLaunch


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Parts on devices that were read together where they are: their places, and the launches of the kernel."""

    places: Sequence[tuple[str, Box, str]]
    launches: Sequence[KernelLaunch]


@dataclass(frozen=True, slots=True)
class KeptLaunch:
    """A launch that reads parts where they were, to ``totals`` i64[parts], slowly ``beside`` an exchange."""

    launch: KernelLaunch
    totals: torch.Tensor
    beside: bool

    def begin(self) -> None:
        """Launch the kernel."""
        self.launch.begin(self.totals, beside=self.beside)


@dataclass(frozen=True, slots=True)
class DigestReading:
    """The launches that read all pieces where they are, and all that they follow from (``of``); no memory of a role.

    ``writes`` are those that the moments follow.
    """

    of: tuple[Any, ...]
    writes: Sequence[Any]
    parts: PartTable
    launches: Mapping[int, Sequence[KeptLaunch]]
    """By the number of the moment that they wait for."""

    totals: torch.Tensor
    """The digests on the device, i64[parts], one launch after another."""

    order: npt.NDArray[np.int64]
    """Where in ``totals`` the digest of each part is."""

    @classmethod
    def of_groups(
        cls, of: tuple[Any, ...], writes: Sequence[Any], groups: Sequence[tuple[int, ReadGroup, bool]]
    ) -> DigestReading | None:
        """The launches of groups, each with its moment and whether it reads beside; None on more than one device."""
        launches = [launch for _, group, _ in groups for launch in group.launches]
        devices = {launch.device for launch in launches}
        if len(devices) != 1:
            return None
        count = sum(len(launch.indices) for launch in launches)
        with torch.inference_mode(False):  # else only inference mode could clear them
            totals = torch.empty(count, dtype=torch.int64, device=devices.pop())
        after_moments: dict[int, list[KeptLaunch]] = {}
        indices, first, start = list[int](), 0, 0
        for after, group, beside in groups:
            for launch in group.launches:
                stop = start + len(launch.indices)
                after_moments.setdefault(after, []).append(KeptLaunch(launch, totals[start:stop], beside))
                indices += [first + index for index in launch.indices]
                start = stop
            first += len(group.places)
        parts = tuple(place for _, group, _ in groups for place in group.places)
        return cls(of, writes, parts, after_moments, totals, np.argsort(np.array(indices, np.int64)))

    def values(self) -> list[int]:
        """The digests of the parts; the host waits until the current stream has read them."""
        numbers: list[int] = self.totals.cpu().numpy().view(np.uint64)[self.order].tolist()
        return numbers
