"""Verification of a running plan's syncs, on the current processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hfdsl.errors import HfWarning
from hfdsl.plan.plan import Plan
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.verification.comparison import dtypes_of
from hfdsl.runtime.verification.copies import Verified, comparable, verify_copies
from hfdsl.runtime.verification.verified_syncs import VerifiedSync, syncs_of


def verify(processes: Processes, plan: Plan, state: str, *, reported: bool) -> Verified:
    """Compare digests; if ranks have ``reported`` those of the last step, compare these.

    Raises:
        SyncError, ResourceError, RoleError, HfError: as ``Running.verify``.
    """

    def verify_once() -> Verified:
        backend = processes.usable_backend(plan.name)
        processes.forget_replaced(backend)
        syncs, plans = processes.syncs, [plan, *(other for other in processes.plans if other is not plan)]
        return verify_copies(backend.digests, plans, syncs, state, syncs.reported if reported else None)

    with processes.alone("a verification"):
        return processes.with_retries(plan.name, verify_once)


@contextmanager
def verifying(processes: Processes, plan: Plan, states: Sequence[str]) -> Iterator[None]:
    """At the end of the block, verify its last sync of these states, by default of all. Errors as for ``verify``."""
    backend = processes.usable_backend(plan.name)
    syncs = [sync for sync in syncs_of(plan) if not states or sync.state in states]
    dtypes = processes.syncs.dtypes
    for sync in syncs:
        if not dtypes.get(sync):  # a copy may be empty before its first sync
            digests = partial(backend.digests, sync, sync.target, None, exported=False)
            copies = processes.with_retries(plan.name, digests)
            dtypes[sync] = dtypes_of([digests_of_rank or () for digests_of_rank in copies])
    before = processes.verifying
    processes.verifying = (*before, *syncs)
    processes.digest_exports(backend)
    try:
        yield
        for state in states or dict.fromkeys(sync.state for sync in syncs):
            _warn_of_skipped(verify(processes, plan, state, reported=True), processes, syncs)
    finally:
        processes.verifying = before
        if processes.backend is not None and not processes.broken:
            processes.digest_exports(backend)


def _warn_of_skipped(verified: Verified, processes: Processes, syncs: Sequence[VerifiedSync]) -> None:
    """HF772: syncs of the block whose copies cannot be compared, which would go unnoticed."""
    for sync, reason in verified.skipped.items():
        if sync in syncs and comparable(sync, processes.syncs) is None:
            problem = f"the copy of '{sync.state}' in '{sync.target}' is not verified: {reason}"
            warnings.warn(HfWarning("HF772", problem), stacklevel=2)
