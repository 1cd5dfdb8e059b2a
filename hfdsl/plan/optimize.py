"""What a plan does to be fast, each with a switch of its own: none of them changes a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Optimize:
    """The switches of a plan: ``flow.compile(deployment, optimize=hf.Optimize(fusion=False))``.

    Whatever is switched off, a run gives the same bits; only time, bytes and memory change. (With ``balance`` a body
    that sums over the rows of its rank sums other rows, so that its floats may differ in the last bits.)

    >>> Optimize(fusion=False).fusion, Optimize().fusion
    (False, True)
    """

    residency: bool = True
    """A reader in the process that made a column is given that very column; off, it goes through the store."""
    column_pruning: bool = True
    """Of a value only the columns that somebody elsewhere reads leave its process; off, all of them do."""
    row_pruning: bool = True
    """Of a chunk only the rows that some place reads go there; off, whole chunks do."""
    direct: bool = True
    """Between GPUs tensors go from process to process: by CUDA IPC, and weights by NCCL; off, through the store."""
    mappings: bool = True
    """Memory of another process's GPU stays mapped for the next transfers; off, and with offload, each maps anew."""
    zero_copy: bool = True
    """A column is written to shared memory once and read there; off, it is pickled and unpickled."""
    fusion: bool = True
    """Steps of the same processes that keep nobody waiting are one call; off, every step is one."""
    overlap: bool = True
    """Steps on other devices run at the same time; off, each waits for the one before."""
    liveness: bool = True
    """A column is dropped after its last reader; off, at the end of the step."""
    balance: bool = True
    """Rows of methods registered with ``balance=`` are balanced by their weights; off, they keep their order."""
    offload: bool = True
    """Roles lie on the host while they are idle, where the deployment says so or GPUs are too small; off, never."""
    relay: bool | None = None
    """Ranks are called by a process of their node; off, by the driver. None is on where that takes less time."""


NOTHING = Optimize(*[False] * 12)
"""Every switch off: the plan that all others are held against."""
