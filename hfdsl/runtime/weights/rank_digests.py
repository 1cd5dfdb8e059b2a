"""Digests of a rank's exported and loaded weights, taken in steps under verification and reported with their calls.

An example
----------
An actor on two ranks sends its slices to a sampler, and ``running.verifying("policy")`` is around the step::

    where            call             digests                                     how the driver gets them
    actor            weights          none yet: what is exported is on its way
                     the exchange     of what is exported, while it leaves        with the end of the exchange
    sampler          load             of what is in its place, while more comes   with the acknowledgment of the load

So a step that is verified needs no further call, and each side reads its weights while the link is busy
(``digest_stream.py``). Names and boxes go to the driver once, and later only their key and the numbers.

A sampler digests the memory that it keeps, ``held_weights``, after the last write of the exchange. If that is not the
memory that was written, or somebody has written into it since, it is read once more, after the load. Without an
exchange nothing is reported: ``verify`` requests the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hfdsl.plan.plan import Step
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.call import current_call
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.register import registration_of
from hfdsl.protocols.state import EffectKind, methods_with
from hfdsl.runtime.weights.digest_reports import DigestReport, PartTable
from hfdsl.runtime.weights.verified_syncs import DTypes, VerifiedSync, states

if TYPE_CHECKING:
    from hfdsl.runtime.digests import DigestLayouts, Digests, HeldPart
    from hfdsl.runtime.weights.digest_stream import Moment
    from hfdsl.runtime.weights.exchange import ArrivingWeights


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Weights that an exchange sends, unchanged since a ``moment``."""

    sync: VerifiedSync
    pieces: Mapping[str, HeldPart]
    places: HeldBoxes | None
    rank: int
    moment: Moment


class RankDigests:
    """The digests of a rank's roles, while ``active``."""

    def __init__(self) -> None:
        self.active = False
        self._wanted: Mapping[VerifiedSync, DTypes] = {}
        self._taken: dict[VerifiedSync, Digests | None] = {}
        self._leaving: list[_Leaving] = []
        self._reports: list[DigestReport] = []
        self._tables: dict[tuple[VerifiedSync, bool], tuple[PartTable, str]] = {}
        self._layouts: dict[tuple[VerifiedSync, bool], DigestLayouts] = {}  # by sync, and whether it is exported

    def want(self, wanted: Mapping[VerifiedSync, DTypes]) -> None:
        """Take the digests of these syncs from now on."""
        self._wanted, self.active = wanted, bool(wanted)

    def forget(self) -> None:
        """Drop the remains of a step that will be repeated."""
        self._leaving, self._reports = [], []

    def take(
        self, step: Step, worker: Any, result: Any, arriving: ArrivingWeights | None, *, exchanged: bool, leaves: bool
    ) -> None:
        """Take digests after a role has exported a state, loaded the ``arriving`` weights, or done something else.

        Weights in ``leaves``, which an exchange sends after the call, are read during the exchange.
        """
        from hfdsl.runtime.digests import pieces_of
        from hfdsl.runtime.weights.digest_stream import moment

        rank = current_call().rank
        for sync in self._synced(step, "exports"):
            held = not step.parts and hasattr(worker, "held_weights")  # by schedule, they are what is exported
            pieces = pieces_of(worker.held_weights(sync.state) if held else result)
            if pieces is None:
                self._taken[sync] = None
                continue
            leaving = _Leaving(sync, pieces, HeldBoxes.of([step], sync.source, sync.state), rank, moment())
            if exchanged and leaves and any(rank in part.senders for part in step.parts):
                self._leaving.append(leaving)
            else:
                self._take(leaving, reported=exchanged, beside=False)
        if arriving is not None:
            self._take_loaded(step, worker, arriving)

    def take_sent(self) -> list[DigestReport]:
        """Take digests of exchanged weights: everything was submitted, though the device may still be at work."""
        leaving, self._leaving = self._leaving, []
        for sync_leaving in leaving:
            self._take(sync_leaving, reported=True, beside=True)
        return self.reported()

    def _take(self, leaving: _Leaving, *, reported: bool, beside: bool) -> None:
        from hfdsl.runtime.weights.digest_stream import DigestsBeside

        layouts = self._kept_layouts(leaving.sync, exported=True)
        begun = DigestsBeside(self._wanted.get(leaving.sync), layouts)
        begun.add(located_pieces(leaving.pieces, leaving.places, leaving.rank), leaving.moment, beside=beside)
        digests = self._taken[leaving.sync] = begun.digests()
        if reported:
            self._report(leaving.sync, leaving.rank, digests, exported=True)

    def of_arriving(self, step: Step, arguments: Mapping[str, Any]) -> ArrivingWeights | None:
        """The weights among a load's arguments to digest as they arrive."""
        from hfdsl.runtime.weights.exchange import ArrivingWeights

        [weights] = arguments.values()
        synced = next(self._synced(step, "loads"), None)
        if not isinstance(weights, ArrivingWeights) or synced is None:
            return None
        weights.digest(self._kept_layouts(synced, exported=False))
        return weights

    def _kept_layouts(self, sync: VerifiedSync, *, exported: bool) -> DigestLayouts:
        from hfdsl.runtime.digests import DigestLayouts

        if (sync, exported) not in self._layouts:
            self._layouts[sync, exported] = DigestLayouts()
        return self._layouts[sync, exported]

    def _take_loaded(self, step: Step, worker: Any, arriving: ArrivingWeights) -> None:
        rank = current_call().rank
        for sync in self._synced(step, "loads"):
            places = HeldBoxes.of([step], sync.target, sync.state)
            digests = arriving.digests() or rank_digests(worker, sync.state, rank, None, places)
            if digests is not None:
                self._report(sync, rank, digests, exported=False)

    def _synced(self, step: Step, kind: EffectKind) -> Iterator[VerifiedSync]:
        """The wanted syncs with a step as one side."""
        for sync in self._wanted if self.active else ():
            role = sync.source if kind == "exports" else sync.target
            if role == step.role and sync.state in states(step, kind):
                yield sync

    def _report(self, sync: VerifiedSync, rank: int, digests: Digests, *, exported: bool) -> None:
        table = tuple([(digest.name, digest.box, digest.dtype) for digest in digests])
        last_table, key = self._tables.get((sync, exported), (None, ""))
        if table != last_table:
            key = uuid4().hex
            self._tables[sync, exported] = table, key
        values = [digest.value for digest in digests]
        report = DigestReport(
            sync=sync,
            rank=rank,
            exported=exported,
            key=key,
            parts=None if table == last_table else table,
            values=values,
        )
        self._reports.append(report)

    def reported(self) -> list[DigestReport]:
        """The reports since the last call of this method."""
        reports, self._reports = self._reports, []
        return reports

    def last_export(self, sync: VerifiedSync) -> Digests | None:
        """The digests of the last export; None if this rank does not export."""
        return self._taken.get(sync)


