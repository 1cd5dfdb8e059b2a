"""The order of the calls of a process, some of which may run concurrently in separate threads.

Ray begins the calls of one thread in the order of their submission, and has no order between threads. Waiting
enforces the order that a process relies on: an ordinary call waits for all calls before it, and a call that may run
concurrently waits for the last ordinary one::

    submitted      waits for       why
    load 0                         the weights before the first dispatch
    generate 0 *   load 0          it samples with them
    generate 1 *   load 0
    evaluate       generate 0, 1   it is to see the state after them
    generate 2 *   evaluate

    * may run beside others

Why nothing deadlocks: every call waits for calls that were submitted before it, and of those that wait for a thread the
earliest gets it first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from hfdsl.deploy.deployment import Deployment, ProcessGroup
from hfdsl.plan.payloads import Process
from hfdsl.protocols import role_facts
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import effects_of

ARRIVALS: Final = "arrivals"
"""The thread of a process that receives weights while calls run."""

BESIDE: Final = "beside"
"""The threads of a process for concurrent calls."""


def extra_threads(deployment: Deployment, group: ProcessGroup) -> dict[str, int]:
    """The threads of a process beside the one for ordinary calls: their number, by name."""
    places = [deployment[role] for role in group.roles]
    methods = [getattr(place.role, name) for place in places for name in registered_methods(place.role)]
    arrivals = any(effect.during is not None for method in methods for effect in effects_of(method))
    declared = [role_facts.concurrent_calls.of(place).values() for place in places]
    beside = max((calls for method_calls in declared for calls in method_calls), default=1)
    return {**({ARRIVALS: 1} if arrivals else {}), **({BESIDE: beside} if beside > 1 else {})}


class CallOrder:
    """The calls that the next call of a process waits for, by any key.

    >>> order, process = CallOrder(), ("engine", 0)
    >>> order.submitted(process, "load 0", beside=False)
    >>> order.before(process, beside=True)
    ['load 0']
    >>> order.submitted(process, "generate 0", beside=True)
    >>> order.before(process, beside=True), order.before(process, beside=False)
    (['load 0'], ['generate 0'])
    """

    def __init__(self) -> None:
        self._ordinary: dict[Process, Any] = {}  # the last one of each process
        self._beside: dict[Process, list[Any]] = {}  # those after it that have not ended

    def before(self, process: Process, *, beside: bool) -> Sequence[Any]:
        """The calls that the next one waits for."""
        if beside:
            return [self._ordinary[process]] if process in self._ordinary else []
        return self._beside.get(process, [])

    def submitted(self, process: Process, call: Any, *, beside: bool) -> None:
        """Add a submitted call."""
        if beside:
            self._beside.setdefault(process, []).append(call)
        else:
            self._ordinary[process] = call
            self._beside.pop(process, None)

    def ended(self, calls: Collection[Any]) -> None:
        """Remove ended calls, which need no waiting."""
        for process, beside in self._beside.items():
            self._beside[process] = [call for call in beside if call not in calls]

    def clear(self) -> None:
        """Forget all calls, since their processes were replaced."""
        self._ordinary.clear()
        self._beside.clear()

    def __iter__(self) -> Iterator[Any]:
        yield from self._ordinary.values()
        for beside in self._beside.values():
            yield from beside
