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

What this leaves out: the cost of a change between processes, and kernels of several processes side by side (MPS). There
a process slows others down less than its share of time with kernels says, so its utilization is measured by a pair: a
call of utilization 1 takes 1 + utilization times as long beside it, by the formula above.
"""

from __future__ import annotations

from functools import lru_cache
from math import factorial


@lru_cache(maxsize=1024)
def slowdowns(utilizations: tuple[float, ...]) -> tuple[float, ...]:
    """How many times as long each process takes beside the others.

    >>> slowdowns((0.5, 1.0)), slowdowns((0.5, 0.5)), slowdowns((1.0, 1.0, 1.0)), slowdowns((0.5, 0.0))
    ((1.5, 1.5), (1.25, 1.25), (3.0, 3.0, 3.0), (1.0, 1.0))
    """
    of_all = _sum_over_sets(utilizations)
    others = (utilizations[:process] + utilizations[process + 1 :] for process in range(len(utilizations)))
    # In one order, so that processes of one utilization have one slowdown, to the last bit.
    return tuple([of_all / _sum_over_sets(tuple(sorted(of_others))) for of_others in others])


def _sum_over_sets(utilizations: tuple[float, ...]) -> float:
    """G of these processes."""
    by_size = [1.0]  # by the number of processes that have kernels, the sum of the products
    for part in utilizations:
        with_kernels, without = [0.0, *by_size], [*by_size, 0.0]
        by_size = [busy * part + idle * (1.0 - part) for busy, idle in zip(with_kernels, without, strict=True)]
    return sum(factorial(number) * product for number, product in enumerate(by_size))
