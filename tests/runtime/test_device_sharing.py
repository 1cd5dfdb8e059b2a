"""The formula of slowdowns against the Markov chain of processes that alternate between their hosts and a device."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hfdsl.runtime.queues.device_sharing import Sharing, slowdowns

Process = tuple[float, float]
"""A utilization, and the seconds from one phase on the device to the next while the process is alone."""


def slowdowns_of_chain(processes: list[Process]) -> list[float]:
    """From the stationary distribution: phases have random, exponentially distributed lengths."""
    states = [state for state in product([False, True], repeat=len(processes)) if _possible(state, processes)]
    index = {state: number for number, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    for state in states:
        for process, (utilization, cycle) in enumerate(processes):
            if 0 < utilization < 1:
                after = (*state[:process], not state[process], *state[process + 1 :])
                mean = cycle * utilization * sum(state) if state[process] else cycle * (1 - utilization)
                rates[index[state], index[after]] += 1 / mean
    rates -= np.diag(rates.sum(1))
    balance, total = np.vstack([rates.T, np.ones(len(states))]), np.append(np.zeros(len(states)), 1.0)
    probabilities = np.linalg.lstsq(balance, total, rcond=None)[0]

    def seconds_of_work(process: int) -> float:
        """Of its device or, if it never has kernels, its host, in each second of all."""
        if processes[process][0] == 0:
            return 1.0
        return float(sum(probabilities[index[state]] / sum(state) for state in states if state[process]))

    return [(utilization or 1.0) / seconds_of_work(process) for process, (utilization, _) in enumerate(processes)]


def _possible(state: tuple[bool, ...], processes: list[Process]) -> bool:
    """Whether no process is where it never is."""
    return all(utilization != (not on_device) for on_device, (utilization, _) in zip(state, processes, strict=True))


utilizations = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.05, 0.95))


@given(st.lists(st.tuples(utilizations, st.floats(0.1, 10.0)), min_size=1, max_size=4))
@example([(0.5, 1.0), (1.0, 1.0)])
@example([(0.5, 1.0), (0.5, 20.0)])
def test_slowdowns_are_those_of_the_chain_however_long_phases_are(processes: list[Process]) -> None:
    expected = slowdowns_of_chain(processes)
    sharing = tuple(Sharing(utilization, utilization) for utilization, _ in processes)
    assert slowdowns(sharing) == pytest.approx(expected, rel=1e-6)


sharings = st.tuples(utilizations, st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])).map(
    lambda pair: Sharing(pair[0], pair[0] * pair[1])
)


@given(st.lists(sharings, min_size=1, max_size=4))
def test_others_have_kernels_as_long_as_they_interfere(processes: list[Sharing]) -> None:
    for number, times in enumerate(slowdowns(tuple(processes))):
        others = [(process.interference, 1.0) for process in processes[:number] + processes[number + 1 :]]
        [expected, *_] = slowdowns_of_chain([(processes[number].utilization, 1.0), *others])
        assert times == pytest.approx(expected, rel=1e-6)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_process_that_keeps_the_device_busy_takes_one_and_the_interference_as_long(part: float, of_it: float) -> None:
    engine, trainer = Sharing(part, part * of_it), Sharing(1.0, 1.0)
    assert slowdowns((engine, trainer)) == pytest.approx((1 + part, 1 + part * of_it))


@given(st.lists(sharings, min_size=1, max_size=5))
def test_a_device_is_never_more_than_busy_and_nobody_gets_faster(processes: list[Sharing]) -> None:
    times = slowdowns(tuple(processes))
    assert all(1 - 1e-9 <= each <= len(processes) + 1e-9 for each in times)
    assert sum(process.interference / each for process, each in zip(processes, times, strict=True)) <= 1 + 1e-9
