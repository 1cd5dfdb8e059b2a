"""Phases: the segments in the order in which a step submits them; what a filter keeps decides on those after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hfdsl.plan.payloads import Topology, planned_topology
from hfdsl.plan.plan import Plan
from hfdsl.plan.routes import Hints, Routes, routes
from hfdsl.plan.rows import most_rows, row_table
from hfdsl.plan.segments import Segment


@dataclass(frozen=True, slots=True)
class Phase:
    """Routes, the segments that are submitted with them, and the filter that the driver reads then, if there is one."""

    routes: Routes
    segments: tuple[Segment, ...]
    filter: int | None


def phases(
    plan: Plan,
    sizes: Mapping[Any, int],
    topology: Topology | None = None,
    kept: Mapping[int, tuple[int, ...]] | None = None,
    hints: Hints | None = None,
) -> Iterator[Phase]:
    """The phases of a step, for sizes that give every value its number of rows.

    ``topology`` says where processes are, by default as the pools have it. ``kept`` are the rows that filters keep, by
    default all. ``hints`` are what a run has measured and a plan cannot know.
    """
    keeping = most_rows(plan, sizes) if kept is None else kept
    resolved: dict[int, tuple[int, ...]] = {}
    over: set[int] = set()
    while True:
        found = routes(plan, row_table(plan, sizes, resolved), topology or planned_topology(plan), hints or Hints())
        if found.early_queries:
            resolved |= {number: keeping[number] for number in found.early_queries}
            continue
        new = tuple(segment for segment in found.segments if segment.number not in over)
        over |= {segment.number for segment in new}
        unresolved = next((node for node in found.query_payloads if node not in resolved), None)
        yield Phase(found, new, unresolved)
        if unresolved is None:
            return
        resolved[unresolved] = keeping[unresolved]
