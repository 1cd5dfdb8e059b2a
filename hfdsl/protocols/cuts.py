"""Cuts: what a layout does to a parameter, axis by axis; ``layouts`` has the worked example."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hfdsl.errors import ProtocolError
from hfdsl.protocols.boxes import Box, Range
from hfdsl.protocols.extents import Extent, boxes_of, clipped, extent_problem, joined
from hfdsl.protocols.mesh import AXIS_SIZE, Mesh, axis_rank, axis_size
from hfdsl.protocols.parameters import Parameter
from hfdsl.types.numbers import brief, is_count

CANNOT_BE_CUT: Final = " cannot be cut: "
"""Between a parameter and the reason in the message of HF734."""


class Layout(ABC):
    """The boxes of a parameter that each rank holds; subclass it for a layout beyond the standard ones.

    >>> class Reversed(Layout):
    ...     def boxes(self, parameter: Parameter, mesh: Mesh, rank: int) -> tuple[Box, ...]:
    ...         rows, start = parameter.shape[0] // mesh.tp, mesh.tp - 1 - mesh.coordinates(rank).tp
    ...         return (((start * rows, (start + 1) * rows),),)
    >>> Reversed().boxes(Parameter("bias", (8,)), Mesh(tp=2), 0)
    (((4, 8),),)
    """

    @abstractmethod
    def boxes(self, parameter: Parameter, mesh: Mesh, rank: int) -> tuple[Box, ...]:
        """The disjoint boxes of a rank, in the order of its local tensor; none if it holds nothing."""

    def stored_as(self, name: str) -> str:
        """The name under which a parameter is stored; tied parameters share one."""
        return name


class StandardLayout(Layout):
    """A layout by cuts."""

    @abstractmethod
    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """The cuts of a parameter, each applied to the part that the previous ones leave.

        Raises:
            ProtocolError: HF734 if it cannot be cut so.
        """

    def boxes(self, parameter: Parameter, mesh: Mesh, rank: int) -> tuple[Box, ...]:
        """As ``Layout.boxes``.

        Raises:
            ProtocolError: HF734 if the parameter cannot be cut so.
        """
        cuts = self.cuts(parameter, mesh)
        return boxes_of(part_at(parameter, mesh, cuts, [cut.coordinate(mesh, rank) for cut in cuts]))

    def then(self, *others: StandardLayout) -> Composed:
        """This layout, with its parts cut further by others: ``Slices(0).then(Shards("dp"))``."""
        return Composed((self, *others))


def invalid(layout: object, problem: str) -> ProtocolError:
    """The error for an argument with which there is no such layout (HF739)."""
    return ProtocolError("HF739", f"{type(layout).__name__}: {problem}")


def check_axes(layout: object, axis: object) -> None:
    """Refuse what is neither an axis nor several ones.

    Raises:
        ProtocolError: HF739.
    """
    names = (axis,) if isinstance(axis, str) else axis
    are_names = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    if not (isinstance(names, tuple) and are_names and 0 < len(names) == len(set(names))):
        raise invalid(layout, f'axis= is an axis, such as "tp", or a tuple of several, got {brief(axis)}')


def check_standard(layout: object, *layouts: object) -> None:
    """Refuse what is no layout by cuts within another layout.

    Raises:
        ProtocolError: HF739.
    """
    for inner in layouts:
        if not isinstance(inner, StandardLayout):
            raise invalid(layout, f"takes layouts of this module, such as Slices(0), got {brief(inner)}")


def part_at(parameter: Parameter, mesh: Mesh, cuts: Sequence[Cut], coordinates: Sequence[int]) -> Extent | None:
    """Compute the extent that cuts leave at these coordinates, one per cut; None if it is empty.

    Raises:
        ProtocolError: HF734 if the parameter cannot be cut so.
    """
    part: Extent | None = tuple(((0, size),) for size in parameter.shape)
    for cut, index in zip(cuts, coordinates, strict=True):
        if part is None:
            break
        remaining, count = cut.cut(parameter, part, index, cut.parts(mesh)), cut.parts(mesh)
        if not is_predefined(cut) and (problem := extent_problem(part, remaining)) is not None:
            place = f"coordinate {index} of {count} on {'*'.join(cut.axes)}"
            raise ProtocolError(
                "HF739",
                f"{type(cut).__name__}.cut gives {place} of {parameter.name!r} {parameter.shape} "
                f"{brief(remaining)}, {problem}",
            )
        part = remaining
    return part


# -- cuts: layouts that treat all parameters alike ---------------------------------------------------------------------


class Cut(StandardLayout):
    """A cut over one axis of the mesh, or over several, the last of which varies fastest."""

    axis: str | tuple[str, ...]

    def __post_init__(self) -> None:
        check_axes(self, self.axis)

    @abstractmethod
    def cut(self, parameter: Parameter, part: Extent, index: int, count: int) -> Extent | None:
        """The part of ``part`` at coordinate ``index`` of ``count``; None for nothing."""

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``."""
        return (self,)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes.

        Raises:
            ProtocolError: HF739 for one that no mesh has.
        """
        axes = (self.axis,) if isinstance(self.axis, str) else self.axis
        for axis in axes:
            if axis not in AXIS_SIZE:
                axis_names = ", ".join(AXIS_SIZE)
                raise ProtocolError("HF739", f"{type(self).__name__} cuts over an axis of {axis_names}, got {axis!r}")
        return axes

    def parts(self, mesh: Mesh) -> int:
        """The number of coordinates on the axes."""
        count = 1
        for axis in self.axes:
            count *= axis_size(mesh, axis)
        return count

    def coordinate(self, mesh: Mesh, rank: int) -> int:
        """The coordinate of a rank on the axes, as one number."""
        index = 0
        for axis in self.axes:
            index = index * axis_size(mesh, axis) + axis_rank(mesh, axis, rank)
        return index


@dataclass(frozen=True, slots=True, kw_only=True)
class Only(Cut):
    """All of a parameter, on the ranks at these coordinates of an axis alone."""

    axis: str | tuple[str, ...]
    at: tuple[int, ...]

    def __post_init__(self) -> None:
        Cut.__post_init__(self)
        if not _are_counts(self.at, least=0):
            raise invalid(self, f"at= is a tuple of coordinates, such as (0,), got {self.at!r}")

    def cut(self, parameter: Parameter, part: Extent, index: int, count: int) -> Extent | None:
        """As ``Cut.cut``."""
        return part if index in self.at else None


@dataclass(frozen=True, slots=True)
class Slices(Cut):
    """Equal slices along a dim, as tensor parallelism cuts: column-parallel along 0, row-parallel along 1.

    ``blocks`` are the sizes of matrices that are fused along the dim, such as those of queries, keys and values, or of
    gate and up. Each rank holds its slice of every one of them, one after the other; ``interleaved`` is the number of
    groups in which a rank keeps them instead: slices of queries, keys and values of a group, then of the next group.

    ``units`` is how many heads there are along the dim, or one number for each block: a slice has whole ones. Where
    there are fewer heads than slices, ``shared`` lets several ranks hold the same one. ``padding`` is the multiple to
    which the dim is padded before it is cut: pad rows, such as those of a vocabulary, are no part of a box.

    >>> qkv = Parameter("qkv", (16, 8))
    >>> Slices(0, blocks=(8, 4, 4)).boxes(qkv, Mesh(tp=2), 1)
    (((4, 8), (0, 8)), ((10, 12), (0, 8)), ((14, 16), (0, 8)))
    >>> Slices(0, padding=4).boxes(Parameter("embedding", (10,)), Mesh(tp=2), 1)
    (((6, 10),),)
    """

    dim: int = 0
    axis: str | tuple[str, ...] = "tp"
    blocks: tuple[int, ...] = ()
    interleaved: int | None = None
    units: int | tuple[int, ...] | None = None
    shared: bool = False
    padding: int = 1

    def __post_init__(self) -> None:
        Cut.__post_init__(self)
        heads = self.units if isinstance(self.units, tuple) else (self.units,)
        if not is_count(self.dim, least=0):
            raise invalid(self, f"dim= counts dims from 0, got {brief(self.dim)}")
        if not _are_counts(self.blocks):
            raise invalid(self, f"blocks= is a tuple of sizes, such as (8, 4, 4), got {brief(self.blocks)}")
        for name, count in (("interleaved", self.interleaved), ("padding", self.padding)):
            if not is_count(count) and (name, count) != ("interleaved", None):
                raise invalid(self, f"{name}= is a number of at least 1, got {brief(count)}")
        if self.units is not None and not (_are_counts(heads) and len(heads) in (1, len(self.blocks))):
            raise invalid(self, f"units= is a number of heads, or one for each block, got {brief(self.units)}")
        if self.blocks and self.padding > 1:
            raise invalid(self, "padding= is for a dim without blocks=, which give all of its sizes")

    def cut(self, parameter: Parameter, part: Extent, index: int, count: int) -> Extent | None:
        """As ``Cut.cut``; HF734 if sizes do not divide."""
        dim, size = self.dim, _length(parameter, part, self.dim, self)
        padded = -(-size // self.padding) * self.padding
        blocks = self.blocks or (padded,)
        if self.blocks and sum(blocks) != size:
            raise refused(parameter, f"blocks {blocks} add up to {sum(blocks)}, and dim {dim} has {size}")
        groups = self.interleaved or count
        if groups % count:
            raise refused(parameter, f"{self._over(count)} does not divide its {groups} interleaved groups")
        units = self.units if isinstance(self.units, tuple) else (self.units,) * len(blocks)
        slices = [
            self._slice(parameter, group, groups, start, block, block if heads is None else heads)
            for group in range(index * groups // count, (index + 1) * groups // count)
            for start, block, heads in zip(starts(blocks), blocks, units, strict=True)
        ]
        ranges = joined(piece for start, stop in slices for piece in clipped(part[dim], start, min(stop, size)))
        return (*part[:dim], ranges, *part[dim + 1 :])

    def _slice(self, parameter: Parameter, group: int, groups: int, start: int, block: int, units: int) -> Range:
        """The slice of a block that belongs to one of ``groups``."""
        if not block:  # such as on a rank with pad rows alone
            return start, start
        if not units or block % units:
            raise refused(parameter, f"{units} units do not divide the {block} elements of dim {self.dim}")
        width = block // units
        if units % groups == 0:
            share = units // groups * width
            return start + group * share, start + (group + 1) * share
        if self.shared and groups % units == 0:
            first = start + group * units // groups * width
            return first, first + width
        elements = f"{units} heads" if self.units is not None else f"{units} elements"
        along = f"{self._over(groups)} does not divide the {elements} along dim {self.dim}"
        raise refused(parameter, f"{along}{self._on_padding()}")

    def _on_padding(self) -> str:
        """The stated padding, or advice to state it where a dim may have some."""
        if self.padding > 1:
            return f", with padding={self.padding}"
        is_plain = self.units is None and not self.blocks and self.interleaved is None
        return "; set padding= if the dim is padded, like that of a vocabulary" if is_plain else ""

    def _over(self, count: int) -> str:
        return f"{self.axis if isinstance(self.axis, str) else '*'.join(self.axis)} = {count}"


@dataclass(frozen=True, slots=True)
class Shards(Cut):
    """Shards as FSDP2 makes them by ``torch.chunk``: each of the ceiled size, the last ones smaller or empty.

    >>> [Shards().boxes(Parameter("bias", (5,)), Mesh(dp=4), rank) for rank in range(4)]
    [(((0, 2),),), (((2, 4),),), (((4, 5),),), ()]
    """

    axis: str | tuple[str, ...] = "dp"
    dim: int = 0

    def __post_init__(self) -> None:
        Cut.__post_init__(self)
        if not is_count(self.dim, least=0):
            raise invalid(self, f"dim= counts dims from 0, got {brief(self.dim)}")

    def cut(self, parameter: Parameter, part: Extent, index: int, count: int) -> Extent | None:
        """As ``Cut.cut``; HF734 for a parameter without that dim."""
        size = _length(parameter, part, self.dim, self)
        share = -(-size // count)
        ranges = joined(clipped(part[self.dim], index * share, min((index + 1) * share, size)))
        return (*part[: self.dim], ranges, *part[self.dim + 1 :]) if ranges else None


def is_predefined(cut: Cut) -> bool:
    """Whether a cut is of this module: a function of sizes and a coordinate alone, unlike those of users."""
    return type(cut) in (Slices, Shards, Only)


def padded_dims(layout: Layout, parameter: Parameter, mesh: Mesh) -> set[int]:
    """The dims that a layout pads; their pad rows are no part of a parameter."""
    cuts = layout.cuts(parameter, mesh) if isinstance(layout, StandardLayout) else ()
    return {cut.dim for cut in cuts if isinstance(cut, Slices) and cut.padding > 1}


@dataclass(frozen=True, slots=True)
class Composed(StandardLayout):
    """Layouts applied in order, each cutting the parts that the previous ones leave.

    >>> layout = Slices(0).then(Shards("dp"))
    >>> layout.boxes(Parameter("weight", (6, 4)), Mesh(dp=2, tp=2), 3)
    (((5, 6), (0, 4)),)
    """

    layouts: tuple[StandardLayout, ...]

    def __post_init__(self) -> None:
        check_standard(self, *self.layouts)

    def cuts(self, parameter: Parameter, mesh: Mesh) -> tuple[Cut, ...]:
        """As ``StandardLayout.cuts``."""
        return tuple(cut for layout in self.layouts for cut in layout.cuts(parameter, mesh))

    def stored_as(self, name: str) -> str:
        """As ``Layout.stored_as``."""
        for layout in self.layouts:
            name = layout.stored_as(name)
        return name


def _are_counts(values: object, least: int = 1) -> bool:
    """Whether it is a tuple of counts."""
    return isinstance(values, tuple) and all(is_count(value, least=least) for value in values)


# -- ranges of a dim ---------------------------------------------------------------------------------------------------


def _length(parameter: Parameter, part: Extent, dim: int, cut: Cut) -> int:
    if not 0 <= dim < len(part):
        raise refused(parameter, f"{type(cut).__name__} cuts dim {dim}, and its shape is {parameter.shape}")
    return sum(stop - start for start, stop in part[dim])


def refused(parameter: Parameter, problem: str) -> ProtocolError:
    """The error for a parameter that this layout cannot cut."""
    return ProtocolError("HF734", f"{parameter.name!r} {parameter.shape}{CANNOT_BE_CUT}{problem}")


def starts(sizes: Sequence[int]) -> Iterator[int]:
    """The start offsets of consecutive parts of these sizes."""
    start = 0
    for size in sizes:
        yield start
        start += size
