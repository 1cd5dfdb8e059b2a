"""How much processes slow each other down on a device that each of them keeps busy for a part of its time.

A process alternates between its host and its device: between two decode steps an engine schedules rows. Its
``utilization`` is the part of its time, while it is alone, in which it has kernels to run.

**The rule.** Processes that have kernels to run at the same time share the device equally, and what a process does on
its host takes as long as ever. A worked example, an engine of utilization 1/2 beside a trainer of 1::

    engine alone    host 1 ms, device 1 ms                                      2 ms
    beside it       host 1 ms, device 2 ms, half of which are the trainer's     3 ms, 1.5 times as long
    trainer         all of the device for 1 ms, half of it for 2 ms             2 of 3 ms, 1.5 times as long

The device is never idle, and each has lost what the other one has won. Two engines of utilization 1/2 both take 1.25
times as long: now and then both have kernels, although the device would have room for both.

**The formula.** Let G be the sum, over all sets of processes that may have kernels at the same time, of n! for its n
processes, times the utilization of each of them, times 1 - utilization of each of the others. Then a process takes
G / G' times as long, where G' is that of the others alone. For the engine and the trainer, whose utilization leaves two
sets, G = 1/2 * 1! + 1/2 * 2! = 3/2 and G' = 1.

**Why it is right.** A GPU runs kernels of one process at a time, in slices that are equally long for all processes that
have any, and slices and phases are short beside a call. That is a closed queueing network with one station that is
shared equally (the device) and one without a queue (the hosts), in which each process is a customer of its own. In such
a network the probability of a set has the terms above, however long phases are and however they are distributed, and G
is what they sum to (Baskett, Chandy, Muntz, Palacios: Open, Closed, and Mixed Networks of Queues with Different Classes
of Customers, 1975). The throughput of a customer is the ratio of the two sums.

What this leaves out: the cost of a change between processes.

**Side by side.** Under MPS kernels of several processes run side by side, and small ones slow large ones down less than
large ones them: the decode steps of an engine fill a part of the GPU, and the kernels of a trainer all of it. So a
process has an ``interference``, too: beside it, one of utilization 1 takes 1 + interference times as long. Without MPS
that is its utilization, by the formula above, and under MPS it is at most that. Others count it as a process that has
kernels in this part of its time: a process takes G / G' times as long, with its own utilization and the interference of
the others in G, and the latter alone in G'. An engine of utilization 0.55 and interference 0.1 takes 1.55 times as long
beside a trainer of 1 and 1, and the trainer 1.1 times. So much has been measured (``benchmarks/queues``).
"""

from __future__ import annotations

from functools import lru_cache
from math import factorial
from typing import NamedTuple


class Sharing(NamedTuple):
    """How a process shares its device with others."""

    utilization: float
    interference: float


@lru_cache(maxsize=1024)
def slowdowns(processes: tuple[Sharing, ...]) -> tuple[float, ...]:
    """How many times as long each process takes beside the others.

    >>> engine, trainer = Sharing(0.5, 0.5), Sharing(1.0, 1.0)
    >>> slowdowns((engine, trainer)), slowdowns((engine, engine)), slowdowns((trainer, trainer, trainer))
    ((1.5, 1.5), (1.25, 1.25), (3.0, 3.0, 3.0))
    >>> slowdowns((Sharing(0.5, 0.25), trainer)), slowdowns((engine, Sharing(0.0, 0.0)))
    ((1.5, 1.25), (1.0, 1.0))
    """
    return tuple([_slowdown(processes, number) for number in range(len(processes))])


def _slowdown(processes: tuple[Sharing, ...], number: int) -> float:
    others = processes[:number] + processes[number + 1 :]
    # In one order, so that processes that share alike have one slowdown, to the last bit.
    parts = tuple(sorted(other.interference for other in others))
    return _sum_over_sets((processes[number].utilization, *parts)) / _sum_over_sets(parts)


def _sum_over_sets(utilizations: tuple[float, ...]) -> float:
    """G of processes with these utilizations."""
    by_size = [1.0]  # by the number of processes that have kernels, the sum of the products
    for part in utilizations:
        with_kernels, without = [0.0, *by_size], [*by_size, 0.0]
        by_size = [busy * part + idle * (1.0 - part) for busy, idle in zip(with_kernels, without, strict=True)]
    return sum(factorial(number) * product for number, product in enumerate(by_size))
