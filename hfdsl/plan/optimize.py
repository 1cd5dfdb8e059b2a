"""The optimizations of a plan, each with its own switch; none of them changes a value."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hfdsl.errors import SizeError, WiringError
from hfdsl.types.numbers import brief, count_range, is_count


@dataclass(frozen=True, slots=True)
class Optimize:
    """The switches of a plan: ``flow.compile(deployment, optimize=hf.Optimize(fusion=False))``.

    Whatever is switched off, a run computes the same bits; only time, bytes and memory change. (With ``balance`` a body
    that sums over the rows of its rank sums different rows, so its floats may differ in the last bits.)

    Raises ``WiringError`` (HF206) for a switch that is neither on nor off, and ``SizeError`` (HF304) for
    ``bucket_bytes`` below 1.

    >>> Optimize(fusion=False).fusion, Optimize().fusion
    (False, True)
    """

    residency: bool = True
    """A reader in the process that made a column gets that very column; off, a copy through the store."""
    column_pruning: bool = True
    """Only the columns that are read elsewhere leave a process; off, all columns of a value do."""
    row_pruning: bool = True
    """Only the rows that are read at a destination go there; off, whole chunks do."""
    direct: bool = True
    """Between GPUs tensors go from process to process: by CUDA IPC, and weights by NCCL; off, through the store."""
    mappings: bool = True
    """Memory of other processes' GPUs stays mapped between transfers; off, and with offload, it does not."""
    zero_copy: bool = True
    """A column is written to shared memory once and read there; off, it is pickled and unpickled."""
    fusion: bool = True
    """Consecutive steps of the same processes are one call where no other process waits longer; off, never."""
    overlap: bool = True
    """Steps on different devices run at the same time; off, each waits for the one before."""
    liveness: bool = True
    """A column is dropped after its last reader; off, at the end of the step."""
    balance: bool = True
    """Rows of methods registered with ``balance=`` are balanced by their weights; off, they keep their order."""
    offload: bool = True
    """Idle roles move to host memory where the deployment asks for it, or where GPUs are too small; off, never."""
    relay: bool | None = None
    """A process on every host calls the ranks there; off, the driver does. None: on where that takes less time."""
    bucket_bytes: int = 256 * 2**20
    """The most bytes of weights that are on their way to a rank at once in a sync by schedule. Fewer take less memory
    and, below some 16 MiB, more time."""
    deltas: bool = False
    """Weights go bucket by bucket as the elements that have changed since the last sync, which takes the memory of a
    copy where they are exported. It saves time on links that are slower than finding the changes."""

    def __post_init__(self) -> None:
        if not is_count(self.bucket_bytes):
            expected = count_range(self.bucket_bytes)
            raise SizeError("HF304", f"Optimize: bucket_bytes= takes {expected}, got {brief(self.bucket_bytes)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and field.name != "bucket_bytes" and (field.name, value) != ("relay", None):
                raise WiringError("HF206", f"Optimize: {field.name}= is True or False, got {brief(value)}")


NOTHING = Optimize(*[False] * 12)
"""Every switch off: the reference that all other plans are compared with."""
