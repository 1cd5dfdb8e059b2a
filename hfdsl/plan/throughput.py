"""Throughput: how many seconds a step takes when stages run independently, and which cycle limits it.

A run submits stages in rounds: with a queue of lag k, a round is stage 0 of step n + k and stage 1 of step n, and ends
with the result of step n. So the plan is a timed marked graph (``marked_graph``) whose nodes are its calls, once in
every round. A worked example: an engine that generates in 41 s and loads in 1 s, an actor on another pool that updates
in 18 s, and ``lag=1``::

    generate -> update       1 token:  an update reads what was generated a round before
    update   -> load         0 tokens: a load reads the weights of the same round
    update   -> generate     1 token:  a round begins after the result of the one before
    generate -> load         0 tokens: a process does its calls in the order of submission,
    load     -> generate     1 token:  and those of the next round after them

    cycle                    seconds / tokens
    generate, update, load   60 / 2 = 30
    generate, load           42 / 1 = 42

A load whose weights are sent from the memory in which they train (``weight_senders``) has a place in the order of the
processes that send them, too: there update and load take 19 s.

A load that is in flight (``hf.sync(..., during="generate")``) has no place in the order of its process: of the last two
edges the second is left, and the engine's own cycle is its 41 s.

Where up to n calls of ``generate`` may be in progress in a process, it has no place in that order either, and a cycle
of its own with n tokens: it begins when its call n rounds before has ended. If a call alone occupies a part of the
engine, its ``engine_utilization``, the engine needs this part of the call's seconds for each step.

Processes on one device run at the same time. The device needs the seconds of all its calls for each step, each times
the call's ``interference``, the part of the device that it takes from others: its ``utilization``, with which it keeps
the device busy while it runs alone, or less where kernels run side by side. Calls at once in an engine need this part
of the time that the engine needs for them.

Where a batch of a queue is not what a step puts in, stages have no rounds, and only the work of processes and devices
is counted, for each result: with ``rows=`` of half of a dispatch, an engine that takes 41 s generates once for every
two results, 41 s / 2 tokens. Filters are taken to keep every group, which is the best case.

A step takes 42 s: already with ``lag=1`` the engine alone is the slowest, and more lag gains nothing. With ``lag=0``,
where the first edge has no token, a step takes 60 s.

Why it is right: a queue between two stages has k tokens, since its reader is k steps behind; the order of rounds is
that of ``StageOrder`` in the runtime; the rest is the theorem of ``marked_graph``. The ranks of a call count as
beginning and ending together, and transfers as taking no time: where both are so and durations are constant, the number
is exact. A step may take longer where stages are no chain or have no rounds, since then only the work of processes and
devices is counted, and where calls slow each other down in an engine or, wherever two processes use one, on a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from hfdsl.deploy.pools import devices
from hfdsl.errors import WiringError
from hfdsl.graph.columns import columns_read
from hfdsl.graph.program import Derived, Node
from hfdsl.plan.concurrency import calls_at_once
from hfdsl.plan.marked_graph import Cycle, MarkedGraph, TokenEdge
from hfdsl.plan.payloads import Process
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.queues import out_of_step
from hfdsl.plan.rows import most_rows, row_table
from hfdsl.plan.weight_senders import weight_senders
from hfdsl.protocols.queueing import queue_problem
from hfdsl.types.numbers import brief, is_number
from hfdsl.types.similar_names import closest


@dataclass(frozen=True, slots=True)
class Throughput:
    """The cycle that allows no fewer seconds for each step, and the least lag that is as fast as any larger one.

    ``enough_lag`` is None where a step may take longer than the cycle: if stages are no chain or have no rounds, or if
    calls slow each other down.
    """

    cycle: Cycle
    enough_lag: int | None

    @property
    def seconds(self) -> float:
        """Seconds for each step."""
        return self.cycle.ratio

    def __str__(self) -> str:
        enough = "" if self.enough_lag is None else f"; more lag than {self.enough_lag} gains nothing"
        return f"{self.cycle}{enough}"


def throughput(
    plan: Plan,
    seconds: Mapping[str, float],
    lag: int | None = None,
    *,
    utilization: Mapping[str, float] | None = None,
    interference: Mapping[str, float] | None = None,
    engine_utilization: Mapping[str, float] | None = None,
) -> Throughput:
    """Predict the speed of a plan with queues from the seconds that each call takes; a call without any counts as 0.

    ``lag`` stands in the place of that of every queue. A call without a ``utilization`` keeps its device busy, one
    without an ``interference`` slows others down by its utilization, and one without an ``engine_utilization`` keeps
    its engine busy.

    Raises:
        WiringError: HF992 for a plan without queues, whose steps are one after another, or with batches of an unknown
            number of steps; HF202 for a call that the plan does not have, or a number that is no duration or
            utilization; HF740 for a ``lag`` that is none; HF206 for what is no compiled plan.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Engine(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def generate(self, rows: Rows) -> Rows: ...
    >>> class Actor(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def update(self, rows: Rows) -> Rows: ...
    >>> @hf.dataflow
    ... def flow(rows: Rows, engine: Engine, actor: Actor) -> Rows:
    ...     return actor.update(hf.queue(engine.generate(rows), lag=1, late="wait"))
    >>> engines, train = hf.ResourcePool([2], name="engines"), hf.ResourcePool([2], name="train")
    >>> deployment = hf.Deployment(engine=hf.place(Engine, pool=engines), actor=hf.place(Actor, pool=train))
    >>> plan, seconds = flow.compile(deployment, dims={B: 8}), {"engine.generate": 40.0, "actor.update": 20.0}
    >>> print(throughput(plan, seconds))
    engine.generate 40 s; more lag than 1 gains nothing
    >>> throughput(plan, seconds, lag=0).seconds
    60.0
    """
    if not isinstance(plan, Plan):
        raise WiringError("HF206", f"throughput takes a compiled plan, got a {type(plan).__name__}")
    if not plan.split.queues:
        raise WiringError("HF992", f"throughput: '{plan.name}' has no queues, so its steps run one after another")
    if lag is not None and (problem := queue_problem(rows=None, group=1, lag=lag, late=None)):
        raise WiringError("HF740", f"throughput: {problem}")
    _check_calls(plan, "seconds", seconds, math.inf)
    _check_calls(plan, "utilization", utilization or {}, 1)
    _check_calls(plan, "interference", interference or {}, 1)
    for label, part in (interference or {}).items():
        if part > (most := (utilization or {}).get(label, 1.0)):
            text = f"'{label}' takes at most its utilization, {most:g}, got {part!r}"
            raise WiringError("HF202", f"interference= of throughput: {text}")
    _check_calls(plan, "engine_utilization", engine_utilization or {}, 1)
    work = _Work(
        plan,
        seconds,
        utilization=utilization or {},
        interference=interference or {},
        engine_utilization=engine_utilization or {},
        rates=_rates(plan),
    )
    busiest = max(work.cycles(), key=lambda cycle: cycle.ratio, default=Cycle((), 0.0, 1))
    ends_of_queues = [(plan.split.producer(node), plan.split.of[node.id]) for node, _ in plan.split.queues]
    if out_of_step(plan) or ends_of_queues != [*pairwise(range(plan.split.count))]:
        return Throughput(busiest, None)
    lags = [queue.lag or 0 if lag is None else lag for _, queue in plan.split.queues]
    overlapping = {TokenEdge(label, label, number) for label, number in work.at_once.items()}
    edges = frozenset({*_order_edges(work.orders), *overlapping, *_fences(plan)})
    rounds = _Rounds(work.calls, edges, tuple(_paths(plan)))
    fastest = _slowest(rounds.graph([None] * len(lags)), busiest)
    enough = 0
    while rounds.graph([enough] * len(lags)).slower_cycle(fastest.ratio) is not None:
        enough += 1
    return Throughput(_slowest(rounds.graph(lags), fastest), None if work.slows_calls() else enough)


class _Work:
    """The seconds in which calls occupy processes, engines and devices for each result.

    ``rates`` has the steps of each stage for each result.
    """

    def __init__(
        self,
        plan: Plan,
        seconds: Mapping[str, float],
        *,
        utilization: Mapping[str, float],
        interference: Mapping[str, float],
        engine_utilization: Mapping[str, float],
        rates: Sequence[Fraction],
    ) -> None:
        self.calls = {step.label: seconds.get(step.label, 0.0) for step in plan.steps}
        self.orders, self._servers = list(_orders(plan)), list(_servers_by_device(plan))
        self.at_once = {step.label: number for step in plan.steps if (number := calls_at_once(plan, step)) > 1}
        self._in_engine = {label: engine_utilization.get(label, 1.0) for label in self.at_once}
        self._on_device = {label: utilization.get(label, 1.0) for label in self.calls}
        self._taken = {label: interference.get(label, part) for label, part in self._on_device.items()}
        self._results = math.lcm(*(rate.denominator for rate in rates))
        self._counts = {step.label: int(rates[plan.split.of[step.node]] * self._results) for step in plan.steps}

    def cycles(self) -> Iterator[Cycle]:
        """A cycle for each process, engine and device, which works for one result after another."""
        for order in self.orders:
            yield self._busy(self.calls, order)
        for label, number in self.at_once.items():
            yield self._busy(self.calls, [label], number)
            yield self._busy({label: self.calls[label] * self._in_engine[label]}, [label])
        work = {label: self.calls[label] * part for label, part in self._taken.items()}
        work |= {label: work[label] * max(part, 1 / self.at_once[label]) for label, part in self._in_engine.items()}
        for of_device in self._servers:
            yield self._busy(work, [label for labels in of_device for label in labels])

    def _busy(self, work: Mapping[str, float], order: Sequence[str], at_once: int = 1) -> Cycle:
        seconds = sum(work[label] * self._counts[label] for label in order)
        return Cycle(tuple(order), seconds, at_once * self._results)

    def slows_calls(self) -> bool:
        """Whether calls that keep devices busy may slow each other down in their engines or on their devices."""
        utilization = {label: part for label, part in self._on_device.items() if self.calls[label]}
        if any(number * self._in_engine[label] > 1 for label, number in self.at_once.items() if label in utilization):
            return True
        using = ([any(map(utilization.get, labels)) for labels in servers] for servers in self._servers)
        return any(sum(are_used) > 1 for are_used in using)


def _rates(plan: Plan) -> list[Fraction]:
    """The steps of each stage for each result; at least as many, if filters remove groups."""
    rows = row_table(plan, plan.dims, most_rows(plan, plan.dims)).rows if out_of_step(plan) else {}
    rates = [Fraction(1)] * plan.split.count
    for stage in reversed(range(plan.split.count)):
        feeds = [node for node, _ in plan.split.queues if plan.split.producer(node) == stage]
        if rows and feeds:
            rates[stage] = max(rates[plan.split.of[node.id]] * _steps_per_batch(plan, node, rows) for node in feeds)
    return rates


def _steps_per_batch(plan: Plan, queue: Node, rows: Mapping[int, int]) -> Fraction:
    put_in, taken = rows.get(queue.batch.node) if queue.batch is not None else None, rows.get(queue.id)
    if not put_in or not taken:
        unknown = "a batch of a queue is not what a step puts in, and dims say of how many steps it is"
        raise WiringError("HF992", f"throughput of '{plan.name}': {unknown}; compile with dims=")
    return Fraction(taken, put_in)


@dataclass(frozen=True, slots=True)
class _Path:
    """A value from a call to one that waits for it, through the queues from stage ``first`` to stage ``last``.

    With lags of 0 it arrives ``rounds`` rounds after its own.
    """

    source: str
    target: str
    first: int
    last: int
    rounds: int


@dataclass(frozen=True, slots=True)
class _Rounds:
    """The rounds of a plan, in which each call runs once: edges that no lag changes, and the paths of values."""

    calls: Mapping[str, float]
    fixed: frozenset[TokenEdge]
    paths: tuple[_Path, ...]

    def graph(self, lags: Sequence[int | None]) -> MarkedGraph:
        """The graph with these lags from stage to stage; a queue without one never makes a reader wait."""
        waits = {
            TokenEdge(path.source, path.target, sum(lag or 0 for lag in through) + path.rounds)
            for path in self.paths
            if None not in (through := lags[path.first : path.last])
        }
        return MarkedGraph(self.calls, tuple(self.fixed | waits))


def _check_calls(plan: Plan, subject: str, numbers: Mapping[str, float], most: float) -> None:
    labels = [step.label for step in plan.steps]
    if not isinstance(numbers, Mapping):
        raise WiringError("HF202", f"{subject}= of throughput takes a dict of calls, got {brief(numbers)}")
    for label, number in numbers.items():
        if label not in labels:
            text = f"{subject}= of throughput: '{plan.name}' has no call '{label}'; {closest(str(label), labels)}"
            raise WiringError("HF202", text)
        if not (is_number(number) and 0 <= number <= most and math.isfinite(number)):
            kind = "a number of at least 0" if most > 1 else "a number from 0 to 1"
            raise WiringError("HF202", f"{subject}= of throughput: '{label}' takes {kind}, got {number!r}")


def _slowest(graph: MarkedGraph, slowest: Cycle) -> Cycle:
    """The slowest cycle of a graph, or the known one where none is slower."""
    while (slower := graph.slower_cycle(slowest.ratio)) is not None:
        slowest = slower
    return slowest


def _order_edges(orders: Iterable[Sequence[str]]) -> Iterator[TokenEdge]:
    """A process does its calls one after another, and those of the next round after them."""
    for order in orders:
        yield from (TokenEdge(before, after, 0) for before, after in pairwise(order))
        yield TokenEdge(order[-1], order[0], 1)


def _fences(plan: Plan) -> Iterator[TokenEdge]:
    """A call that takes weights in flight begins with those of the round before."""
    for load in plan.steps:
        for step in plan.steps if plan.loads_in_flight(load) else ():
            if step.role == load.role and plan.split.of[step.node] < plan.split.of[load.node]:
                yield TokenEdge(load.label, step.label, 1)


def _in_order(plan: Plan) -> Iterator[Step]:
    """The calls of a round, without loads of weights in flight, which come beside the calls of their process."""
    for step in sorted(plan.steps, key=lambda step: (plan.split.of[step.node], step.node)):
        if step.group != DRIVER and not plan.loads_in_flight(step):
            yield step


def _orders(plan: Plan) -> Iterator[list[str]]:
    """By process its calls in the order of a round, without those that may be in progress at once.

    A load of weights is among the calls of the processes that send them.
    """
    calls: dict[Process, list[str]] = {}
    senders = weight_senders(plan)
    for step in _in_order(plan):
        own = [(step.group, rank) for rank in step.ranks if calls_at_once(plan, step) == 1]
        for process in (*own, *senders.get(step.node, ())):
            calls.setdefault(process, []).append(step.label)
    yield from calls.values()


def _servers_by_device(plan: Plan) -> Iterator[list[list[str]]]:
    """By device the calls of each process there, which run one after another, and of each engine, which run at once."""
    pools = {group.name: devices(group.pool) for group in plan.groups}
    calls: dict[tuple[str, int], dict[tuple[str, int | None], list[str]]] = {}
    for step in _in_order(plan):
        engine = step.node if calls_at_once(plan, step) > 1 else None
        for rank in step.ranks:
            servers = calls.setdefault(pools[step.group][rank], {})
            servers.setdefault((step.group, engine), []).append(step.label)
    yield from (list(servers.values()) for servers in calls.values())


def _paths(plan: Plan) -> Iterator[_Path]:
    """The reads between calls, and the results, which come before all calls of the round after the last stage's."""
    steps = {step.node: step for step in plan.steps}
    for step in plan.steps:
        for source in {node for node, _ in columns_read(plan.graph, step.node)} & steps.keys():
            yield _Path(steps[source].label, step.label, plan.split.of[source], plan.split.of[step.node], rounds=0)
    for source in {node for ref in plan.graph.output.refs() for node in _makers(plan, ref.node)} & steps.keys():
        for step in plan.steps:
            yield _Path(steps[source].label, step.label, plan.split.of[source], plan.split.count - 1, rounds=1)


def _makers(plan: Plan, node: int) -> Iterator[int]:
    """The calls that make a value."""
    if not isinstance(plan.node(node).op, Derived):
        yield node
        return
    for ref in plan.node(node).refs:
        yield from _makers(plan, ref.node)
