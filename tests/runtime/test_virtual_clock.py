"""The virtual clock against a model that computes everything again, in fractions, from one end to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import factorial, prod
from typing import TypeAlias

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hfdsl.runtime.queues.device_sharing import Sharing
from hfdsl.runtime.queues.virtual_clock import NONE, ServerKey, VirtualCall, VirtualClock

Wanted: TypeAlias = dict[tuple[str, ...] | int, Fraction]
"""What a device is wanted for, by the processes of its calls, or the call of no process."""

AT_ONCE = {"engine": 3, "sampler": 2, "actor": 1, "critic": 1, "reward": 1}


@dataclass(frozen=True)
class Case:
    """A call; ``waits`` is true if the driver submits it only when the one before has ended."""

    seconds: int
    servers: tuple[str, ...]
    devices: tuple[str, ...]
    utilization: Fraction = Fraction(1)
    interference: Fraction = Fraction(1)
    engine_utilization: Fraction = Fraction(1)
    after: frozenset[int] = frozenset()
    waits: bool = False


def over_sets(utilizations: Sequence[Fraction]) -> Fraction:
    """The sum over all sets of processes that may have kernels at the same time."""
    total = Fraction(0)
    for busy in product([False, True], repeat=len(utilizations)):
        parts = (part if on_device else 1 - part for part, on_device in zip(utilizations, busy, strict=True))
        total += factorial(sum(busy)) * prod(parts, start=Fraction(1))
    return total


def ends_of(calls: Sequence[Case]) -> list[Fraction]:
    """When calls end, by the rules in the docstring of the clock."""
    now, left, ends = Fraction(0), [Fraction(call.seconds) for call in calls], dict[int, Fraction]()
    submitted_after = [{j for j in range(1, i + 1) if calls[j].waits} for i in range(len(calls))]

    def runs(i: int) -> bool:
        earlier = [j for j in range(i) if j not in ends]
        return (
            i not in ends
            and not any(j in earlier for j in calls[i].after)
            and not any(j - 1 in earlier for j in submitted_after[i])
            and all(sum(key in calls[j].servers for j in earlier) < AT_ONCE[key] for key in calls[i].servers)
        )

    while len(ends) < len(calls):
        running = [i for i in range(len(calls)) if runs(i)]
        in_engine = {
            i: max(
                [Fraction(1)]
                + [
                    sum((calls[j].engine_utilization for j in running if key in calls[j].servers), Fraction(0))
                    for key in calls[i].servers
                ]
            )
            for i in running
        }
        wanted: dict[str, Wanted] = {}
        taken: dict[str, Wanted] = {}
        for i in running:
            for device in calls[i].devices:
                for of_device, part in ((wanted, calls[i].utilization), (taken, calls[i].interference)):
                    by_server = of_device.setdefault(device, {})
                    key = calls[i].servers or i
                    by_server[key] = max(by_server.get(key, Fraction(0)), part)
        slowdowns = {
            i: max(
                [Fraction(1)]
                + [_slowdown(wanted[device], taken[device], calls[i].servers or i) for device in calls[i].devices]
            )
            for i in running
        }
        speeds = {i: 1 / (in_engine[i] * slowdowns[i]) for i in running}
        step = min(left[i] / speed for i, speed in speeds.items())
        now += step
        for i, speed in speeds.items():
            left[i] -= step * speed
            if not left[i]:
                ends[i] = now
    return [ends[i] for i in range(len(calls))]


def _slowdown(wanted: Wanted, taken: Wanted, server: tuple[str, ...] | int) -> Fraction:
    others = [part for other, part in taken.items() if other != server]
    return over_sets([*others, wanted[server]]) / over_sets(others)


def simulated(calls: Sequence[Case]) -> list[VirtualCall]:
    clock, submitted = VirtualClock(), list[VirtualCall]()
    for i, call in enumerate(calls):
        if i and call.waits:
            clock.run([submitted[i - 1]])
        keys: list[ServerKey] = [(name, 0, 7 if AT_ONCE[name] > 1 else None) for name in call.servers]
        submitted.append(
            clock.submit(
                float(call.seconds),
                after=[submitted[j] for j in sorted(call.after)],
                servers=keys,
                at_once=max([AT_ONCE[name] for name in call.servers], default=1),
                devices=call.devices,
                sharing=Sharing(float(call.utilization), float(call.interference)),
                engine_utilization=float(call.engine_utilization),
            )
        )
    clock.run()
    assert clock.idle
    return submitted


@st.composite
def cases(draw: st.DrawFn) -> list[Case]:
    shares = st.sampled_from([Fraction(n, 4) for n in range(5)] + [Fraction(1, 3)])
    together = st.lists(st.sampled_from(["actor", "critic", "reward"]), max_size=3, unique=True).map(tuple)
    calls = list[Case]()
    for i in range(draw(st.integers(1, 9))):
        utilization = draw(shares)
        calls.append(
            Case(
                seconds=draw(st.integers(0, 6)),
                servers=draw(st.one_of(st.sampled_from([("engine",), ("sampler",)]), together)),
                devices=draw(st.sampled_from([("gpu0",), ("gpu0",), ("gpu1",), ("gpu0", "gpu1"), ()])),
                utilization=utilization,
                interference=draw(shares) * utilization,
                engine_utilization=draw(shares),
                after=draw(st.frozensets(st.integers(0, i - 1), max_size=2)) if i else frozenset(),
                waits=draw(st.sampled_from([False, False, False, True])),
            )
        )
    return calls


@given(cases())
@example([Case(6, ("engine",), ("gpu0",), Fraction(1, 2)), Case(2, ("actor",), ("gpu0",))])
@example([Case(4, ("engine",), ("gpu0",))] * 3 + [Case(4, ("actor",), ("gpu0",))])
@example([Case(8, ("engine",), ("gpu0",), Fraction(1, 2), Fraction(1, 2))] * 3 + [Case(6, ("actor",), ("gpu0",))])
@example([Case(seconds, ("actor",), ("gpu0",)) for seconds in (1, 2, 3)])
@example([Case(seconds, ("engine",), ("gpu0",), engine_utilization=Fraction(1, 3)) for seconds in (5, 1, 2, 3, 1)])
@example([Case(4, ("engine",), ()), Case(1, ("engine",), ())])
@example([Case(4, ("engine",), ("gpu1",)), Case(1, ("engine",), ("gpu0",)), Case(4, ("actor",), ("gpu1",))])
@example([Case(4, ("actor", "critic"), ("gpu0", "gpu1")), Case(2, ("reward",), ("gpu0",)), Case(3, (), ("gpu1",))])
def test_calls_end_when_they_do_in_the_model(calls: list[Case]) -> None:
    assert [call.end for call in simulated(calls)] == pytest.approx([float(end) for end in ends_of(calls)], abs=1e-9)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_calls_that_fully_use_a_device_end_together_as_late_as_in_turns(seconds: list[int]) -> None:
    calls = [Case(each, (), ("gpu0",)) for each in seconds]
    assert max(call.end or 0.0 for call in simulated(calls)) == pytest.approx(sum(seconds))


@given(st.lists(st.floats(0.001, 9.0), min_size=1, max_size=8))
def test_a_call_whose_speed_never_changes_ends_to_the_last_bit(seconds: list[float]) -> None:
    """Ends that are equal stay equal, also beside calls that begin and end: decisions of a run compare them."""
    clock = VirtualClock()
    first = [clock.submit(each, devices=["gpu"], sharing=NONE) for each in seconds]
    then = [
        clock.submit(each, after=[call], devices=["gpu"], sharing=NONE)
        for each, call in zip(seconds, first, strict=True)
    ]
    clock.run()
    assert [call.end for call in first] == seconds
    assert [call.end for call in then] == [each + each for each in seconds]


def test_a_call_of_several_ranks_is_as_slow_as_its_slowest() -> None:
    """Beside 2 s on one device and then 2 s on the other, 4 s take 8 s: at each time one of them is shared."""
    calls = [
        Case(4, ("actor", "critic"), ("gpu0", "gpu1")),
        Case(2, ("reward",), ("gpu0",)),
        Case(2, ("engine",), ("gpu1",), after=frozenset({1})),
    ]
    submitted = simulated(calls)
    assert [call.start for call in submitted] == [0.0, 0.0, 4.0]
    assert [call.end for call in submitted] == [8.0, 4.0, 8.0]


def test_a_process_that_waits_for_others_is_not_busy() -> None:
    clock, key = VirtualClock(), ("actor", 0, None)
    first = clock.submit(3.0, servers=[("engine", 0, None)])
    clock.submit(2.0, after=[first], servers=[key])
    clock.run()
    assert (clock.now, clock.busy("engine"), clock.busy("actor"), clock.busy("critic")) == (5.0, 3.0, 2.0, 0)


def test_an_engine_is_busy_while_any_of_its_calls_is_in_progress() -> None:
    clock = VirtualClock()
    for seconds, start in ((3.0, 1.0), (5.0, 2.0)):
        before = clock.submit(start)
        clock.submit(seconds, after=[before], servers=[("engine", 0, 7)], at_once=2, engine_utilization=0.5)
    clock.run()
    assert (clock.now, clock.busy("engine")) == (7.0, 6.0)


def test_all_that_ends_at_a_time_ends_at_once() -> None:
    clock = VirtualClock()
    first = clock.submit(2.0)
    second = clock.submit(0.0, after=[first])
    calls = [first, second, clock.submit(0.0, after=[second]), clock.submit(2.0)]
    clock.advance()
    assert [call.end for call in calls] == [2.0] * 4


def test_an_idle_clock_stays_where_it_is() -> None:
    clock = VirtualClock()
    clock.submit(3.0)
    for _ in range(3):
        clock.advance()
    assert (clock.now, clock.idle) == (3.0, True)
