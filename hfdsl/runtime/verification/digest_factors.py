"""The factors of digests, one for each index of each dim of a weight."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

MODULUS: Final = 2**64

Words: TypeAlias = npt.NDArray[np.int64]
"""Words of eight bytes, or sums of such words."""


@lru_cache(maxsize=256)
def factors(start: int, count: int, dim: int = 0, *, last: bool = False) -> Words:
    """The factors of a dim's indices: the finalizer of splitmix64 (Steele et al., 2014), which has no short period.

    They are odd in the ``last`` dim and even in the others.
    """
    mixed = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(((63 if last else dim) << 58) % MODULUS)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    parity = mixed | np.uint64(1) if last else mixed & ~np.uint64(1)
    return parity.view(np.int64)


@lru_cache(maxsize=256)
def factors_on(device: torch.device, start: int, count: int, dim: int = 0, *, last: bool = False) -> torch.Tensor:
    """The factors on a device, i64[count]."""
    return torch.from_numpy(factors(start, count, dim, last=last)).to(device)
