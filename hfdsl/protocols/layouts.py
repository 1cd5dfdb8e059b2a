"""Layouts: which part of every parameter each rank of a mesh holds.

A worked example
----------------
A linear layer ``up`` of shape (6, 4) and one ``down`` of shape (4, 6) on ``Mesh(dp=2, tp=2)``, column- and row-parallel
over ``tp``, then sharded over ``dp`` by FSDP2::

    ByName({"up": Slices(0), "down": Slices(1)}).then(Shards("dp"))

    rank   dp  tp    Slices: up       down           Shards: up       down
    0      0   0     [0:3, 0:4]       [0:4, 0:3]     [0:2, 0:4]       [0:2, 0:3]
    1      0   1     [3:6, 0:4]       [0:4, 3:6]     [3:5, 0:4]       [0:2, 3:6]
    2      1   0     [0:3, 0:4]       [0:4, 0:3]     [2:3, 0:4]       [2:4, 0:3]
    3      1   1     [3:6, 0:4]       [0:4, 3:6]     [5:6, 0:4]       [2:4, 3:6]

A layout is a list of *cuts*, each of which cuts what those before it have left: of the three rows of ``up`` on rank 0,
``Shards`` gives ``torch.chunk``'s two to ``dp=0`` and one to ``dp=1``. Ranks along an axis that no cut names hold
replicas.

A cut sees a parameter, its axes and a coordinate on them, and nothing else. Two consequences make proofs fast: two
parameters of one shape with the same cuts lie alike, and so do two ranks with the same coordinates on the axes that
cuts name. A 70B model on 1,024 ranks has about 10 kinds of parameters and 8 or 64 different coordinates.

Boxes are always parts of the *full* tensor as a checkpoint has it, so that both sides of a sync speak of the same
elements. A rank that keeps its elements in another order, such as the heads of a fused ``qkv`` one group after the
other, lists its boxes in that order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final

from hfdsl.errors import ProtocolError
from hfdsl.protocols.boxes import Box
from hfdsl.protocols.cuts import (
    Composed,
    Cut,
    Layout,
    Only,
    Shards,
    Slices,
    StandardLayout,
    check_axes,
    check_standard,
    invalid,
    is_predefined,
    refused,
    starts,
)
from hfdsl.protocols.holdings import Holding, holdings, rank_boxes, ranks_by_coordinate
from hfdsl.protocols.mesh import AXIS_SIZE, Mesh, axis_size
from hfdsl.protocols.parameters import Parameter
from hfdsl.types.numbers import brief, is_count

__all__ = [
    "Box",
    "ByName",
    "Composed",
    "Cut",
    "Experts",
    "Generation",
    "Holding",
    "Layout",
    "Only",
    "Parameter",
    "Replicas",
    "Shards",
    "Slices",
    "Stages",
    "StandardLayout",
    "Tied",
    "holdings",
    "rank_boxes",
    "ranks_by_coordinate",
]


@dataclass(frozen=True, slots=True)
class Replicas(StandardLayout):
    """Every rank holds all of every parameter.

    >>> Replicas().boxes(Parameter("bias", (8,)), Mesh(tp=2), 1)
    (((0, 8),),)
    """

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``."""
        return ()


