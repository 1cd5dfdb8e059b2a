"""Relays: one process per host calls the ranks there, so that the driver makes one call per host, not one per rank.

A worked example. Two hosts with a relay each; actor rank 0 is on the first, critic rank 0 on the second, and the critic
reads the four rows that the actor produces. Each return value of a rank's call has a key, (segment, rank, place), where
place 0 is the acknowledgment and payloads follow. The driver (``relay_client.py``) collects calls in an outbox for each
relay, and sends it when a result is awaited or another relay's value is read (``submit`` stands for the outbox)::

    driver                        relay of host 1                       relay of host 2
    run(segment 1, actor)
      outbox 1: the actor's call
    run(segment 2, critic)
      share((1, 0, 1), submit)    calls the actor; keeps references as
                                  (1, 0, 0) and (1, 0, 1); returns
                                  [reference of (1, 0, 1)] at once
      outbox 2: the critic's call,
      its argument: entry 0 of
      what share returned
    done([(2, 0, 0)])
      wait_for((2, 0, 0), submit)                                       calls the critic with that reference,
                                                                        waits, returns the acknowledgment
    next step, first call         drops its references

So a step costs the driver one call per host, ``wait_for``, and one more, ``share``, for every relay that another one
reads from. Values never pass through a relay or the driver: what ``share`` returns is a reference, nested in a list, so
that Ray hands it over without fetching what it stands for.

Why it is right. *No deadlock*: ``share`` returns without waiting for ranks, and references to results that do not exist
yet are legal arguments, so a relay never waits for another relay; only ``wait_for`` waits, with a timeout, and only for
ranks. A relay runs one method at a time, so a ``wait_for`` would block later submissions; therefore the driver submits
all that it knows before it waits. *Once*: a call is submitted once, because an outbox is emptied when it is sent, and
its references are kept under one key each. *Dropped after the last reader*: the driver's ``RemoteHandle`` lives as long
as a reader is planned; when it is deleted, its key goes to the relay with the next call, and the relay drops the
reference. A rank that has been called keeps its own reference until it has run. References to small values that were
shared are kept one step longer: see ``RAY_STORED_BYTES``.

A relay's methods take lists instead of named tuples: Ray pickles every tuple and object among arguments separately, and
lists of plain values not at all. Sixteen calls take 17 us and 0.8 KB as lists, 360 us and 5.8 KB as data classes. These
are the lists::

    sent            as
    ReturnKey       [segment, rank, place]
    RelayCall       [group, rank, request as of RankRequest.to_wire, arguments]
    an argument     [segment, rank, place]: the value of this relay with that key
                    [i, place]: entry ``place`` of the i-th shared list
                    anything else is the argument itself, which is never a list
    an outbox       new_step, [RelayCall, ...], [ReturnKey to drop, ...], *shared lists
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ray

from hfdsl.runtime.messages import RAY_STORED_BYTES, RELAYED, SMALL_PAYLOAD_BYTES, Acknowledgment, RankRequest
from hfdsl.single_controller.waiting import fetch

FAILURE_POLL_SECONDS = 1.0
"""The interval at which a wait for all ranks checks the ended ones for a failure."""

ACKNOWLEDGMENT = 0
"""The place of the acknowledgment among the return values of a rank's call; payloads follow."""


class ReturnKey(NamedTuple):
    """The key under which a relay keeps the reference to a return value of a rank's call of a segment."""

    segment: int
    rank: int
    place: int

    @property
    def acknowledgment(self) -> ReturnKey:
        """The key of the acknowledgment of the same call."""
        return ReturnKey(self.segment, self.rank, ACKNOWLEDGMENT)


class RelayCall(NamedTuple):
    """A rank's call, as its relay receives it; ``request`` and ``arguments`` are in wire format."""

    group: str
    rank: int
    request: list[Any]
    arguments: list[Any]


