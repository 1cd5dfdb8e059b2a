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
memory that was written, or has been written since, it is read once more, after the load. Without an
exchange nothing is reported: ``verify`` requests the digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from hfdsl.plan.plan import Step
from hfdsl.protocols.call import current_call
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.register import registration_of
from hfdsl.protocols.state import EffectKind, methods_with
from hfdsl.runtime.verification.digest_report import DigestReport, PartTable
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync, states
from hfdsl.runtime.weights.held_boxes import HeldBoxes, located_pieces
from hfdsl.runtime.weights.sharded_tensors import is_part

if TYPE_CHECKING:
    from hfdsl.runtime.digests import DigestLayouts, Digests, DigestValues
    from hfdsl.runtime.verification.leaving_digests import LeavingDigests
    from hfdsl.runtime.weights.exchange import ArrivingWeights
    from hfdsl.runtime.weights.held_parts import HeldPart


class RankDigests:
    """The digests of a rank's roles, while ``active``."""

    def __init__(self) -> None:
        self.active = False
        self._wanted: Mapping[VerifiedSync, DTypes] = {}
        self._taken: dict[VerifiedSync, DigestValues | None] = {}
        self._leaving: list[tuple[VerifiedSync, int, LeavingDigests]] = []
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

        If the state ``leaves`` in an exchange after the call, it is read during the exchange.
        """
        from hfdsl.runtime.verification.leaving_digests import LeavingDigests
        from hfdsl.runtime.weights.held_parts import pieces_of

        rank = current_call().rank
        for sync in self._synced(step, "exports"):
            held = not step.parts and hasattr(worker, "held_weights")  # by schedule, they are what is exported
            pieces = pieces_of(worker.held_weights(sync.state) if held else result)
            if pieces is None or _have_no_values(pieces):
                self._taken[sync] = None  # what cannot be sent is an error of the sync
                continue
            beside = exchanged and leaves and any(rank in part.senders for part in step.parts)
            places, layouts = HeldBoxes.of([step], sync.source, sync.state), self._kept_layouts(sync, exported=True)
            leaving = LeavingDigests(pieces, places, rank, self._wanted.get(sync), layouts, beside=beside)
            if beside:
                self._leaving.append((sync, rank, leaving))
                continue
            leaving.begin_again()
            digests = self._taken[sync] = leaving.values()
            if exchanged:
                self._report(sync, rank, digests, exported=True)
        if arriving is not None:
            self._take_loaded(step, worker, arriving)

    def begin_sent(self) -> None:
        """Begin with digests of weights that an exchange is about to send, where the last sync has laid them out."""
        for _, _, leaving in self._leaving:
            leaving.begin_again()

    def take_sent(self) -> list[DigestReport]:
        """Take digests of exchanged weights: everything was submitted, though the device may still be at work."""
        sent, self._leaving = self._leaving, []
        for sync, rank, leaving in sent:
            digests = self._taken[sync] = leaving.values()
            self._report(sync, rank, digests, exported=True)
        return self.reported()

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
        from hfdsl.runtime.digests import DigestValues

        rank = current_call().rank
        for sync in self._synced(step, "loads"):
            digests = arriving.digests()
            if digests is None:
                places = HeldBoxes.of([step], sync.target, sync.state)
                held = rank_digests(worker, sync.state, rank, None, places)
                digests = None if held is None else DigestValues.of(held)
            if digests is not None:
                self._report(sync, rank, digests, exported=False)

    def _synced(self, step: Step, kind: EffectKind) -> Iterator[VerifiedSync]:
        """The wanted syncs with a step as one side."""
        for sync in self._wanted if self.active else ():
            role = sync.source if kind == "exports" else sync.target
            if role == step.role and sync.state in states(step, kind):
                yield sync

    def _report(self, sync: VerifiedSync, rank: int, digests: DigestValues, *, exported: bool) -> None:
        table = digests.parts
        last_table, key = self._tables.get((sync, exported), (None, ""))
        if table != last_table:
            key = uuid4().hex
            self._tables[sync, exported] = table, key
        report = DigestReport(
            sync=sync,
            rank=rank,
            exported=exported,
            key=key,
            parts=None if table == last_table else table,
            values=digests.values,
        )
        self._reports.append(report)

    def reported(self) -> list[DigestReport]:
        """The reports since the last call of this method."""
        reports, self._reports = self._reports, []
        return reports

    def last_export(self, sync: VerifiedSync) -> Digests | None:
        """The digests of the last export; None if this rank does not export."""
        taken = self._taken.get(sync)
        return None if taken is None else taken.digests()


def rank_digests(
    worker: Any, state: str, rank: int, dtypes: DTypes | None, places: HeldBoxes | None = None
) -> Digests | None:
    """The digests of a rank's part of a state; None if the role gives no access to it.

    ``held_weights(state)`` gives it. Without that method it is what the exporting method returns, or ``state()``.
    """
    from hfdsl.runtime.digests import digests
    from hfdsl.runtime.weights.held_parts import pieces_of

    if hasattr(worker, "held_weights"):
        value = worker.held_weights(state)
    elif export := methods_with(type(worker), "exports").get(state):
        registration = registration_of(getattr(worker, export))
        alone = registration is not None and registration.execute_mode is Execute.RANK_ZERO
        value = getattr(worker, export)() if not alone or rank == 0 else {}
    else:
        value = worker.state() if hasattr(worker, "state") else None
    pieces = pieces_of(value)
    if pieces is None or value is None or _have_no_values(pieces):
        return None
    if places is None and any(map(is_part, value.values())):
        return None  # where in the whole a part is, is unknown
    return digests(located_pieces(pieces, places, rank), dtypes)


def _have_no_values(pieces: Mapping[str, HeldPart]) -> bool:
    """Whether a piece is no dense tensor of values."""
    from hfdsl.runtime.weights.local_weights import unsendable

    return any(unsendable(piece) is not None for piece in pieces.values())