@dataclass(frozen=True)
class ByName(StandardLayout):
    """A layout for each kind of parameter, selected by the first shell pattern that matches its name.

    >>> layout = ByName({"*.down_proj.weight": Slices(1), "*_proj.weight": Slices(0)})
    >>> layout.boxes(Parameter("mlp.down_proj.weight", (4, 6)), Mesh(tp=2), 1)
    (((0, 4), (3, 6)),)
    """

    layouts: Mapping[str, StandardLayout]
    otherwise: StandardLayout = Replicas()

    def __post_init__(self) -> None:
        if not isinstance(self.layouts, Mapping) or not all(isinstance(pattern, str) for pattern in self.layouts):
            raise invalid(self, f"takes a dict of layouts by pattern, got {brief(self.layouts)}")
        check_standard(self, *self.layouts.values(), self.otherwise)

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``."""
        return self._of(parameter.name).cuts(parameter, mesh)

    def stored_as(self, name: str) -> str:
        """As ``Layout.stored_as``."""
        return self._of(name).stored_as(name)

    def _of(self, name: str) -> StandardLayout:
        if name not in self._layout_of:
            layouts = (layout for pattern, layout in self.layouts.items() if fnmatchcase(name, pattern))
            self._layout_of[name] = next(layouts, self.otherwise)
        return self._layout_of[name]

    @cached_property
    def _layout_of(self) -> dict[str, StandardLayout]:
        """The layouts of names that were asked for: a check asks for each some ten times."""
        return {}


@dataclass(frozen=True, slots=True)
class Stages(StandardLayout):
    """Pipeline stages: each holds consecutive layers, as many as ``counts`` says, or else all the same number.

    A parameter of no layer is in the first stage where ``first`` matches its name, else in the last one, and in both
    where ``ends`` does, as an embedding that is tied to the output layer. ``number`` finds the layer in a name.

    >>> stages, mesh = Stages(4), Mesh(pp=2)
    >>> [stages.boxes(Parameter(f"model.layers.{i}.bias", (8,)), mesh, 0) for i in (1, 2)]
    [(((0, 8),),), ()]
    """

    layers: int
    axis: str = "pp"
    counts: tuple[int, ...] = ()
    first: tuple[str, ...] = ("*embed*", "*wte*", "*wpe*")
    ends: tuple[str, ...] = ()
    number: str = r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\."

    def __post_init__(self) -> None:
        if not is_count(self.layers):
            raise invalid(self, f"layers= is a number of at least 1, got {brief(self.layers)}")
        if not (isinstance(self.counts, tuple) and all(is_count(count, least=0) for count in self.counts)):
            raise invalid(self, f"counts= is a tuple of layers by stage, such as (6, 5), got {brief(self.counts)}")
        if not isinstance(self.axis, str) or self.axis not in AXIS_SIZE:
            raise invalid(self, f"axis= is one of {', '.join(AXIS_SIZE)}, got {brief(self.axis)}")
        for name in ("first", "ends"):
            patterns = getattr(self, name)
            if not (isinstance(patterns, tuple) and all(isinstance(pattern, str) for pattern in patterns)):
                raise invalid(self, f'{name}= is a tuple of patterns, such as ("*embed*",), got {brief(patterns)}')
        _check_number(self, self.number)

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``; HF734 if the layers do not divide."""
        stages = axis_size(mesh, self.axis)
        if stages == 1:
            return ()
        return (Only(axis=self.axis, at=self._stages(parameter, stages)),)

    def _stages(self, parameter: Parameter, stages: int) -> tuple[int, ...]:
        layer = number_in(parameter.name, self.number)
        if layer is None:
            if any(fnmatchcase(parameter.name, pattern) for pattern in self.ends):
                return 0, stages - 1
            return (0,) if any(fnmatchcase(parameter.name, pattern) for pattern in self.first) else (stages - 1,)
        if not self.counts and self.layers % stages:
            raise refused(parameter, f"{self.axis} = {stages} does not divide the {self.layers} layers; set counts")
        counts = self.counts or (self.layers // stages,) * stages
        if len(counts) != stages or sum(counts) != self.layers:
            raise refused(parameter, f"counts {counts} are not of {self.layers} layers in {stages} stages")
        if layer >= self.layers:
            raise refused(parameter, f"its number is too high for a layout of {self.layers} layers, counted from 0")
        return (next(i for i, start in reversed(tuple(enumerate(starts(counts)))) if start <= layer),)


@dataclass(frozen=True, slots=True)
class Experts(StandardLayout):
    """Experts by index: each rank of the axes holds consecutive ones of ``count``; other parameters are replicated.

    Experts that are fused into one tensor are ``Slices(0, axis)``. ``number`` finds the expert in a name.

    >>> experts, mesh = Experts(4, "dp"), Mesh(dp=2)
    >>> [experts.boxes(Parameter(f"mlp.experts.{i}.bias", (8,)), mesh, 1) for i in (1, 2)]
    [(), (((0, 8),),)]
    """

    count: int
    axis: str | tuple[str, ...] = "tp"
    number: str = r"(?:^|\.)experts\.(\d+)\."

    def __post_init__(self) -> None:
        if not is_count(self.count):
            raise invalid(self, f"count= is a number of at least 1, got {brief(self.count)}")
        check_axes(self, self.axis)
        if not AXIS_SIZE.keys() >= set(self._axes):
            raise invalid(self, f"axis= is one of {', '.join(AXIS_SIZE)}, or several, got {brief(self.axis)}")
        _check_number(self, self.number)

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``; HF734 if the experts do not divide."""
        expert = number_in(parameter.name, self.number)
        if expert is None:
            return ()
        ranks = Only(axis=self.axis, at=()).parts(mesh)
        if self.count % ranks:
            raise refused(parameter, f"{'*'.join(self._axes)} = {ranks} does not divide the {self.count} experts")
        if expert >= self.count:
            raise refused(parameter, f"its number is too high for a layout of {self.count} experts, counted from 0")
        return (Only(axis=self.axis, at=(expert * ranks // self.count,)),)

    @property
    def _axes(self) -> tuple[str, ...]:
        return (self.axis,) if isinstance(self.axis, str) else self.axis


@dataclass(frozen=True)
class Tied(StandardLayout):
    """A layout with tied parameters: ``names`` maps each further name to the parameter.

    >>> layout = Tied(Replicas(), {"lm_head.weight": "model.embed_tokens.weight"})
    >>> layout.stored_as("lm_head.weight")
    'model.embed_tokens.weight'
    """

    layout: StandardLayout
    names: Mapping[str, str]

    def __post_init__(self) -> None:
        check_standard(self, self.layout)
        entries = self.names.items() if isinstance(self.names, Mapping) else [(None, None)]
        if not all(isinstance(name, str) for entry in entries for name in entry):
            raise invalid(self, f"names= is a dict from a name to the stored one, got {brief(self.names)}")
        for name, stored in self.names.items():
            if stored in self.names:
                raise invalid(self, f"{name!r} is tied to {stored!r}, which is not stored itself; give its stored name")

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``, for the stored parameter."""
        return self.layout.cuts(replace(parameter, name=self.stored_as(parameter.name)), mesh)

    def stored_as(self, name: str) -> str:
        """As ``Layout.stored_as``."""
        return self.layout.stored_as(self.names.get(name, name))


GENERATION_AXES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"tp": ("gen_tp",), "pp": ("gen_pp",), "dp": ("dp", "micro_dp")}
)