class Relay:
    """The relay actor: it holds the references to its ranks' return values in a step.

    Values stay with the ranks, but for small ones that the driver reads; these are bytes, which are not loaded here.
    References to small ones that other processes have too are kept a step longer, so that they are released here last.
    """

    def __init__(self, ranks: Mapping[str, Mapping[int, Any]]) -> None:
        self._ranks = ranks
        self._refs: dict[ReturnKey, Any] = {}
        self._shared: set[ReturnKey] = set()
        self._payload_bytes: dict[ReturnKey, Sequence[int]] = {}  # by the key of the acknowledgment that says so
        self._outlasting: list[Any] = []  # dropped in this step, and kept until the next one ends
        self._outlasting_before: list[Any] = []

    def _submit(
        self, new_step: bool, calls: Sequence[Sequence[Any]], dropped: Sequence[Sequence[int]], *shared: Any
    ) -> None:
        """Call ranks, and drop values without further readers; ``new_step`` begins a step, which drops everything."""
        if new_step:
            for key in list(self._refs):
                self._drop(key)
            self._shared.clear()
            self._payload_bytes.clear()
            self._outlasting, self._outlasting_before = [], self._outlasting
        for fields in calls:
            call = RelayCall(*fields)
            request = RankRequest.from_wire(call.request)
            places = [ACKNOWLEDGMENT, *(place for place, mode in enumerate(request.modes, 1) if mode == RELAYED)]
            arguments = [self._resolve(value, shared) if type(value) is list else value for value in call.arguments]
            run = self._ranks[call.group][call.rank].run.options(num_returns=len(places))
            refs = run.remote(call.request, *arguments)
            for place, ref in zip(places, refs if len(places) > 1 else [refs], strict=True):
                self._refs[ReturnKey(request.call.segment, call.rank, place)] = ref
        for unused in dropped:
            self._drop(ReturnKey(*unused))

    def _resolve(self, argument: Sequence[int], shared: Sequence[Any]) -> Any:
        """The reference for an argument: one of this relay's, or one shared by another relay."""
        if len(argument) == len(ReturnKey._fields):
            return self._refs[ReturnKey(*argument)]
        index, place = argument
        return shared[index][place]

    def _drop(self, key: ReturnKey) -> None:
        ref = self._refs.pop(key, None)
        if ref is not None and key in self._shared and not self._is_stored(key):
            self._outlasting.append(ref)

    def _is_stored(self, key: ReturnKey) -> bool:
        """Whether Ray certainly keeps a value in the object store."""
        size = self._size(key)
        return size is not None and size >= RAY_STORED_BYTES

    def _size(self, key: ReturnKey) -> int | None:
        """The bytes of a payload, once its call is acknowledged."""
        sizes = self._payload_bytes.get(key.acknowledgment)
        return None if sizes is None or key.place == ACKNOWLEDGMENT else sizes[key.place - 1]

    def _share(self, key: ReturnKey) -> Any:
        self._shared.add(key)
        return self._refs[key]

    def share(self, keys: Sequence[Sequence[int]], *outbox: Any) -> list[Any]:
        """References for ranks of other hosts; does not wait for calls submitted before."""
        self._submit(*outbox)
        return [self._share(ReturnKey(*key)) for key in keys]

    def wait_for(self, keys: Sequence[Sequence[int]], seconds: float, *outbox: Any) -> list[Any]:
        """The values of these keys, within this many seconds; None for values that do not exist yet.

        Of a payload that is not small it returns the reference, which the relay no longer keeps.

        Raises:
            RoleError: HF806 if a body raised or a process died; the first failure, even while others still run.
        """
        self._submit(*outbox)
        awaited = [ReturnKey(*key) for key in keys]
        values: dict[ReturnKey, Any] = self._acknowledgments({key.acknowledgment: None for key in awaited}, seconds)
        ended = dict.fromkeys(key for key in awaited if key.acknowledgment in values)
        payloads = [key for key in ended if key.place != ACKNOWLEDGMENT]
        small = [key for key in payloads if (self._size(key) or 0) <= SMALL_PAYLOAD_BYTES]
        values |= zip(small, fetch([self._refs[key] for key in small]), strict=True)
        values |= {key: self._share(key) for key in payloads if key not in values}
        for key in payloads:
            self._drop(key)
        return [values[key] if key in ended else None for key in awaited]

    def _acknowledgments(self, keys: Iterable[ReturnKey], seconds: float) -> dict[ReturnKey, Any]:
        """The acknowledgments that arrive in time. By then a call's payloads exist, and it reports their sizes."""
        pending = {self._refs[key]: key for key in keys}
        values: dict[ReturnKey, Any] = {}
        for ready in as_completed(list(pending), seconds):
            values |= zip((pending[ref] for ref in ready), fetch(ready), strict=True)
        self._payload_bytes |= {
            key: Acknowledgment.from_wire(value).result.payload_bytes for key, value in values.items()
        }
        return values


def as_completed(refs: Sequence[Any], seconds: float) -> Iterator[list[Any]]:
    """Ended calls, in batches, for this many seconds; polled, since a rank may wait for one that has failed."""
    until, pending = time.monotonic() + seconds, list(refs)
    while pending:
        seconds_left = max(0.0, until - time.monotonic())
        wait = min(seconds_left, FAILURE_POLL_SECONDS)
        ready, pending = ray.wait(pending, num_returns=len(pending), timeout=wait, fetch_local=False)
        yield ready
        if not seconds_left:
            return
