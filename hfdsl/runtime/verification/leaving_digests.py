"""Digests of weights that a rank has exported, taken while an exchange sends them.

An example
----------
A host submits an exchange of three buckets, and beside it the reading of all weights, which do not change meanwhile::

    a sync that lays the reading out     sends 0    sends 1    sends 2    reads all
    the next one                         reads all  sends 0    sends 1    sends 2

To lay out the reading takes a host milliseconds, for which the exchange does not wait. The launches of the last sync
come before the exchange, so that the device can read as slowly as it sends (``digest_stream``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hfdsl.runtime.digests import DigestLayouts, DigestValues
from hfdsl.runtime.verification.digest_stream import DigestsBeside, GroupToRead, PiecesToRead, moment
from hfdsl.runtime.verification.verified_syncs import DTypes
from hfdsl.runtime.weights.held_boxes import HeldBoxes, located_pieces
from hfdsl.runtime.weights.held_parts import HeldPart


class LeavingDigests:
    """The digests of pieces as they are now, in ``dtypes``; slowly ``beside`` an exchange, which sends them."""

    def __init__(
        self,
        pieces: Mapping[str, HeldPart],
        places: HeldBoxes | None,
        rank: int,
        dtypes: DTypes | None,
        layouts: DigestLayouts,
        *,
        beside: bool,
    ) -> None:
        self._pieces, self._places, self._rank, self._beside = pieces, places, rank, beside
        self._moment = moment()
        self._digests = DigestsBeside(PiecesToRead(pieces, (places, rank, beside)), dtypes, layouts)
        self._begun = False

    def begin_again(self) -> None:
        """Begin to read if the pieces are where they were in the last sync."""
        self._begun = self._digests.begin_again()
        self._digests.read_after(0, self._moment)

    def values(self) -> DigestValues:
        """The digests; the host waits for them, and begins to read if it has not."""
        if not self._begun:
            self._digests.read(self._groups, [self._moment])
        return self._digests.values()

    def _groups(self) -> Iterator[GroupToRead]:
        parts = list(located_pieces(self._pieces, self._places, self._rank))
        yield GroupToRead(0, parts, self._beside)