@dataclass(frozen=True, slots=True)
class Generation(StandardLayout):
    """Derive the layout over the generation groups of a mesh: ``gen_tp`` and ``gen_pp`` replace ``tp`` and ``pp``.

    >>> mesh, weight = Mesh(tp=4, gen_tp=2), Parameter("weight", (8,))
    >>> [Generation(Slices(0)).boxes(weight, mesh, rank)[0] for rank in range(4)]
    [((0, 4),), ((0, 4),), ((4, 8),), ((4, 8),)]
    """

    layout: StandardLayout

    def __post_init__(self) -> None:
        check_standard(self, self.layout)

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``."""
        return tuple(_for_generation(cut) for cut in self.layout.cuts(parameter, generation_groups(mesh)))

    def stored_as(self, name: str) -> str:
        """As ``Layout.stored_as``."""
        return self.layout.stored_as(name)


@lru_cache(maxsize=64)
def generation_groups(mesh: Mesh) -> Mesh:
    """The mesh of the generation groups of a mesh."""
    return Mesh(pp=mesh.gen_pp_size, dp=mesh.dp * mesh.micro_dp_size, tp=mesh.gen_tp_size)


def _for_generation(cut: Cut) -> Cut:
    if not is_dataclass(cut):
        raise ProtocolError("HF739", f"Generation takes cuts that are dataclasses, got {type(cut).__name__}")
    return _renamed_axes(cut) if is_predefined(cut) else _with_renamed_axes(cut)  # others may have no hash


def _with_renamed_axes(cut: Cut) -> Cut:
    axes = [renamed for axis in cut.axes for renamed in GENERATION_AXES.get(axis, (axis,))]
    changed: Cut = replace(cut, axis=tuple(dict.fromkeys(axes)))  # type: ignore[type-var]  # checked above
    return changed


_renamed_axes = lru_cache(maxsize=256)(_with_renamed_axes)


def number_in(name: str, pattern: str) -> int | None:
    """The number of a layer or an expert in a name; None if the pattern does not match.

    >>> number_in("layers.12.bias", "layers.([0-9]+)"), number_in("norm.bias", "layers.([0-9]+)")
    (12, None)

    Raises:
        ProtocolError: HF739 if the pattern finds something else than a number.
    """
    match = _compiled(pattern).search(name)
    if match is None:
        return None
    number = next((group for group in match.groups() if group is not None), "")
    if not number.isdecimal():
        raise ProtocolError("HF739", f"number={pattern!r} finds {number!r} in {name!r}, which is no number")
    return int(number)


def _check_number(layout: object, pattern: object) -> None:
    """Refuse a pattern that finds no number in names.

    Raises:
        ProtocolError: HF739.
    """
    try:
        groups = _compiled(pattern).groups if isinstance(pattern, str) else 0
    except re.error as error:
        raise invalid(layout, f"number= is no regular expression: {error}") from None
    if not groups:
        raise invalid(layout, f"number= is a regular expression with a group for the number, got {brief(pattern)}")


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
