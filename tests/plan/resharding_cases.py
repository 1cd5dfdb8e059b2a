"""Random weights between two roles, and their elements one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TypeAlias

from hypothesis import strategies as st

from hfdsl.plan.resharding import Schedule, compile_schedule
from hfdsl.protocols.layouts import (
    Box,
    Layout,
    Parameter,
)
from hfdsl.protocols.mesh import Mesh
from tests.protocols.layout_cases import layouts, meshes, parameters

Element: TypeAlias = tuple[str, tuple[int, ...]]
Hosts: TypeAlias = tuple[list[int] | None, list[int] | None]


def elements(name: str, boxes: tuple[Box, ...]) -> set[Element]:
    return {(name, index) for box in boxes for index in product(*(range(*ends) for ends in box))}


def held(layout: Layout, parameters: list[Parameter], mesh: Mesh, rank: int) -> set[Element]:
    return set().union(*(elements(parameter.name, layout.boxes(parameter, mesh, rank)) for parameter in parameters))


class Case:
    """Parameters between two roles, which may share processes."""

    def __init__(self, data: st.DataObject) -> None:
        self.source_mesh = data.draw(meshes())
        together = data.draw(st.booleans())
        self.target_mesh = self.source_mesh if together else data.draw(meshes(most=8))
        self.shared = {rank: rank for rank in range(self.source_mesh.world_size)} if together else {}
        first = data.draw(parameters())
        self.parameters = [replace(first, name=f"weight{i}") for i in range(data.draw(st.integers(1, 3)))]
        self.source = data.draw(layouts(first, self.source_mesh))
        self.target = data.draw(layouts(first, self.target_mesh))

    @property
    def whole(self) -> set[Element]:
        return {
            (parameter.name, index)
            for parameter in self.parameters
            for index in product(*(range(n) for n in parameter.shape))
        }

    def on_all_ranks(self) -> tuple[set[Element], set[Element]]:
        """The elements on any rank that exports, and on any that loads."""
        exported, loaded = (
            set().union(*(held(layout, self.parameters, mesh, rank) for rank in range(mesh.world_size)))
            for layout, mesh in ((self.source, self.source_mesh), (self.target, self.target_mesh))
        )
        return exported, loaded

    def complete(self) -> bool:
        """Whether every element is on a rank of either side."""
        return self.on_all_ranks() == (self.whole, self.whole)

    def schedule(self, bucket_bytes: int = 100, hosts: Hosts = (None, None)) -> Schedule:
        return compile_schedule(
            self.parameters,
            self.source,
            self.source_mesh,
            self.target,
            self.target_mesh,
            self.shared,
            bucket_bytes=bucket_bytes,
            hosts=hosts,
        )

    def distance(self, source: int, target: int, hosts: Hosts) -> tuple[bool, int]:
        """Whether hosts differ, and on how many axes the sender differs from the rank in the target's process."""
        on_hosts, of_targets = hosts
        remote = on_hosts is not None and of_targets is not None and on_hosts[source] != of_targets[target]
        if target not in self.shared:
            return remote, 0
        sides = [self.source_mesh.coordinates(rank) for rank in (source, self.shared[target])]
        return remote, sum(len({getattr(side, axis) for side in sides}) - 1 for axis in ("pp", "dp", "tp"))
