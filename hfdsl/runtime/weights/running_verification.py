"""Verification of a running plan's syncs, on the current processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hfdsl.plan.plan import Plan
from hfdsl.runtime.processes import Processes
from hfdsl.runtime.weights.verification import Verified, dtypes_of, verify_copies
from hfdsl.runtime.weights.verified_syncs import syncs_of


def verify(processes: Processes, plan: Plan, state: str, *, reported: bool) -> Verified:
    """Compare digests; if ranks have ``reported`` those of the last step, compare these.

    Raises:
        SyncError, ResourceError, RoleError, HfError: as ``Running.verify``.
    """

    def verify_once() -> Verified:
        backend = processes.usable_backend(plan.name)
        processes.forget_replaced(backend)
        syncs = processes.syncs
        return verify_copies(backend.digests, plan, syncs, state, syncs.reported if reported else None)

    with processes.alone("a verification"):
        return processes.with_retries(plan.name, verify_once)


@contextmanager
def verifying(processes: Processes, plan: Plan, states: Sequence[str]) -> Iterator[None]:
    """At the end of the block, verify its last sync of these states, by default of all. Errors as for ``verify``."""
    backend = processes.usable_backend(plan.name)
    syncs = [sync for sync in syncs_of(plan) if not states or sync.state in states]
    dtypes = processes.syncs.dtypes
    for sync in syncs:
        if sync not in dtypes:
            digests = partial(backend.digests, sync, sync.target, None, exported=False)
            copies = processes.with_retries(plan.name, digests)
            dtypes[sync] = dtypes_of([digests_of_rank or () for digests_of_rank in copies])
    before = processes.verifying
    processes.verifying = (*before, *syncs)
    processes.digest_exports(backend)
    try:
        yield
        for state in states or dict.fromkeys(sync.state for sync in syncs):
            verify(processes, plan, state, reported=True)
    finally:
        processes.verifying = before
        if processes.backend is not None and not processes.broken:
            processes.digest_exports(backend)
