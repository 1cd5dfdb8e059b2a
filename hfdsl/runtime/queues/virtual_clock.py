"""A virtual clock on which calls share devices and engines, from one event to the next.

A call has the ``seconds`` that it takes alone, and a ``sharing`` of its device: its utilization is the part of that
time in which it keeps the device busy, and its interference how much it slows others down. A utilization of 1 is a
device that is never idle, 0.5 one that waits for the host half of the time.

**The rule.** Processes on a device share it as ``device_sharing`` says: those that have kernels at the same time get
equal parts, and what they do on their hosts takes as long as ever. A worked example: an engine generates for 6 s with a
utilization of 0.5, beside updates of 2 s with a utilization of 1, all on one GPU, so both take 1.5 times as long::

    0 s      both begin
    3 s      the update ends; generation has done 2 of its 6 s
    7 s      generation ends
    GPU      busy for 0.5 * 6 + 1 * 2 = 5 s of 7; in turns, both would have taken 8 s

**Servers.** A server runs its calls in the order of submission, up to ``at_once`` of them at a time. A process is a
server that runs one call at a time. A method of which several calls may be in progress is a server of its own, an
engine: each decode step has the rows of all its calls, so above a sum of 1 of their ``engine_utilization`` all are
slowed down by the same factor, the sum. At 1, two calls at once take twice as long, so they gain nothing; at 0.5 they
take as long as one. An engine keeps its device as busy with many calls as with one, since a decode step is one for all
rows: it shares like the busiest of its calls. So five calls at once of 8 s each, with a ``utilization`` of
0.6 and an ``engine_utilization`` of 0.5, take 20 s, and 0.6 * 20 = 12 s of the device instead of 5 * 0.6 * 8 = 24.

A call that several servers and devices run together is as slow as on the slowest of its devices. On the others it keeps
its utilization: ranks that wait in a collective operation occupy their devices.

A call begins as soon as all calls ``after`` which it comes have ended and each of its servers has room.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import fsum
from typing import TypeAlias

from hfdsl.runtime.queues.device_sharing import Sharing, slowdowns

ALL, NONE = Sharing(1.0, 1.0), Sharing(0.0, 0.0)

ServerKey: TypeAlias = tuple[str, int, int | None]
"""A process, as its group and rank; a method with several calls at once is another server, with the method's node."""


@dataclass(slots=True, eq=False)
class VirtualCall:
    """A call, with the times when it began and ended, once it has."""

    seconds_left: float
    servers: Sequence[_Server]
    devices: Sequence[_Device]
    sharing: Sharing
    engine_utilization: float
    waits: int = 0  # the number of calls and servers that it waits for
    awaited_by: list[VirtualCall] = field(default_factory=list)
    start: float | None = None
    end: float | None = None
    engine_slowdown: float = 1.0
    speed: float = 0.0  # seconds of the call alone per second
    since: float = 0.0  # when it has had this speed
    due: float = 0.0  # its end, if it keeps this speed