@dataclass(frozen=True, slots=True)
class HeldBoxes:
    """The boxes of parameters on the ranks of a role, from a scheduled sync."""

    layout: Layout
    mesh: Mesh
    parameters: tuple[Parameter, ...]
    known: Callable[[int], dict[str, Any]]
    """The computed places, by rank."""

    @classmethod
    def of(cls, steps: Iterable[Step], role: str, state: str) -> HeldBoxes | None:
        """The layout of a state, from the steps of its role."""
        for step in steps:
            for sync in step.parts if step.role == role else ():
                if sync.state == state:
                    places_of = partial(_rank_places, sync, "exports")
                    return cls(sync.source_layout, sync.schedule.source_mesh, sync.schedule.parameters, places_of)
            if step.sync is not None and (step.role, step.sync.state) == (role, state):
                schedule = step.sync.schedule
                places_of = partial(_rank_places, step.sync, "loads")
                return cls(step.sync.target_layout, schedule.target_mesh, schedule.parameters, places_of)
        return None


def _rank_places(sync: ScheduledSync, side: str, rank: int) -> dict[str, Any]:
    return sync.places.setdefault((side, rank), {})


def located_pieces(
    pieces: Mapping[str, HeldPart], places: HeldBoxes | None, rank: int
) -> Iterable[tuple[str, HeldPart]]:
    """The pieces that a rank holds, each with its place in the whole."""
    if places is None:
        return pieces.items()
    from hfdsl.runtime.weights.resharding import located

    return located(pieces, places.layout, places.parameters, places.mesh, rank, places.known(rank))


def rank_digests(
    worker: Any, state: str, rank: int, dtypes: DTypes | None, places: HeldBoxes | None = None
) -> Digests | None:
    """The digests of a rank's part of a state; None if the role gives no access to it.

    ``held_weights(state)`` gives it. Without that method it is what the exporting method returns, or ``state()``.
    """
    from hfdsl.runtime.digests import digests, pieces_of

    if hasattr(worker, "held_weights"):
        value = worker.held_weights(state)
    elif export := methods_with(type(worker), "exports").get(state):
        registration = registration_of(getattr(worker, export))
        alone = registration is not None and registration.execute_mode is Execute.RANK_ZERO
        value = getattr(worker, export)() if not alone or rank == 0 else {}
    else:
        value = worker.state() if hasattr(worker, "state") else None
    pieces = pieces_of(value)
    return None if pieces is None else digests(located_pieces(pieces, places, rank), dtypes)
