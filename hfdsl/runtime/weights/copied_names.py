"""The names of the weights that a sync copies: only these are compared, whatever else a role exports or holds.

An example
----------
An actor states the parameters w and b and exports a buffer m with them. An engine loads b, and has a buffer f::

    name    the actor    the engine    if the engine states b    if it states nothing
    b       exports      holds         compared                  compared
    w       exports                    not loaded                perhaps it should be loaded: not compared
    m       exports                    not loaded                no parameter
    f                    holds         no parameter              no parameter

Where no role states anything, which of w, m and f are parameters is unknown, so none of them is compared. A sync in
parts sends parameters alone: a buffer that both sides hold is no copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hfdsl.deploy.weight_syncs import WeightSync, weight_syncs
from hfdsl.plan.plan import Plan
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Layout, Replicas
from hfdsl.runtime.verification.verified_syncs import VerifiedSync

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests


@dataclass(frozen=True, slots=True)
class CopiedNames:
    """The weights that a sync copies, as far as roles state them.

    >>> names = CopiedNames(loaded=frozenset({"b"}), by_target=True)
    >>> [*names.compared(["w", "b"], ["b", "f"])], names.missing("b", of_target=True)
    (['b'], True)
    """

    loaded: frozenset[str] = frozenset()
    """The parameters that the target loads: those that it states, else those of the source; none if neither does."""

    by_target: bool = False
    """Whether the target states them."""

    in_parts: bool = False
    """Whether nothing else is sent."""

    layouts: tuple[Layout, Layout] = (Replicas(), Replicas())
    """The layouts of the source and the target, which say what a weight is stored as."""

    holders: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The ranks of the target that hold a part of a weight, by the name of what is sent; empty if that is unknown."""

    def stored(self, name: str) -> tuple[str, str]:
        """The names under which the source and the target store a weight."""
        source, target = self.layouts
        return source.stored_as(name), target.stored_as(name)

    def on_sides(self, name: str, source: Collection[str], target: Collection[str]) -> tuple[str | None, str | None]:
        """The names under which both sides hold a weight: its own, or that of a weight to which a side ties it.

        >>> from hfdsl.protocols.layouts import Tied
        >>> names = CopiedNames(layouts=(Replicas(), Tied(Replicas(), {"head": "embed"})))
        >>> names.on_sides("head", ["embed"], ["embed", "head"]), names.on_sides("bias", ["bias"], ["embed"])
        (('embed', 'head'), ('bias', None))
        """
        ours, theirs = self.stored(name)
        on_source = next((choice for choice in (name, ours, theirs) if choice in source), None)
        return on_source, next((choice for choice in (name, theirs, ours) if choice in target), None)

    def compared(self, source: Collection[str], target: Collection[str]) -> Iterator[str]:
        """The names of both sides, without those that one side has for itself, or that are not sent."""
        for name in dict.fromkeys((*source, *target)):
            on_both = None not in self.on_sides(name, source, target)
            if self._is_loaded(name) or not self.loaded or (on_both and not self.in_parts):
                yield name

    def missing(self, name: str, *, of_target: bool) -> bool:
        """Whether a side that lacks a weight should have it; False if that is unknown."""
        return self._is_loaded(name) and (self.by_target or not of_target)

    def lacking(self, held: Sequence[Collection[str]]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The weights that some ranks of the target lack, with these ranks; ``held`` are the names that each one has.

        A rank without any weight gives no access to them, and a weight that no rank has may have another name.

        >>> names = CopiedNames(holders={"b": frozenset({0, 1, 2}), "w": frozenset({0, 1, 2})})
        >>> [*names.lacking([{"b", "w"}, {"w"}, ()])]
        [('b', (1,))]
        """
        for name, holders in self.holders.items():
            known = {name, *self.stored(name)}
            ranks = tuple(rank for rank in sorted(holders) if held[rank] and known.isdisjoint(held[rank]))
            if ranks and not all(known.isdisjoint(names) for names in held):
                yield name, ranks

    def _is_loaded(self, name: str) -> bool:
        return not self.loaded.isdisjoint((name, *self.stored(name)))

    def relevant(self, source: Sequence[Digests], target: Sequence[Digests]) -> tuple[list[Digests], list[Digests]]:
        """The digests of both sides that are to be compared."""
        held = [{digest.name for rank in side for digest in rank} for side in (source, target)]
        names = set(self.compared(*held))
        kept = [[tuple(part for part in rank if part.name in names) for rank in side] for side in (source, target)]
        return kept[0], kept[1]


def copied_names(plans: Iterable[Plan], sync: VerifiedSync) -> CopiedNames:
    """The names that the roles of a sync state, in the first of these plans that has it."""
    for plan in plans:
        for declared in weight_syncs(plan.graph, plan.deployment):
            if (declared.state, declared.source.role, declared.target.role) == (sync.state, sync.source, sync.target):
                names = _stated_names(declared)
                scheduled = _scheduled(plan, sync)
                return names if scheduled is None else _sent_names(names, scheduled)
    return UNKNOWN


def _stated_names(sync: WeightSync) -> CopiedNames:
    layouts = sync.source.layout() or Replicas(), sync.target.layout() or Replicas()
    parameters = sync.target.parameters or sync.source.parameters
    names = CopiedNames(by_target=bool(sync.target.parameters), layouts=layouts)
    return replace(names, loaded=_with_stored(names, (parameter.name for parameter in parameters)))


def _sent_names(names: CopiedNames, sync: ScheduledSync) -> CopiedNames:
    sent = _with_stored(names, (parameter.name for parameter in sync.schedule.parameters))
    holders = {
        parameter.name: ranks
        for route in sync.schedule.routes
        for ranks in (frozenset(rank for need in route.needs for rank in need.ranks),)
        for parameter in route.parameters
    }
    return replace(names, loaded=sent, in_parts=True, holders=holders)


def _with_stored(names: CopiedNames, parameters: Iterable[str]) -> frozenset[str]:
    return frozenset(name for parameter in parameters for name in (parameter, *names.stored(parameter)))


def _scheduled(plan: Plan, sync: VerifiedSync) -> ScheduledSync | None:
    roles: Mapping[int, str | None] = {step.node: step.role for step in plan.steps}
    for step in plan.steps:
        if step.sync is not None and step.role is not None:
            loaded = VerifiedSync(step.sync.state, roles[step.sync.export] or "", step.role)
            if loaded == sync:
                return step.sync
    return None


UNKNOWN = CopiedNames()
"""Where no role states anything."""