@dataclass(slots=True, eq=False)
class _Device:
    running: dict[VirtualCall, None] = field(default_factory=dict)  # in order
    slowdowns: Mapping[_Server | VirtualCall, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Server:
    at_once: int
    unended: list[VirtualCall] = field(default_factory=list)
    running: dict[VirtualCall, None] = field(default_factory=dict)
    slowdown: float = 1.0
    busy: float = 0.0  # seconds with a call in progress, before ``began``
    began: float = 0.0


class VirtualClock:
    """The time, the calls in progress, and those that wait.

    >>> clock, gpu = VirtualClock(), ["gpu"]
    >>> generate = clock.submit(6.0, servers=[("engine", 0, None)], devices=gpu, sharing=Sharing(0.5, 0.5))
    >>> update = clock.submit(2.0, servers=[("actor", 0, None)], devices=gpu)
    >>> clock.run()
    >>> update.end, generate.end, clock.busy("engine")
    (3.0, 7.0, 7.0)

    Two calls at once in an engine, which a call alone occupies for 3/4 of its time:

    >>> clock, engine = VirtualClock(), [("engine", 0, 7)]
    >>> calls = [clock.submit(4.0, servers=engine, at_once=2, engine_utilization=0.75) for _ in range(2)]
    >>> clock.run()
    >>> [call.end for call in calls]
    [6.0, 6.0]
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._servers: dict[ServerKey, _Server] = {}
        self._devices: dict[Hashable, _Device] = {}
        self._due: list[tuple[float, int, VirtualCall]] = []
        self._order = count()
        # What calls have begun or ended on since speeds were computed; dicts keep the order.
        self._begun: dict[VirtualCall, None] = {}
        self._changed_servers: dict[_Server, None] = {}
        self._changed_devices: dict[_Device, None] = {}

    def submit(
        self,
        seconds: float,
        *,
        after: Iterable[VirtualCall] = (),
        servers: Iterable[ServerKey] = (),
        at_once: int = 1,
        devices: Iterable[Hashable] = (),
        sharing: Sharing = ALL,
        engine_utilization: float = 1.0,
    ) -> VirtualCall:
        """Submit a call that takes ``seconds`` alone."""
        call = VirtualCall(
            seconds,
            [self._servers.setdefault(key, _Server(at_once)) for key in servers],
            [self._devices.setdefault(key, _Device()) for key in devices],
            sharing,
            engine_utilization,
        )
        for earlier in after:
            if earlier.end is None:
                earlier.awaited_by.append(call)
                call.waits += 1
        for server in call.servers:
            server.unended.append(call)
            call.waits += len(server.unended) > server.at_once
        if not call.waits:
            self._begin(call)
        return call

    @property
    def idle(self) -> bool:
        """Whether no call is in progress."""
        return not self._begun and self._next_end() is None

    def advance(self) -> None:
        """Go on to the next end of a call, and end all calls that end at that time."""
        self._set_speeds()
        if (end := self._next_end()) is not None:
            self.now = end
            self.settle()

    def settle(self) -> None:
        """End the calls that end now, such as those that were submitted since and take no time."""
        self._set_speeds()
        while ended := list(self._take_ended()):
            for call in ended:
                self._leave(call)
            for call in ended:
                self._begin_next(call)
            self._set_speeds()

    def _next_end(self) -> float | None:
        while self._due:
            due, _, call = self._due[0]
            if call.end is None and call.due == due:
                return due
            heapq.heappop(self._due)  # the call has ended, or its speed has changed since
        return None

    def _take_ended(self) -> Iterator[VirtualCall]:
        while self._next_end() == self.now:
            call = heapq.heappop(self._due)[2]
            call.end = self.now
            yield call

    def run(self, calls: Iterable[VirtualCall] | None = None) -> None:
        """Go on until these calls have ended; without an argument, until no call is in progress."""
        if calls is None:
            while not self.idle:
                self.advance()
            return
        for call in calls:
            while call.end is None:
                self.advance()

    def busy(self, group: str) -> float:
        """The seconds in which the servers of a group have had a call in progress, added up."""
        of_group = (server for (name, _, _), server in self._servers.items() if name == group)
        return sum(server.busy + (self.now - server.began if server.running else 0.0) for server in of_group)

    def _begin(self, call: VirtualCall) -> None:
        call.start = self.now
        self._begun[call] = None
        for server in call.servers:
            if not server.running:
                server.began = self.now
            server.running[call] = None
            self._changed_servers[server] = None
        for device in call.devices:
            device.running[call] = None
            self._changed_devices[device] = None

    def _leave(self, call: VirtualCall) -> None:
        for device in call.devices:
            del device.running[call]
            self._changed_devices[device] = None
        for server in call.servers:
            del server.running[call]
            self._changed_servers[server] = None
            if not server.running:
                server.busy += self.now - server.began

    def _begin_next(self, ended: VirtualCall) -> None:
        """Begin the calls for which a call that has ended was the last to wait for."""
        waiting, ended.awaited_by = ended.awaited_by, []
        for server in ended.servers:
            server.unended.remove(ended)
            waiting += server.unended[server.at_once - 1 : server.at_once]  # there is room for this one now
        for call in waiting:
            call.waits -= 1
            if not call.waits:
                self._begin(call)

    def _set_speeds(self) -> None:
        """Compute the speeds of calls that share a server or device with calls that have begun or ended."""
        affected, self._begun = self._begun, {}
        for server in self._changed_servers:
            server.slowdown = max(1.0, fsum(call.engine_utilization for call in server.running))
            for call in server.running:
                call.engine_slowdown = max(server.slowdown for server in call.servers)
                self._changed_devices |= dict.fromkeys(call.devices)
            affected |= server.running
        for device in self._changed_devices:
            device.slowdowns = _slowdowns(device)
            affected |= device.running
        self._changed_servers, self._changed_devices = {}, {}
        for call in affected:
            self._set_speed(call)

    def _set_speed(self, call: VirtualCall) -> None:
        on_devices = max((device.slowdowns[_process(call)] for device in call.devices), default=1.0)
        speed = 1.0 / (call.engine_slowdown * on_devices)
        if speed == call.speed:
            return  # and its end stays the same to the last bit
        call.seconds_left = max(0.0, call.seconds_left - (self.now - call.since) * call.speed)
        call.speed, call.since = speed, self.now
        call.due = self.now + call.seconds_left / speed
        heapq.heappush(self._due, (call.due, next(self._order), call))


def _process(call: VirtualCall) -> _Server | VirtualCall:
    """The server with which a call shares its devices with others; a call of several is the only one that they run."""
    return call.servers[0] if call.servers else call


def _slowdowns(device: _Device) -> dict[_Server | VirtualCall, float]:
    """By how much the servers on a device are slowed down."""
    sharing: dict[_Server | VirtualCall, Sharing] = {}
    for call in device.running:
        sharing[_process(call)] = Sharing(*map(max, call.sharing, sharing.get(_process(call), NONE)))
    return dict(zip(sharing, slowdowns(tuple(sharing.values())), strict=True))
