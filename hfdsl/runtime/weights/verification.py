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
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from hfdsl.errors import ResourceError, SyncError
from hfdsl.plan.plan import Plan
from hfdsl.protocols.boxes import Box, extent, fill, in_words, volume
from hfdsl.runtime.weights.copied_names import UNKNOWN, CopiedNames, copied_names
from hfdsl.runtime.weights.verified_syncs import DTypes, VerifiedSync, last_of_each_copy, states, syncs_of

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests
    from hfdsl.runtime.weights.digest_reports import DigestReport
    from hfdsl.runtime.weights.reported_digests import ReportedDigests

AllDigests: TypeAlias = "Callable[..., Sequence[Digests | None]]"
"""The result of ``Backend.digests``: the digests of all ranks, with None for a rank that has none."""

MAX_COMBINATIONS = 64
"""The maximum number of combinations of differing replicas to search for the correct ones."""


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

    reported: ReportedDigests | None = None
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
            from hfdsl.runtime.weights.reported_digests import ReportedDigests

            self.reported = ReportedDigests()
        self.reported.replace(reports)

    def forget(self) -> None:
        """Forget all syncs, since copies and sources may have other versions, as after a load."""
        self.current.clear()
        self.digested.clear()
        self.changed.clear()
        self.replaced.clear()
        self.report(())


# -- in the driver -----------------------------------------------------------------------------------------------------


def dtypes_of(ranks: Sequence[Digests]) -> dict[str, str]:
    """The dtypes of the weights on ranks."""
    return {digest.name: digest.dtype for digests in ranks for digest in digests}


def same_names(source: Sequence[Digests], target: Sequence[Digests]) -> bool:
    """Whether both sides hold weights with the same names and shapes."""
    sides = [{name: extent(parts) for name, parts in _by_name(ranks).items()} for ranks in (source, target)]
    return sides[0] == sides[1]


def compare(
    sync: VerifiedSync,
    source: Sequence[Digests],
    target: Sequence[Digests],
    version: int = 0,
    names: CopiedNames = UNKNOWN,
) -> str | None:
    """Compare two roles' weights of a state in one version: the number of the sync in the run.

    ``names`` says which weights each side should have. Returns the reason if not all of them can be compared, or None.

    Raises:
        SyncError: HF771.
    """
    try:
        return _compare_weights(sync, source, target, names)
    except SyncError as error:
        if not version:
            raise
        named = _different(error.role, error.parameter, error.ranks, f"{error.message}, in sync {version} of the run")
        named.version = version
        raise named from None


def _compare_weights(
    sync: VerifiedSync, source: Sequence[Digests], target: Sequence[Digests], names: CopiedNames
) -> str | None:
    exported, loaded = _by_name(source), _by_name(target)
    dtypes = dtypes_of(source), dtypes_of(target)
    overlapping, alone = dict[str, str](), dict[str, list[str]]()
    for name in (*exported, *(name for name in loaded if name not in exported)):
        exported_as, loaded_as = names.on_sides(name, exported, loaded)
        if exported_as is None or loaded_as is None:
            holder = sync.source if loaded_as is None else sync.target
            if names.missing(name, of_target=loaded_as is None):
                raise _different(sync.target, name, (), _held_alone(sync, holder, [name]))
            alone.setdefault(holder, []).append(name)
            continue
        if exported_as != loaded_as and dtypes[0][exported_as] != dtypes[1][loaded_as]:
            continue  # one side has it under the other name, too, in the dtype of which it is compared
        ours, theirs = exported[exported_as], loaded[loaded_as]
        if fill(ours) and fill(theirs):
            _compare_weight(sync, name, ours, theirs)
        elif extent(ours) == extent(theirs):
            overlapping[name] = sync.target if fill(ours) else sync.source
        else:
            raise _other_shape(sync, name, ours, theirs)
    for holder, held in alone.items():
        return f"{_held_alone(sync, holder, held)}; '{sync.target}' does not state the parameters that it loads"
    if not overlapping:
        return None
    name, role = next(iter(overlapping.items()))
    more = f" and of {len(overlapping) - 1} more weights" if len(overlapping) > 1 else ""
    return f"the parts of '{name}'{more} on the ranks of '{role}' overlap or have gaps, so their digests do not add up"


def _held_alone(sync: VerifiedSync, holder: str, names: Sequence[str]) -> str:
    lacking = sync.target if holder == sync.source else sync.source
    more = f" and {len(names) - 1} more weights" if len(names) > 1 else ""
    return f"'{holder}' holds '{names[0]}'{more} of '{sync.state}', and '{lacking}' does not"


