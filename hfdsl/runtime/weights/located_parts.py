"""A rank's parts, each with its place in the whole, and without pad rows.

An example. An embedding of 10 rows is padded to 16 and sliced over four ranks::

    rank    tensor on the rank    its part
    0, 1    4 rows                rows 0 to 4, and 4 to 8
    2       4 rows                rows 8 to 10; the other two are pad rows
    3       4 rows, or none       none

Digests of parts add up if no element is in two of them. Where ranks share heads, one rank may hold in one box what
another one holds in two: four query heads and a shared key head of 2 rows each, fused and sliced over two ranks::

    rank    boxes                     parts
    0       rows 0 to 4, 8 to 10      rows 0 to 4, 8 to 10
    1       rows 4 to 10              rows 4 to 8, 8 to 10
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from hfdsl.protocols.boxes import cut_at, edges_by_dim
from hfdsl.protocols.cuts import is_predefined, padded_dims
from hfdsl.protocols.layouts import Layout, Parameter, Slices, StandardLayout, holdings
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.weights.held_parts import HeldPart
from hfdsl.runtime.weights.local_weights import LocalPlaces, local_places


def located(
    held: Mapping[str, HeldPart],
    layout: Layout,
    parameters: Iterable[Parameter],
    mesh: Mesh,
    rank: int,
    places: dict[str, LocalPlaces] | None = None,
) -> Iterator[tuple[str, HeldPart]]:
    """A rank's parts, each with its place in the whole; a part without the layout's shape is whole.

    Two ranks hold the same part or different elements. ``places`` caches the parts of each parameter.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    places = {} if places is None else places
    for name, part in held.items():
        parameter = by_name.get(name)
        if parameter is None or part.offset is not None:
            yield name, part
            continue
        if name not in places:
            places[name] = _disjoint_places(layout, parameter, mesh, rank)
        shape, placed = places[name]
        tensor = part.tensor
        if tuple(tensor.shape) not in (shape, parameter.shape):
            if not placed:
                continue  # the rank holds nothing of the parameter, or its pad rows alone
            tensor = _without_pad_rows(tensor, shape, padded_dims(layout, parameter, mesh))
        if not placed or tuple(tensor.shape) != shape:
            yield name, part
            continue
        for box, local in placed.items():
            values = tensor if len(placed) == 1 else tensor[tuple([slice(*extent) for extent in local])]
            yield name, HeldPart(values, tuple([start for start, _ in box]))


def _disjoint_places(layout: Layout, parameter: Parameter, mesh: Mesh, rank: int) -> LocalPlaces:
    """``local_places``, cut where boxes of other ranks start and stop."""
    shape, placed = local_places(layout, parameter, mesh, rank)
    if not placed or not _may_overlap(layout, parameter, mesh):
        return shape, placed
    edges = edges_by_dim(box for holding in holdings(layout, parameter, mesh) for box in holding.boxes)
    return shape, {
        part: tuple(
            (place + start - first, place + stop - first)
            for (start, stop), (first, _), (place, _) in zip(part, box, local, strict=True)
        )
        for box, local in placed.items()
        for part in cut_at(box, edges)
    }


def _may_overlap(layout: Layout, parameter: Parameter, mesh: Mesh) -> bool:
    """Whether ranks may hold boxes that are neither equal nor disjoint, as with shared heads or layouts of users."""
    if not isinstance(layout, StandardLayout):
        return True
    cuts = layout.cuts(parameter, mesh)
    return any(not is_predefined(cut) or (isinstance(cut, Slices) and cut.shared) for cut in cuts)


def _without_pad_rows(tensor: torch.Tensor, shape: tuple[int, ...], padded: set[int]) -> torch.Tensor:
    """The part of a tensor before its pad rows, if it has the shape of a rank's part but for these."""
    if tensor.dim() != len(shape) or any(
        held < size or (held > size and dim not in padded)
        for dim, (held, size) in enumerate(zip(tensor.shape, shape, strict=True))
    ):
        return tensor
    return tensor[tuple([slice(size) for size in shape])]
