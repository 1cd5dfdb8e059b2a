"""One step under way: segments are submitted as soon as what they take is on its way, and the driver reads little."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.columns import result_type, weight_of
from hfdsl.graph.guards import check_result
from hfdsl.graph.program import Constant, Filter, Output, Ref
from hfdsl.graph.signatures import VALUE, ListType, PortType, Signature, optional_columns
from hfdsl.plan.payloads import CALLER, DRIVER_RANK, Payload, PayloadKey
from hfdsl.plan.plan import DRIVER, Plan, Step
from hfdsl.plan.reading import Reader, pack, unpack
from hfdsl.plan.routes import Hints, Routes, routes
from hfdsl.plan.rows import RuntimeQuery, row_table, runtime_queries
from hfdsl.plan.segments import Segment
from hfdsl.plan.size_checks import check_sizes
from hfdsl.plan.sizes import rows_in
from hfdsl.protocols.filtering import kept_rows
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.ranges import RowRanges
from hfdsl.runtime.backend import Backend, Call, nothing
from hfdsl.runtime.executor import Lesson, Order, Ran
from hfdsl.runtime.store import Content, apart, bytes_of, memory_of
from hfdsl.runtime.timeline import RESULT, Notes, Record
from hfdsl.types.batches import Batch
from hfdsl.types.joining import all_present


class _GroupView:
    """What a custom protocol's functions may read of a worker group."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.world_size = mesh, mesh.world_size
        self.workers = tuple(range(mesh.world_size))


@dataclass(slots=True)
class Routing:
    """Routes with a number, which below zero hold for one step.

    ``told`` are the segments whose ranks know their part.
    """

    routes: Routes
    number: int
    hints: Hints
    told: set[int] = field(default_factory=set)


