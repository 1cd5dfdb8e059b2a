"""DTensors among a role's weights, as FSDP2 and torch's tensor parallelism have them: a rank sends what it holds.

An example. A weight of 4 rows and 6 columns on the ranks 0 and 1 of a device mesh::

    placements     to_local() on rank 0    on rank 1       sent by a layout    sent whole
    [Shard(0)]     2 rows                  2 rows          its 2 rows          refused (HF773)
    [Replicate()]  4 rows                  4 rows          4 rows              4 rows
    [Partial()]    4 rows of terms         4 rows of terms refused (HF773)     refused (HF773)

Where the part of a rank is in the weight, a role's layout says, as for plain tensors: a DTensor may be a shard of what
is itself a slice of the weight. ``full_tensor()`` is a collective, so only the role can call it, on all of its ranks.
"""

from __future__ import annotations

from typing import Any


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
