"""Do the copies of a state hold what was exported? ``running.verify`` compares digests of every weight on both sides.

An example
----------
A step of GRPO with an actor on two ranks of ``tp`` and a sampler on one, which is verified after the step::

    step                what is digested
    hf.sync             the actor's slices, on each of its ranks, as they are exported
    sampler.generate
    actor.update        nothing: the actor now is ahead of its copy, as it should be
    verify              the sampler's weights; the digests of the actor's slices add up to them

So the export of the last sync is compared with the copy as it is now. Exports are digested in steps that are to be
verified. Without an update since the last sync, the exporter still holds the exported weights, and they are digested
when ``verify`` is called. Weights are compared in the dtype of the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from hfdsl.errors import ResourceError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.verification.comparison import compare, dtypes_of, other_form
from hfdsl.runtime.verification.verified_syncs import DTypes, VerifiedSync, last_of_each_copy, states, syncs_of
from hfdsl.runtime.weights.copied_names import copied_names

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests
    from hfdsl.runtime.verification.digest_report import DigestReport
    from hfdsl.runtime.verification.driver_reports import DriverReports

AllDigests: TypeAlias = "Callable[..., Sequence[Digests | None]]"
"""The result of ``Backend.digests``: the digests of all ranks, with None for a rank that has none."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of ``verify``: what it compared, and what it could not compare, with the reason."""

    state: str
    compared: tuple[VerifiedSync, ...]
    skipped: Mapping[VerifiedSync, str] = field(default_factory=dict)


@dataclass
class SyncHistory:
    """The copies that hold the last export of their source, and whether the source has changed since."""

    current: dict[VerifiedSync, bool] = field(default_factory=dict)
    """The syncs that have run; whether the source still equals its export."""

    digested: set[VerifiedSync] = field(default_factory=set)
    """The syncs whose export was digested."""

    dtypes: dict[VerifiedSync, DTypes] = field(default_factory=dict)
    """The dtypes of copies, as far as needed."""

    replaced: dict[VerifiedSync, str] = field(default_factory=dict)
    """The syncs whose copy has been loaded from another role since, and that role."""

    changed: set[VerifiedSync] = field(default_factory=set)
    """The syncs whose copy its role has changed since it was loaded, as one that learns from what it loads."""

    reported: DriverReports | None = None
    """The reports of ranks about the last step."""

    versions: Counter[VerifiedSync] = field(default_factory=Counter)
    """The number of times that each sync has run."""

    def add(self, plan: Plan, digesting: Sequence[VerifiedSync]) -> None:
        """Add a committed step of a plan, which digested the exports of some syncs."""
        self.report(())
        syncs = syncs_of(plan)
        for step in plan.steps:
            for sync, source in syncs.items():
                if source is step:
                    self.current[sync] = True
                    self.versions[sync] += 1
                    (self.digested.add if sync in digesting else self.digested.discard)(sync)
            for state in (*states(step, "writes"), *states(step, "loads")):
                sent = [sync for sync in self.current if (sync.source, sync.state) == (step.role, state)]
                self.current |= dict.fromkeys(sent, False)
            for state in states(step, "loads"):
                self.changed -= {sync for sync in self.current if (sync.target, sync.state) == (step.role, state)}
            for state in states(step, "writes"):
                self.changed |= {sync for sync in self.current if (sync.target, sync.state) == (step.role, state)}
        last = last_of_each_copy(plan)
        for sync in [*self.current]:
            newer = last.get((sync.target, sync.state), sync)
            if newer != sync:
                del self.current[sync]
                self.replaced[sync] = newer.source
        for sync in last.values():
            self.replaced.pop(sync, None)

    def report(self, reports: Collection[DigestReport]) -> None:
        """Replace the reports of the previous step by those of the last one."""
        if self.reported is None:
            if not reports:
                return  # a run that verifies nothing does not load numpy
            from hfdsl.runtime.verification.driver_reports import DriverReports

            self.reported = DriverReports()
        self.reported.replace(reports)

    def forget(self) -> None:
        """Forget all syncs, since copies and sources may have other versions, as after a load."""
        self.current.clear()
        self.digested.clear()
        self.changed.clear()
        self.replaced.clear()
        self.report(())


# -- in the driver -----------------------------------------------------------------------------------------------------


