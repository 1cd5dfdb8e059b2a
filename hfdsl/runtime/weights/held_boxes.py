"""The places of a rank's weights in the whole, from the layout of a scheduled sync."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hfdsl.plan.plan import Step
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.mesh import Mesh

if TYPE_CHECKING:
    from hfdsl.runtime.weights.held_parts import HeldPart


@dataclass(frozen=True, slots=True)
class HeldBoxes:
    """The boxes of parameters on the ranks of a role, from a scheduled sync."""

    layout: Layout
    mesh: Mesh
    parameters: tuple[Parameter, ...]
    other_layout: Layout
    """The layout of the other side, which may tie a parameter that is sent to one that is not."""

    known: Callable[[int], dict[str, Any]] = field(compare=False)
    """The computed parts, by rank, which follow from the other fields."""

    def by_name(self, names: Iterable[str]) -> Iterator[Parameter]:
        """The parameters of these names: those that are sent, and those that a side ties to one of them."""
        sent = {parameter.name: parameter for parameter in self.parameters}
        layouts = self.layout, self.other_layout
        tied = [{layout.stored_as(name): parameter for name, parameter in sent.items()} for layout in layouts]
        for name in names:
            twins = (by_stored.get(layout.stored_as(name)) for layout, by_stored in zip(layouts, tied, strict=True))
            parameter = sent.get(name) or next(filter(None, twins), None)
            if parameter is not None:
                yield parameter if parameter.name == name else replace(parameter, name=name)

    @classmethod
    def exported(cls, sync: ScheduledSync) -> HeldBoxes:
        """The boxes on the exporting ranks."""
        schedule, known = sync.schedule, partial(_rank_places, sync, "exports")
        return cls(sync.source_layout, schedule.source_mesh, schedule.parameters, sync.target_layout, known)

    @classmethod
    def loaded(cls, sync: ScheduledSync) -> HeldBoxes:
        """The boxes on the loading ranks."""
        schedule, known = sync.schedule, partial(_rank_places, sync, "loads")
        return cls(sync.target_layout, schedule.target_mesh, schedule.parameters, sync.source_layout, known)

    @classmethod
    def of(cls, steps: Iterable[Step], role: str, state: str) -> HeldBoxes | None:
        """The layout of a state, from the steps of its role."""
        for step in steps:
            for sync in step.parts if step.role == role else ():
                if sync.state == state:
                    return cls.exported(sync)
            if step.sync is not None and (step.role, step.sync.state) == (role, state):
                return cls.loaded(step.sync)
        return None


def _rank_places(sync: ScheduledSync, side: str, rank: int) -> dict[str, Any]:
    return sync.places.setdefault((f"digests of {side}", rank), {})


def located_pieces(
    pieces: Mapping[str, HeldPart], places: HeldBoxes | None, rank: int
) -> Iterable[tuple[str, HeldPart]]:
    """The pieces that a rank holds, each with its place in the whole."""
    if places is None:
        return pieces.items()
    from hfdsl.runtime.weights.located_parts import located

    return located(pieces, places.layout, places.by_name(pieces), places.mesh, rank, places.known(rank))