class StepRun:
    """One step under way: the handles of the payloads that are still to be taken."""

    def __init__(self, plan: Plan, backend: Backend, routing: Routing, number: int, sizes: Mapping[Any, int]) -> None:
        self._plan, self._backend, self._routing, self._number, self._sizes = plan, backend, routing, number, sizes
        self._home = backend.driver
        self._handles: dict[PayloadKey, Any] = {}
        self._here: set[PayloadKey] = set()
        self._lent: set[int] = set()
        self._acknowledged: dict[tuple[int, int], Any] = {}
        self._late: list[Segment] = []
        self._over: set[int] = set()
        self._notes = Notes()
        self._results = self._notes.results
        self._known: dict[Any, int] = dict(sizes)  # and, once a filter has run, how many rows it keeps
        self._left = Counter(self._taken())

    @property
    def _routes(self) -> Routes:
        return self._routing.routes

    def run(self, inputs: Mapping[int, Batch], meanwhile: Callable[[], None]) -> tuple[Any, Record]:
        """The dataflow's result, and who did what when; ``meanwhile`` is called when there is only waiting left."""
        self._backend.begin()
        self._home.begin(self._plan.name, self._number)
        for node, batch in inputs.items():
            self._home.hold(node, "the driver", batch)
        while self._routes.early_queries:
            self._resolve(self._routes.early_queries[0])
        self._put(CALLER)
        while True:
            with self._notes.doing("submits"):
                for segment in self._routes.segments:
                    if segment.number not in self._over:
                        self._submit(segment)
                self._catch_up()
            unresolved = [number for number in self._routes.query_payloads if number not in self._results]
            if not unresolved:
                break
            self._resolve(unresolved[0])
        wanted = [self._handles[key] for key in self._routes.result if key not in self._here]
        ran = self._wait(self._acknowledged.values(), wanted, meanwhile)
        _agree(self._plan, ran)
        with self._notes.doing(RESULT):
            result = self._result(self._plan.graph.output)
        self._home.store.clear()
        calls = tuple(self._acknowledged)
        return result, Record(
            plan=self._plan,
            number=self._number,
            stop=time.time(),
            notes=self._notes,
            routes=self._routes,
            calls=calls,
            ran=tuple(ran),
        )

    # -- segments

    def _submit(self, segment: Segment) -> None:
        """Have a segment run; one of the driver's own waits until somebody needs what it makes."""
        self._over.add(segment.number)
        self._notes.routes[segment.number] = self._routes
        if segment.group == DRIVER:
            self._late.append(segment)
            return
        takes = self._routes.receives[segment.number]
        late = {one.number for one in self._late}
        if segment.custom or any(key[0] in late for keys in takes.values() for key in keys):
            self._catch_up()
        if segment.custom:
            self._through_driver(segment)
        else:
            self._hand_out(segment, None)
        if not self._plan.optimize.overlap:
            self._wait([self._acknowledged[segment.number, rank] for rank in segment.ranks])
        self._drop(takes)

    def _catch_up(self) -> None:
        """Run the driver's own segments."""
        late, self._late = self._late, []
        for segment in late:
            takes = self._routes.receives[segment.number]
            payloads = self._fetched(takes.get(0, ()))
            (lesson,) = self._lessons(segment)
            ran, given = self._home.run(self._order(segment), lesson, payloads)
            self._acknowledged[segment.number, DRIVER_RANK] = ran
            for payload, content in zip(self._routes.tasks[segment.number][0].sends, given, strict=True):
                self._handles[payload.key] = self._backend.put(self._plan, content)
            self._drop(takes)

    def _hand_out(self, segment: Segment, direct: Sequence[Mapping[str, Any]] | None) -> list[Sequence[Any]]:
        """Submit a segment of worker processes; the handles that every rank gives."""
        takes, tasks = self._routes.receives[segment.number], self._routes.tasks[segment.number]
        call = Call(
            order=self._order(segment),
            segment=segment,
            lessons=self._lessons(segment),
            payloads=[[self._handles[key] for key in takes.get(rank, ())] for rank in segment.ranks],
            gives=[tasks[rank].sends if direct is None else (_whole(segment, rank),) for rank in segment.ranks],
            after=[[self._acknowledged[one]] if one is not None else [] for one in segment.after],
            direct=direct,
        )
        handles = []
        for rank, (acknowledged, given) in zip(segment.ranks, self._backend.run(call), strict=True):
            self._acknowledged[segment.number, rank] = acknowledged
            handles.append(given)
            if direct is None:
                self._handles |= zip((payload.key for payload in tasks[rank].sends), given, strict=True)
        return handles

    def _order(self, segment: Segment) -> Order:
        return Order(self._plan.name, self._routing.number, segment.number, self._number)

    def _lessons(self, segment: Segment) -> list[Lesson | None]:
        """What every rank of a segment has to know, the first time; what holds for one step alone, always."""
        routing = self._routing
        if segment.number in routing.told:
            return [None] * len(segment.ranks)
        routing.told.add(segment.number)
        return [Lesson(routing.routes.tasks[segment.number][rank], routing.routes.table) for rank in segment.ranks]

    def _wait(
        self, acknowledged: Iterable[Any], wanted: Sequence[Any] = (), meanwhile: Callable[[], None] = nothing
    ) -> list[Ran]:
        every = list(acknowledged)
        with self._notes.doing("waits for processes", "wait"):
            parts = [one for one in every if not isinstance(one, Ran)]
            waited = iter(self._backend.done(parts, wanted, meanwhile))
        return [one if isinstance(one, Ran) else next(waited) for one in every]

    # -- payloads

    def _put(self, segment: int) -> None:
        """Give what the driver has made of this segment's values."""
        with self._notes.doing("puts what it was given" if segment == CALLER else "puts what it collected"):
            for payload in self._routes.driver_sends[segment]:
                content = self._home.store.give(payload)
                self._handles[payload.key] = self._backend.put(self._plan, content)
                self._notes.gave.append((payload, time.time(), bytes_of(content)))

    def _fetched(self, keys: Iterable[PayloadKey]) -> list[Content]:
        """Payloads that the driver has not been brought yet."""
        new = [key for key in keys if key not in self._here]
        self._here.update(new)
        return self._got([self._handles[key] for key in new])

    def _got(self, handles: Sequence[Any]) -> list[Content]:
        contents = self._backend.get(handles)
        self._lent |= memory_of(contents)
        return contents

    def _taken(self) -> Iterable[PayloadKey]:
        """Every taking of a payload that is still to come, as far as anybody knows."""
        for number, by_rank in self._routes.receives.items():
            for keys in by_rank.values() if number not in self._over else ():
                yield from keys
        for node, keys in self._routes.query_payloads.items():
            yield from keys if node not in self._results else ()
        yield from self._routes.result

    def _drop(self, takes: Mapping[int, Sequence[PayloadKey]]) -> None:
        """Forget payloads that nobody takes any more."""
        self._left.subtract(key for keys in takes.values() for key in keys)
        self._forget(key for keys in takes.values() for key in keys)

    def _forget(self, keys: Iterable[PayloadKey]) -> None:
        if self._plan.optimize.liveness:
            for key in [key for key in keys if not self._left[key] and key not in self._routes.open_payloads]:
                self._handles.pop(key, None)

    # -- what the driver reads

    def _reader(self, keys: Iterable[PayloadKey]) -> Reader:
        for content in self._fetched(keys):
            self._home.store.bring(content)
        return Reader(self._plan.graph.nodes, self._plan.layouts, self._routes.table, self._home.store.read)

    def _resolve(self, number: int) -> None:
        """Learn which rows a filter keeps, or what rows weigh; then who reads which rows is known."""
        query = next(one for one in runtime_queries(self._plan) if one.number == number)
        with self._notes.doing("reads what rows weigh" if query.weighs else "reads what a filter keeps"):
            result = self._weights(query) if query.weighs else self._kept(query)
        self._results[number] = result
        table, hints = row_table(self._plan, self._sizes, self._results), self._routing.hints
        found = routes(self._plan, table, self._backend.topology(self._plan), hints)
        self._routing = Routing(found, -1 - len(self._results), hints)
        self._left = Counter(self._taken())
        self._forget(self._handles)

    def _kept(self, query: RuntimeQuery) -> tuple[int, ...]:
        plan, node, ref = self._plan, self._plan.node(query.number), query.ref
        reader = self._reader(self._routes.query_payloads[query.number])
        column = reader.column(ref.node, ref.column or VALUE, ((0, reader.table.rows[ref.node]),))
        group = node.op.group if isinstance(node.op, Filter) else 1
        found = kept_rows(column.tolist(), group, f"'filter' in line {node.span.line}")
        kept = rows_in(plan.inference.values[query.number])
        self._known |= dict.fromkeys(kept.atoms if kept is not None else (), len(found) // group)
        check_sizes(plan, self._known)
        return found

    def _weights(self, query: RuntimeQuery) -> tuple[int, ...]:
        """What rows weigh: of each a number, which was made where the column is."""
        ref, reader = query.ref, self._reader(self._routes.query_payloads[query.number])

        def weights(node: int, column: str, chunk: int, rows: RowRanges | None) -> Any:
            return reader.fetch(node, weight_of(column), chunk, rows)

        rows = reader.table.rows.get(ref.node, 0)
        found = replace(reader, fetch=weights).column(ref.node, ref.column or VALUE, ((0, rows),))
        return () if found is None else tuple(found.tolist())

    def _through_driver(self, segment: Segment) -> None:
        """A step whose protocol is a pair of functions: they get whole values, here."""
        (step,) = segment.steps
        reader = self._reader(self._routes.receives[segment.number].get(DRIVER_RANK, ()))
        values = {}
        for name, operand in step.arguments:
            port = step.signature.port(name)
            if port is not None:
                rows = reader.table.rows.get(operand.node, 0) if isinstance(operand, Ref) else 0
                values[name] = reader.value(operand, port.type, ((0, rows),))
        group = _GroupView(self._plan.mesh(step.role or ""))
        given = self._hand_out(segment, _dispatched(step, group, values))
        contents = self._got([handle for (handle,) in given])
        outputs = [
            unpack(step.signature.returns, {cut.column: value for cut, value in content.items()})
            for content in contents
        ]
        collected = step.custom.collect_fn(group, outputs) if step.custom else None
        check_result(step.label, step.signature.returns, collected, "from its collect function")
        self._home.hold(step.node, step.label, collected)
        self._put(segment.number)

    def _result(self, output: Output) -> Any:
        value = output.value
        if isinstance(value, tuple):
            parts = [self._result(inner) for inner in value]
            return output.container(*parts) if hasattr(output.container, "_fields") else output.container(parts)
        if isinstance(value, dict):
            return {key: self._result(inner) for key, inner in value.items()}
        if not isinstance(value, Ref):
            return value.value if isinstance(value, Constant) else None
        reader = self._reader(self._routes.result)
        kind = result_type(self._plan.graph, value)
        return self._callers_own(kind, reader.value(value, kind, ((0, reader.table.rows.get(value.node, 0)),)))

    def _callers_own(self, kind: PortType, value: Any) -> Any:
        """A result that the caller may write and keep: no other process sees it change, none holds memory for it."""
        if isinstance(kind, ListType):
            return type(value)(self._callers_own(kind.inner, one) for one in value)
        return None if value is None else unpack(kind, apart(pack(value), self._lent))


def _whole(segment: Segment, rank: int) -> Payload:
    """What a rank gives of a step whose protocol is a pair of functions: its result as it is, to the driver."""
    return Payload((segment.number, rank, 0), ())


def _agree(plan: Plan, ran: Iterable[Ran]) -> None:
    """Refuse a value of which only some ranks made a column, though nobody may have read more than one part of it."""
    partly = {
        step.label: step
        for step in plan.steps
        if step.custom is None and not step.layout.lists and optional_columns(step.signature.returns)
    }
    made: dict[str, dict[int, tuple[str, ...]]] = {label: {} for label in partly}
    for done in (done for one in ran for done in one.done if done.label in partly) if partly else ():
        made[done.label][done.rank] = done.absent
    for label, step in partly.items():
        holders = sorted(made[label].keys() & frozenset(step.layout.holders))
        for name in optional_columns(step.signature.returns):
            what = f"column '{name}' of '{label}'" if name else f"the result of '{label}'"
            parts = [None if name in made[label][rank] else name for rank in holders]
            try:
                all_present(what, parts, [f"rank {rank}" for rank in holders])
            except WiringError as error:
                raise WiringError(error.code, f"{error.message} ({step.signature.span})") from None


def _dispatched(step: Step, group: _GroupView, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments that a custom dispatch function makes, one set a rank."""
    positional, keywords = _call_style(step.signature, values)
    args, kwargs = step.custom.dispatch_fn(group, *positional.values(), **keywords) if step.custom else ((), {})
    lists = dict(zip(positional, args, strict=False)) | dict(kwargs)
    for name, entries in lists.items():
        if not isinstance(entries, (list, tuple)) or len(entries) != group.world_size:
            number = len(entries) if isinstance(entries, (list, tuple)) else None
            got = type(entries).__name__ if number is None else "1 entry" if number == 1 else f"{number} entries"
            raise WiringError(
                "HF407",
                f"the dispatch function of '{step.label}' made {got} for argument '{name}'; "
                f"the mesh has {group.world_size} ranks ({step.signature.span})",
            )
    return [{name: entries[rank] for name, entries in lists.items()} for rank in range(group.world_size)]


def _call_style(signature: Signature, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    keyword_only = {port.name for port in signature.ports if port.keyword_only}
    return {n: v for n, v in values.items() if n not in keyword_only}, {
        n: v for n, v in values.items() if n in keyword_only
    }