def verify_copies(
    digests: AllDigests,
    plans: Sequence[Plan],
    history: SyncHistory,
    state: str,
    reported: DriverReports | None = None,
) -> Verified:
    """Compare roles' loaded states with the last exports; ``digests`` is a backend's method.

    ``plans`` are all that run here, the one that is asked about first. Digests that ranks have ``reported`` are used as
    they are.

    Raises:
        SyncError: HF771 if a copy holds other weights.
        ResourceError: HF772 if no plan that has run here syncs such a state.
    """
    plan, *_ = plans
    run = dict.fromkeys((*history.current, *history.replaced))
    syncs = [sync for sync in {**run, **syncs_of(plan)} if sync.state == state]
    if not syncs:
        state_names = ", ".join(map(repr, dict.fromkeys(states_of(plan)))) or "none"
        between = " between calls" if plan.sent_in_flight else ""
        missing = f"no hf.sync of '{plan.name}' sends the state {state!r}{between}"
        raise ResourceError("HF772", f"{missing}; states that it sends: {state_names}")
    problems = {
        sync: comparable(sync, history) or _verify_copy(digests, plans, history, sync, reported) for sync in syncs
    }
    compared = tuple(sync for sync, problem in problems.items() if problem is None)
    return Verified(state, compared, {sync: problem for sync, problem in problems.items() if problem is not None})


def _verify_copy(
    digests: AllDigests,
    plans: Sequence[Plan],
    history: SyncHistory,
    sync: VerifiedSync,
    reported: DriverReports | None,
) -> str | None:
    """Compare a copy with its source; return the reason if that is impossible, or None."""
    deployment = plans[0].deployment
    sides = [deployment[role].mesh.world_size for role in (sync.source, sync.target)]
    lacks_method = "has no method held_weights(state), which gives the weights that a rank holds"
    holds_others = f"holds something other than a dict of tensors: see its held_weights('{sync.state}')"
    if reported is not None and reported.complete(sync, *sides):
        if reported.agree(sync, partial(copied_names, plans, sync)):
            return None
        exported, held = (reported.digests(sync, exported=exported) for exported in (True, False))
    elif sync in history.changed:
        return f"'{sync.target}' has changed its copy since it was loaded"
    else:
        copies = digests(sync, sync.target, None, exported=False)
        if all(rank is None for rank in copies):
            has_method = hasattr(deployment[sync.target].role, "held_weights")
            return f"'{sync.target}' {holds_others if has_method else lacks_method}"
        held = [rank or () for rank in copies]
        exports = digests(sync, sync.source, dtypes_of(held), exported=sync in history.digested)
        if all(rank is None for rank in exports):
            if hasattr(deployment[sync.source].role, "held_weights"):
                return f"'{sync.source}' {holds_others}"
            return f"'{sync.source}' exports something other than a dict of tensors, and {lacks_method}"
        exported = [rank or () for rank in exports]
    history.dtypes[sync] = dtypes_of(held)
    if _other_dtypes(exported, history.dtypes[sync]):
        if not history.current[sync]:
            return f"'{sync.target}' held its weights in other dtypes, or none, before this sync; the next is compared"
        exports = digests(sync, sync.source, history.dtypes[sync], exported=False)
        exported = [rank or () for rank in exports]
    names = copied_names(plans, sync)
    if not hasattr(deployment[sync.target].role, "held_weights") and (own := other_form(exported, held, names)):
        return f"the state() of '{sync.target}' has other {own} than '{sync.source}' exports, and it {lacks_method}"
    exported, held = names.relevant(exported, held)
    meshes = {role: deployment[role].mesh for role in (sync.source, sync.target)}
    return compare(sync, exported, held, history.versions[sync], names, meshes)


def _other_dtypes(exported: Sequence[Digests], dtypes: DTypes) -> bool:
    """Whether exports were digested in other dtypes than those of their copies, which were not known then."""
    return any(dtype != dtypes.get(name, dtype) for name, dtype in dtypes_of(exported).items())


def comparable(sync: VerifiedSync, history: SyncHistory) -> str | None:
    """The reason why a copy cannot be compared with its source; None if it can."""
    if sync in history.replaced:
        return f"'{sync.target}' has loaded the weights of '{history.replaced[sync]}' since"
    if sync not in history.current:
        return f"'{sync.target}' has not been synced"
    if not history.current[sync] and sync not in history.digested:
        return f"'{sync.source}' was trained after the sync, or has loaded weights, and the step was not verified"
    return None


def states_of(plan: Plan) -> Iterator[str]:
    """The states that a plan syncs."""
    yield from dict.fromkeys(sync.state for sync in syncs_of(plan))
