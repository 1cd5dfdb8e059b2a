"""DTensors among a role's weights, as FSDP2 and torch's tensor parallelism have them: a rank sends what it holds.

An example. A weight of 4 rows and 6 columns on the ranks 0 and 1 of a device mesh::

    placements     to_local() on rank 0    on rank 1       sent by a layout    sent whole
    [Shard(0)]     2 rows                  2 rows          its 2 rows          refused (HF773)
    [Replicate()]  4 rows                  4 rows          4 rows              4 rows
    [Partial()]    4 rows of terms         4 rows of terms refused (HF773)     refused (HF773)

Where the part of a rank is in the weight, a role's layout says, as for plain tensors: a DTensor may be a shard of what
is itself a slice of the weight. A DTensor of all of the weight knows it, too. So a layout that shards before it slices,
while the model does the opposite, is an error (HF773): parts would have the right shapes, and other elements.
``full_tensor()`` is a collective, so only the role can call it, on all of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfdsl.protocols.boxes import Box


def is_partial(tensor: Any) -> bool:
    """Whether ranks hold terms of the values of a DTensor."""
    return hasattr(tensor, "to_local") and any(placement.is_partial() for placement in tensor.placements)


def local(tensor: Any) -> Any:
    """The part of a DTensor that this rank holds, in the same memory; any other tensor, or a partial one, as it is."""
    if not hasattr(tensor, "to_local") or is_partial(tensor):
        return tensor
    return tensor.detach().to_local()


def is_part(tensor: Any) -> bool:
    """Whether this rank holds less than all of a DTensor."""
    return hasattr(tensor, "to_local") and local(tensor).shape != tensor.shape


def placed_box(tensor: Any, shape: Sequence[int]) -> Box | None:
    """The box of this rank in a weight of this shape, as a DTensor is placed; None if it is not of all of the weight.

    The method is the one by which ``torch.distributed.checkpoint`` finds it.
    """
    if tuple(tensor.shape) != tuple(shape):
        return None
    [chunk] = tensor.__create_chunk_list__()
    if len(chunk.offsets) != len(shape):  # a rank outside the device mesh
        return None
    return tuple((start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))
