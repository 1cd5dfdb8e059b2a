"""The handles of a step's payloads, each dropped after its last reader has been submitted.

A worked example. A step has two payloads: the actor's ids, which a critic of two ranks and the driver read, and its
log-probs, which one rank of a reference reads.

>>> ids, log_probs = (1, 0, 0), (1, 0, 1)  # segment 1, rank 0: its first and its second payload
>>> handles = HandleTable(drop=True)
>>> handles.expect([ids, ids, ids, log_probs], keep=())
>>> handles[ids], handles[log_probs] = "ref A", "ref B"
>>> handles.consume([ids, ids])  # both ranks of the critic are submitted: Ray keeps the object for them
>>> handles.consume([log_probs])
>>> log_probs in handles, ids in handles  # the driver still reads the ids
(False, True)

Once a filter has run there may be more readers, or fewer; then all reads that are still to come are counted again.

>>> handles.expect([], keep=())
>>> ids in handles
False
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from hfdsl.plan.payloads import PayloadKey


class HandleTable:
    """Handles by payload, with the number of outstanding reads; without ``drop`` all are kept."""

    def __init__(self, *, drop: bool) -> None:
        self._drops = drop
        self._handles: dict[PayloadKey, Any] = {}
        self._reads_left: Counter[PayloadKey] = Counter()
        self._kept: Collection[PayloadKey] = ()

    def __setitem__(self, key: PayloadKey, handle: Any) -> None:
        self._handles[key] = handle

    def __getitem__(self, key: PayloadKey) -> Any:
        return self._handles[key]

    def __contains__(self, key: PayloadKey) -> bool:
        return key in self._handles

    def __iter__(self) -> Iterator[PayloadKey]:
        return iter(self._handles)

    def expect(self, reads: Iterable[PayloadKey], keep: Collection[PayloadKey]) -> None:
        """Set the outstanding reads, one per occurrence of a payload; those in ``keep`` may get more readers later."""
        self._reads_left, self._kept = Counter(reads), keep
        self._drop(self._handles)

    def consume(self, keys: Collection[PayloadKey]) -> None:
        """Count submitted reads."""
        self._reads_left.subtract(keys)
        self._drop(keys)

    def _drop(self, keys: Iterable[PayloadKey]) -> None:
        if self._drops:
            for key in [key for key in keys if not self._reads_left[key] and key not in self._kept]:
                self._handles.pop(key, None)
