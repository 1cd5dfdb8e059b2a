"""A rank's parts, each with its place in the whole, and without pad rows.

An example. An embedding of 10 rows is padded to 16 and sliced over four ranks::

    rank    tensor on the rank    its part
    0, 1    4 rows                rows 0 to 4, and 4 to 8
    2       4 rows                rows 8 to 10; the other two are pad rows
    3       4 rows, or none       none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.digests import HeldPart
from hfdsl.runtime.weights.resharding import LocalPlaces, local_places, padded_dims


def located(
    held: Mapping[str, HeldPart],
    layout: Layout,
    parameters: Iterable[Parameter],
    mesh: Mesh,
    rank: int,
    places: dict[str, LocalPlaces] | None = None,
) -> Iterator[tuple[str, HeldPart]]:
    """A rank's parts, each with its place in the whole; a part without the layout's shape is whole.

    ``places`` caches the layout of each parameter, as in ``LocalWeights``.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    places = {} if places is None else places
    for name, part in held.items():
        parameter = by_name.get(name)
        if parameter is None or part.offset is not None:
            yield name, part
            continue
        if name not in places:
            places[name] = local_places(layout, parameter, mesh, rank)
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


def _without_pad_rows(tensor: torch.Tensor, shape: tuple[int, ...], padded: set[int]) -> torch.Tensor:
    """The part of a tensor before its pad rows, if it has the shape of a rank's part but for these."""
    if tensor.dim() != len(shape) or any(
        held < size or (held > size and dim not in padded)
        for dim, (held, size) in enumerate(zip(tensor.shape, shape, strict=True))
    ):
        return tensor
    return tensor[tuple([slice(size) for size in shape])]
