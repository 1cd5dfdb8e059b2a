"""Writes into tensors that others share: the number of writes that torch counts, and a sample of the values.

torch counts the operations that write into a tensor, those through views of it too. A write around torch, through
``.numpy()``, and one through ``.data`` change memory without a count. So values are compared as well: all of a small
tensor in host memory, and of a large one those at places spread over it. A GPU would have to be waited for, so of its
tensors only the count is compared.

>>> import torch
>>> scores = torch.zeros(3)
>>> before = Mark.of(scores)
>>> before.differs(scores)
False
>>> scores.numpy()[1] = 2.0
>>> before.differs(scores)
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from hfdsl.types.ragged import Jagged

if TYPE_CHECKING:
    import torch

SMALL: Final = 16_384
"""The most values of a tensor that are all compared."""

PLACES: Final = 1_024
"""How many of a larger one are, which takes some 10 microseconds."""

SPREAD: Final = 2_654_435_761
"""2**32 over the golden ratio: its multiples are spread evenly, and fall on all columns of a table."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A tensor or a ragged column at a time: its count of writes, and a sample of its bytes; None where it has none."""

    count: int | None
    sample: bytes | None

    @classmethod
    def of(cls, value: Any) -> Mark:
        """A raw column as it is now."""
        tensor = value.values if isinstance(value, Jagged) else value
        if not hasattr(tensor, "untyped_storage"):
            return cls(None, None)
        return cls(None if tensor.is_inference() else tensor._version, _sample(tensor))

    def differs(self, value: Any) -> bool:
        """Whether the column has been written since then."""
        now = Mark.of(value)
        return self.count != now.count or self.sample != now.sample


def _sample(tensor: torch.Tensor) -> bytes | None:
    import torch

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)  # others may have no memory of their own
    if not is_plain or tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return None
    count, values = tensor.numel(), tensor.detach()
    if count > SMALL:
        values = values.take(_places(count))  # it reads a view by its strides, where ``reshape`` would copy all of it
    contiguous = values.clone(memory_format=torch.contiguous_format).view(-1)
    return contiguous.view(torch.uint8).numpy().tobytes()  # torch would start threads, and a NaN differs from itself


@lru_cache(maxsize=64)
def _places(count: int) -> torch.Tensor:
    """The places of the sample in a tensor of so many values."""
    import torch

    return torch.arange(PLACES) * SPREAD % count
