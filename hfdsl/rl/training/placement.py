"""Placement as data: pools and the roles on them, from a table, so that another file is another deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hfdsl as hf
from hfdsl.deploy.deployment import Placement, Way
from hfdsl.errors import ConfigError
from hfdsl.graph.spans import NOWHERE, Span
from hfdsl.protocols.offloading import not_offloadable
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import closest


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool: ``processes`` on each node; or the slots of other pools, ``merged``; or a run of another's ``slots``.

    ``slots`` is the first slot of ``part_of`` and the one after the last.
    """

    processes: tuple[int, ...] = ()
    gpu: bool = True
    merged: tuple[str, ...] = ()
    part_of: str | None = None
    slots: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if [bool(self.processes), bool(self.merged), self.part_of is not None].count(True) != 1:
            raise ValueError("a pool has processes, or is merged of pools, or is part_of one")
        if (self.part_of is None) != (self.slots is None):
            raise ValueError("part_of and slots go together: the pool, and which of its slots")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a role runs; ``mesh`` has the sizes of its axes, and the rest is as in ``hf.place``."""

    pool: str
    mesh: dict[str, int] | None = None
    colocate: bool = True
    gpu_memory: str | dict[str, str] | None = None
    transport: Way | None = None
    offload: bool | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """All pools, and the place of every role; ``default`` is the place of those that have none of their own.

    ``file`` is where it stands, for messages.
    """

    pools: dict[str, Pool]
    roles: dict[str, Place] = field(default_factory=dict)
    default: Place | None = None
    file: str | None = None

    def deployment(self, roles: Mapping[str, tuple[type[Worker], tuple[Any, ...], Mapping[str, Any]]]) -> hf.Deployment:
        """The deployment of these roles, each a class with the arguments of its constructor.

        Raises:
            ConfigError: HF901 for a place of a role that is not there, a role without a place, a pool that is not
                there or made of itself.
            ResourceError: HF501, HF514 for meshes and pools that make no sense.
        """
        for name in self.roles:
            if name not in roles:
                raise ConfigError(
                    "HF901", f"{self._where}there is no role '{name}' to place; {closest(name, list(roles))}"
                )
        made: dict[str, hf.ResourcePool] = {}
        placements: dict[str, Placement[Any]] = {}
        for name, (role, args, kwargs) in roles.items():
            place = self.roles.get(name, self.default)
            if place is None:
                raise ConfigError("HF901", f"{self._where}role '{name}' has no place, and there is no default")
            pool = self._pool(place.pool, made, ())
            placement = hf.place(
                role,
                *args,
                pool=pool,
                mesh=None if place.mesh is None else self._mesh(name, place.mesh),
                colocate=place.colocate,
                gpu_memory=place.gpu_memory,
                transport=place.transport,
                offload=self._offload(name, role, pool, place.offload),
                **kwargs,
            )
            placements[name] = replace(placement, span=self._span(name))
        deployment = hf.Deployment(**placements)
        deployment.span = Span(self.file, 1) if self.file else NOWHERE
        return deployment

    def _pool(self, name: str, made: dict[str, hf.ResourcePool], within: tuple[str, ...]) -> hf.ResourcePool:
        if name in within:
            raise ConfigError("HF901", f"{self._where}pool '{name}' is made of itself")
        if name not in self.pools:
            raise ConfigError("HF901", f"{self._where}there is no pool '{name}'; {closest(name, list(self.pools))}")
        if name not in made:
            pool, within = self.pools[name], (*within, name)
            if pool.merged:
                first, *rest = (self._pool(one, made, within) for one in pool.merged)
                for one in rest:
                    first = first.merge(one, name)
                made[name] = first
            elif pool.part_of is not None and pool.slots is not None:
                whole, (start, stop) = self._pool(pool.part_of, made, within), pool.slots
                sizes = [start, stop - start, whole.world_size - stop]
                made[name] = whole.split([size for size in sizes if size])[1 if start else 0]
            else:
                made[name] = hf.ResourcePool(pool.processes, use_gpu=pool.gpu, name=name)
        return made[name]

    def _offload(self, name: str, role: type[Worker], pool: hf.ResourcePool, asked: bool | None) -> bool | None:
        """The default is for roles that can be offloaded; one that has a place of its own has to."""
        return None if name not in self.roles and (not_offloadable(role) or not pool.use_gpu) else asked

    def _mesh(self, role: str, axes: Mapping[str, Any]) -> hf.Mesh:
        try:
            return hf.Mesh(**axes)
        except TypeError as error:
            raise ConfigError("HF901", f"{self._where}the mesh of '{role}': {error}") from None

    @property
    def _where(self) -> str:
        return f"{self.file}: " if self.file else ""

    def _span(self, role: str) -> Span:
        """The line of the file at which a role is placed."""
        if self.file is None or not Path(self.file).is_file():
            return NOWHERE
        heads = (
            (f"[roles.{role}]", f"{role} ", f"{role}=") if role in self.roles else ("[default]", "default ", "default=")
        )
        lines = enumerate(Path(self.file).read_text("utf-8").splitlines(), 1)
        return Span(self.file, next((number for number, line in lines if line.strip().startswith(heads)), 1))
