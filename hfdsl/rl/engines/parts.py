"""Parts of bounded size, each a single flat tensor, in which weights enter an engine's process.

A part is a new tensor in the engine's dtype, so an engine that keeps a view of a part does not see the trainer's next
update. One transfer carries many small weights: through shared memory on a CPU, through CUDA IPC on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import torch

from hfdsl.plan.buckets import filled

MAX_PART = 2**28
"""The maximum size of a part in bytes, 256 MiB; a single larger weight is a part of its own."""


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Some weights: names, shapes, and concatenated values."""

    shapes: dict[str, tuple[int, ...]]
    values: torch.Tensor

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights by name, as views of the flat tensor.

        >>> part = WeightPart({"a": (2,), "b": (1, 3)}, torch.arange(5.0))
        >>> [(name, weight.tolist()) for name, weight in part.weights()]
        [('a', [0.0, 1.0]), ('b', [[2.0, 3.0, 4.0]])]
        """
        sizes = [prod(shape) for shape in self.shapes.values()]
        for (name, shape), values in zip(self.shapes.items(), self.values.split(sizes), strict=True):
            yield name, values.view(shape)


def parts(
    weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, max_bytes: int = MAX_PART
) -> Iterator[WeightPart]:
    """Split weights into parts.

    >>> weights = [("a", torch.ones(2)), ("b", torch.ones(1, 3)), ("c", torch.ones(9))]
    >>> [list(part.shapes) for part in parts(weights, torch.float32, max_bytes=20)]
    [['a', 'b'], ['c']]
    """
    sized = (((name, weight), weight.numel() * dtype.itemsize) for name, weight in weights)
    for group, _ in filled(sized, max_bytes):
        yield _part(dict(group), dtype)


def _part(group: dict[str, torch.Tensor], dtype: torch.dtype) -> WeightPart:
    shapes = {name: tuple(weight.shape) for name, weight in group.items()}
    return WeightPart(shapes, torch.cat([weight.detach().to(dtype).flatten() for weight in group.values()]))