_Parts: TypeAlias = dict[Box, dict[int, int]]
"""The digests of a weight by part and rank."""


def _by_name(ranks: Sequence[Digests]) -> dict[str, _Parts]:
    weights: dict[str, _Parts] = {}
    for rank, digests in enumerate(ranks):
        for digest in digests:
            if volume(digest.box):  # a sync sends no part without elements, so only one side may have it
                weights.setdefault(digest.name, {}).setdefault(digest.box, {})[rank] = digest.value
    return weights


def _compare_weight(sync: VerifiedSync, name: str, source: _Parts, target: _Parts) -> None:
    if extent(source) != extent(target):
        raise _other_shape(sync, name, source, target)
    for box, replicas in source.items():
        if len(set(replicas.values())) > 1:
            ranks, part = _minority(replicas), f"'{name}'{_place(box, source)} of '{sync.state}'"
            problem = (
                f"ranks of '{sync.source}' hold different values of {part}: {_ranks_in_words(ranks)} and the others"
            )
            raise _different(sync.source, name, ranks, problem)
    expected = sum(next(iter(replicas.values())) for replicas in source.values()) % 2**64
    wrong = _wrong(source, target, expected)
    if wrong:
        held = {rank: box for box, replicas in target.items() for rank in replicas}
        places = {_place(held[rank], target) for rank in wrong}
        where = places.pop() if len(places) == 1 else ""
        problem = f"'{sync.target}' holds other values of '{name}'{where} of '{sync.state}' on {_ranks_in_words(wrong)}"
        raise _different(sync.target, name, wrong, f"{problem} than '{sync.source}' exported")


def _other_shape(sync: VerifiedSync, name: str, source: _Parts, target: _Parts) -> SyncError:
    sizes = f"{extent(target)} in '{sync.target}' and {extent(source)} in '{sync.source}'"
    return _different(sync.target, name, (), f"'{name}' of '{sync.state}' has the shape {sizes}")


def _wrong(source: _Parts, target: _Parts, expected: int) -> tuple[int, ...]:
    """The ranks of the target that hold wrong values; all ranks if these cannot be determined."""
    if source.keys() == target.keys():
        right = {box: next(iter(replicas.values())) for box, replicas in source.items()}
        return _wrong_ranks(target, right)
    choices = [sorted(set(replicas.values())) for replicas in target.values()]
    count = 1
    for choice in choices:
        count *= len(choice)
    for values in product(*choices) if count <= MAX_COMBINATIONS else ():
        if sum(values) % 2**64 == expected:
            return _wrong_ranks(target, dict(zip(target, values, strict=True)))
    return tuple(sorted({rank for replicas in target.values() for rank in replicas}))


def _wrong_ranks(target: _Parts, right: Mapping[Box, int]) -> tuple[int, ...]:
    wrong = {rank for box, replicas in target.items() for rank, value in replicas.items() if value != right[box]}
    return tuple(sorted(wrong))


def _minority(replicas: Mapping[int, int]) -> tuple[int, ...]:
    values = list(replicas.values())
    usual = max(values, key=values.count)
    return tuple(rank for rank, value in replicas.items() if value != usual)


def _place(box: Box, parts: _Parts) -> str:
    return "" if len(parts) == 1 else in_words(box)


def _ranks_in_words(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _different(role: str, name: str, ranks: tuple[int, ...], problem: str) -> SyncError:
    error = SyncError("HF771", problem)
    error.role, error.parameter, error.ranks = role, name, ranks
    return error


def verify_copies(
    digests: AllDigests,
    plans: Sequence[Plan],
    history: SyncHistory,
    state: str,
    reported: ReportedDigests | None = None,
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
    reported: ReportedDigests | None,
) -> str | None:
    """Compare a copy with its source; return the reason if that is impossible, or None."""
    deployment = plans[0].deployment
    sides = [deployment[role].mesh.world_size for role in (sync.source, sync.target)]
    lacks_method = "has no method held_weights(state), which gives the weights that a rank holds"
    holds_others = f"holds something other than a dict of tensors: see its held_weights('{sync.state}')"
    if reported is not None and reported.complete(sync, *sides):
        if reported.agree(sync):
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
    exported, held = names.relevant(exported, held)
    if not hasattr(deployment[sync.target].role, "held_weights") and not same_names(exported, held):
        return f"the state() of '{sync.target}' has other names than '{sync.source}' exports, and it {lacks_method}"
    return compare(sync, exported, held, history.versions[sync], names)


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
