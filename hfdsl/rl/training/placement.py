"""Deployments as data, so that another file is another deployment: pools, and the placements of roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import hfdsl as hf
from hfdsl.deploy.deployment import Placement, TransportName
from hfdsl.errors import ConfigError, HfError
from hfdsl.graph.spans import NOWHERE
from hfdsl.protocols.offloading import not_offloadable
from hfdsl.protocols.worker import Worker
from hfdsl.rl.fields import Limit
from hfdsl.rl.training.places import CallPlace, Places
from hfdsl.rl.training.toml.changes import RenameField, SetField
from hfdsl.rl.training.toml.spans import TomlSpans, read_spans
from hfdsl.rl.training.typed import together
from hfdsl.types.similar_names import closest, nearest


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """A pool: ``processes`` on each node, the ``merged`` slots of other pools, or a range of another pool's slots."""

    processes: tuple[int, ...] = ()
    """The number of processes on every node."""
    gpu: bool = True
    """Whether every process has a GPU."""
    merged: tuple[str, ...] = ()
    """The pools whose slots this one joins."""
    part_of: str | None = None
    """The pool that this one is a part of."""
    slots: tuple[int, int] | None = None
    """The first slot of ``part_of``, and the one after the last."""

    def __post_init__(self) -> None:
        if [bool(self.processes), bool(self.merged), self.part_of is not None].count(True) != 1:
            raise ValueError("a pool has processes, merges other pools, or is part_of a pool")
        if (self.part_of is None) != (self.slots is None):
            raise ValueError("part_of and slots go together: the pool, and which of its slots")


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """The placement of a role, as in ``hf.place``."""

    pool: str
    """The name of its pool."""
    mesh: dict[str, int] | None = None
    """The sizes of its mesh by axis, such as ``{ dp = 2, tp = 2 }``."""
    colocate: bool = True
    """Whether the role shares processes with the other roles of the pool."""
    gpu_memory: str | dict[str, str] | None = None
    """The GPU memory of a process: ``"40GiB"`` or ``"60%"`` of the device, or such an amount for each part."""
    transport: TransportName | None = None
    """The only way for its columns between processes; left out, the plan chooses."""
    offload: bool | None = None
    """Whether the role is in host memory while it is idle."""
    deadline: Limit | None = None
    """The most seconds of its constructor and of each of its calls; left out, the run's deadline."""


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """The pools of a run, and the placement of every role."""

    pools: dict[str, PoolConfig]
    """Pools by name."""
    roles: dict[str, PlacementConfig] = field(default_factory=dict)
    """Placements by role."""
    default: PlacementConfig | None = None
    """The placement of roles without one of their own."""
    file: str | None = None
    """The file that this table was read from, for messages."""

    def deployment(
        self,
        roles: Mapping[str, tuple[type[Worker], tuple[Any, ...], Mapping[str, Any]]],
        places: Places | CallPlace | None = None,
    ) -> hf.Deployment:
        """The deployment of these roles, each a class with the arguments of its constructor.

        ``places`` are the places of the fields, by default those in the file that the table was read from.

        Raises:
            ConfigError: HF901 for the placement of an unknown role, a role without a placement, and a pool that is
                unknown or contains itself.
            ResourceError: HF501, HF514 for meshes that do not fit their pools.
        """
        unknown = [self._unknown(name, list(roles)) for name in self.roles if name not in roles]
        errors = [*unknown]
        if places is None and self.file is not None:
            places = Places(TomlSpans(self.file), read_spans(self.file))
        pools: dict[str, hf.ResourcePool] = {}
        placements: dict[str, Placement[Any]] = {}
        for name, (role, args, kwargs) in roles.items():
            if unknown and name not in self.roles and self.default is None:
                continue  # an unknown name may be meant for this role
            field_name = f"deployment.roles.{name}" if name in self.roles else "deployment.default"
            try:
                placement = self._placement(name, role, args, kwargs, pools, field_name)
            except ConfigError as error:
                errors.append(error)
            else:
                placements[name] = replace(placement, span=places.span(field_name)) if places else placement
        if errors:  # roles with the default placement share its mistakes
            raise together(errors)
        deployment = hf.Deployment(**placements)
        deployment.span = places.span("deployment") if places else NOWHERE
        return deployment

    def _unknown(self, name: str, roles: Sequence[str]) -> ConfigError:
        """The error for the placement of a role that no dataflow has."""
        problem = f"{self._where}there is no role '{name}' to place; {closest(name, roles)}"
        candidate, wrong = nearest(name, roles), f"deployment.roles.{name}"
        changes = () if candidate is None else (RenameField(wrong, candidate),)
        return ConfigError("HF901", problem, wrong, changes=changes)

    def _placement(
        self,
        name: str,
        role: type[Worker],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        pools: dict[str, hf.ResourcePool],
        field_name: str,
    ) -> Placement[Any]:
        """The placement of a role, which a field describes."""
        place = self.roles.get(name, self.default)
        if place is None:
            problem = f"{self._where}role '{name}' has no place, and there is no default"
            raise ConfigError("HF901", problem, "deployment.roles")
        pool = self._pool(place.pool, pools, (), f"{field_name}.pool")
        with _about(field_name):
            return hf.place(
                role,
                *args,
                pool=pool,
                mesh=None if place.mesh is None else self._mesh(name, place.mesh, f"{field_name}.mesh"),
                colocate=place.colocate,
                gpu_memory=place.gpu_memory,
                transport=place.transport,
                offload=self._offload(name, role, pool, place.offload),
                deadline=place.deadline,
                **kwargs,
            )

    def _pool(
        self, name: str, pools: dict[str, hf.ResourcePool], within: tuple[str, ...], field: str
    ) -> hf.ResourcePool:
        """The pool that a field names, from ``pools``, or added to it with the pools that it consists of.

        ``within`` are the pools above it, to find cycles.
        """
        if name in within:
            raise ConfigError(
                "HF901", f"{self._where}pool '{name}' is defined in terms of itself", f"deployment.pools.{name}"
            )
        if name not in self.pools:
            problem = f"{self._where}there is no pool '{name}'; {closest(name, list(self.pools))}"
            near = nearest(name, list(self.pools))
            raise ConfigError("HF901", problem, field, changes=() if near is None else (SetField(field, near),))
        if name in pools:
            return pools[name]
        config, within = self.pools[name], (*within, name)
        field = f"deployment.pools.{name}"
        with _about(field):
            if config.merged:
                pool, *others = (
                    self._pool(merged, pools, within, f"{field}.merged[{i}]") for i, merged in enumerate(config.merged)
                )
                for other_pool in others:
                    pool = pool.merge(other_pool, name)
                pools[name] = pool
            elif config.part_of is not None and config.slots is not None:
                parent, (start, stop) = self._pool(config.part_of, pools, within, f"{field}.part_of"), config.slots
                sizes = [start, stop - start, parent.world_size - stop]
                pools[name] = parent.split([size for size in sizes if size])[1 if start else 0]
            else:
                pools[name] = hf.ResourcePool(config.processes, use_gpu=config.gpu, name=name)
        return pools[name]

    def _offload(self, name: str, role: type[Worker], pool: hf.ResourcePool, offload: bool | None) -> bool | None:
        """The offload of a role; a default applies only to roles that can be offloaded, its own placement always."""
        return None if name not in self.roles and (not_offloadable(role) or not pool.use_gpu) else offload

    def _mesh(self, role: str, axes: Mapping[str, Any], field: str) -> hf.Mesh:
        axis_names = [entry.name for entry in fields(hf.Mesh)]
        for axis in axes:
            if axis not in axis_names:
                problem = f"{self._where}the mesh of '{role}' has no axis '{axis}'; {closest(axis, axis_names)}"
                candidate, wrong = nearest(axis, axis_names), f"{field}.{axis}"
                changes = () if candidate is None else (RenameField(wrong, candidate),)
                raise ConfigError("HF901", problem, wrong, changes=changes)
        return hf.Mesh(**axes)

    @property
    def _where(self) -> str:
        return f"{self.file}: " if self.file else ""


@contextmanager
def _about(field_name: str) -> Iterator[None]:
    """Attribute errors within this context to a field, unless they name a field below it."""
    try:
        yield
    except HfError as error:
        error.field = error.field or field_name
        raise
