"""A running plan: steps, one after another, each from the caller's batches to the dataflow's result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from hfdsl.errors import HfError, ResourceError, WiringError
from hfdsl.graph.guards import check_result
from hfdsl.graph.program import Constant, Filter, Input, Output, Ref
from hfdsl.graph.signatures import VALUE, Signature, optional_columns
from hfdsl.plan.filters import filters_behind, masks
from hfdsl.plan.guard import hold
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Piece, Reader, pack, unpack
from hfdsl.plan.rows import bind_sizes, row_table, rows_in
from hfdsl.plan.traffic import Traffic, columns_read, origins, result_origins, result_type, traffic
from hfdsl.protocols.filtering import kept_rows
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.executor import Done, Order
from hfdsl.types.batches import Batch, closest, upcast
from hfdsl.types.joining import there


class Backend(Protocol):
    """What runs the ranks. A handle stands for a piece, wherever it is."""

    def add(self, plan: Plan) -> None:
        """Teach every process another plan of the same deployment."""

    def put(self, piece: Piece) -> Any:
        """A piece of the driver's."""

    def run(
        self,
        step: Step,
        order: Order,
        sources: Sequence[Mapping[tuple[int, int], Any]],
        direct: Sequence[Mapping[str, Any]] | None,
    ) -> list[tuple[Any, Any]]:
        """Have every rank do its part: (acknowledgement, handle of its piece), a pair a rank."""
        ...

    def done(self, acknowledged: Sequence[Any]) -> list[Done]:
        """Wait until all these parts are done."""
        ...

    def get(self, handles: Sequence[Any]) -> list[Piece]:
        """The pieces, here."""
        ...

    def begin(self) -> None:
        """A step begins: its deadline runs from now."""

    def close(self) -> None:
        """End the processes."""


class _GroupView:
    """What a custom protocol's functions may read of a worker group."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.world_size = mesh, mesh.world_size
        self.workers = tuple(range(mesh.world_size))


@dataclass
class Processes:
    """The processes that runs share: one failure breaks them for all, since ranks may be anywhere within a step."""

    backend: Backend | None
    plans: set[str]
    broken: str | None = None

    def open(self, name: str) -> Backend:
        """The backend, while it can be used.

        Raises:
            HfError: HF808 after the end, or after a failed step.
        """
        if self.backend is None:
            raise HfError("HF808", f"the run of '{name}' is closed; launch the plan again")
        if self.broken:
            raise HfError("HF808", f"the run of '{name}' is broken since {self.broken}; launch the plan again")
        return self.backend

    def close(self) -> None:
        """End all processes."""
        if self.backend is not None:
            backend, self.backend = self.backend, None
            backend.close()


class Running:
    """A launched plan. Use it as a context manager: leaving it, in whatever way, ends its processes."""

    def __init__(self, plan: Plan, processes: Processes, owner: bool = True) -> None:
        self.plan = plan
        self._processes, self._owner = processes, owner
        self._traffic: dict[tuple[tuple[Any, int], ...], Traffic] = {}
        self._number = 0
        self._done: list[Done] = []

    def also(self, plan: Plan) -> Running:
        """Another plan of the same deployment on the same workers: an evaluation beside the training.

        What it steps sees the weights as they are then. Its processes are this run's, and end with it.

        Raises:
            ResourceError: HF519 where the plan is for another ``Deployment`` or has the name of one that runs.
        """
        if plan.deployment is not self.plan.deployment:
            raise ResourceError(
                "HF519",
                f"'{plan.name}' was compiled for another deployment ({plan.deployment.span}) than '{self.plan.name}' "
                f"({self.plan.deployment.span}), on whose workers it is to run; compile both for one hf.Deployment",
            )
        if plan.name in self._processes.plans:
            raise ResourceError("HF519", f"a plan named '{plan.name}' runs here already")
        self._processes.open(self.plan.name).add(plan)
        self._processes.plans.add(plan.name)
        return Running(plan, self._processes, owner=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes; a second call does nothing."""
        if self._owner:
            self._processes.close()

    @property
    def steps(self) -> int:
        """How many steps have been committed."""
        return self._number

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that each node of the last step took, from its first rank's start to its last rank's end."""
        spans: dict[str, list[float]] = {}
        for done in self._done:
            spans.setdefault(done.label, []).extend((done.start, done.stop))
        return {label: max(times) - min(times) for label, times in spans.items()}

    @property
    def timeline(self) -> tuple[Done, ...]:
        """Every rank's part of the last step, with its times."""
        return tuple(self._done)

    def step(self, *batches: Batch, **named: Batch) -> Any:
        """Run the dataflow once on these batches, in the order of its parameters or by name; gives what it returns.

        Raises:
            WiringError: HF203, HF206 for batches that are not those of the dataflow.
            SizeError: HF302 for sizes that are not those of the plan, HF319 where a check had left open whether they
                work out and they do not, HF313 and HF321 for what filters keep.
            RoleError: HF806 where a body raised; the run is broken then.
            HfError: HF807 where a body waits for peers who never come, or the deadline passed; the run is broken then.
        """
        backend = self._processes.open(self.plan.name)
        inputs = self._inputs(batches, named)
        sizes = bind_sizes(self.plan, inputs)
        key = tuple(sorted(((dim, size) for dim, size in sizes.items()), key=lambda pair: pair[0].__name__))
        if key not in self._traffic:
            hold(self.plan, sizes)  # first: what was open is told as such, and the rest was proved
            self._traffic[key] = traffic(self.plan, row_table(self.plan, sizes))
        try:
            result, done = _Step(self.plan, backend, self._traffic[key], self._number, sizes).run(inputs)
        except BaseException as error:
            self._processes.broken = f"step {self._number} of '{self.plan.name}' ({type(error).__name__})"
            raise
        self._number += 1
        self._done = done
        return result

    def _inputs(self, batches: tuple[Batch, ...], named: dict[str, Batch]) -> dict[int, Batch]:
        nodes = {node.op.name: node for node in self.plan.graph.inputs if isinstance(node.op, Input)}
        given = dict(zip(nodes, batches, strict=False)) | named
        takes = ", ".join(f"{n}: {node.op.record.__name__}" for n, node in nodes.items() if isinstance(node.op, Input))
        if len(batches) > len(nodes):
            raise WiringError("HF202", f"'{self.plan.name}' takes {len(nodes)} batches ({takes}), got {len(batches)}")
        for name in named:
            if name in list(nodes)[: len(batches)]:
                raise WiringError("HF202", f"'{self.plan.name}' is given its input '{name}' twice")
        for name in given:
            if name not in nodes:
                raise WiringError("HF202", f"'{self.plan.name}' has no input '{name}'; {closest(name, list(nodes))}")
        inputs: dict[int, Batch] = {}
        for name, node in nodes.items():
            if name not in given:
                raise WiringError(
                    "HF203", f"'{self.plan.name}' is stepped without its input '{name}' (it takes {takes})"
                )
            record = node.op.record if isinstance(node.op, Input) else Batch
            if not isinstance(given[name], record):
                got = type(given[name]).__name__
                raise WiringError("HF206", f"input '{name}' of '{self.plan.name}' takes {record.__name__}, got {got}")
            inputs[node.id] = upcast(given[name], record)
        return inputs


class _Step:
    """One step under way: the handles of the values that are still to be read."""

    def __init__(self, plan: Plan, backend: Backend, traffic: Traffic, number: int, sizes: Mapping[Any, int]) -> None:
        self._plan, self._backend, self._traffic, self._number, self._sizes = plan, backend, traffic, number, sizes
        self._handles: dict[tuple[int, int], Any] = {}
        self._left = self._readers()
        self._filtered: dict[int, tuple[int, ...]] = {}
        self._known: dict[Any, int] = dict(sizes)  # and, once a filter has run, how many rows it keeps
        self._behind = filters_behind(plan.graph)
        self._stays = set(self._read_to_the_end())

    def _readers(self) -> dict[tuple[int, int], int]:
        """How many steps are still going to read each chunk; the dataflow's result reads until the end."""
        left: dict[tuple[int, int], int] = {}
        for ranks in self._traffic.remote.values():
            for pair in {pair for rank in ranks for pair in rank}:
                left[pair] = left.get(pair, 0) + 1
        return left

    def _read_to_the_end(self) -> Iterator[int]:
        """The values that the result is read from, and those that somebody who waits for a filter may read."""
        graph = self._plan.graph
        yield from (node for ref in graph.output.refs() for node, _ in result_origins(graph, ref))
        yield from (n for s in self._plan.steps if self._behind[s.node] for n, _ in columns_read(graph, s.node))
        yield from (n for _, keep in masks(graph) for n, _ in origins(graph, keep.node, keep.column or VALUE))

    def run(self, inputs: Mapping[int, Batch]) -> tuple[Any, list[Done]]:
        """The dataflow's result, and who did what when."""
        self._backend.begin()
        for node, batch in inputs.items():
            self._handles[node, 0] = self._backend.put(pack(batch))
        acknowledged: list[Any] = []
        for step in self._plan.steps:
            self._filter(self._behind[step.node])
            remote = self._traffic.remote[step.node]
            if step.custom is not None:
                acknowledged += self._through_driver(step, remote)
            else:
                sources = [{pair: self._handles[pair] for pair in rank} for rank in remote]
                exports = self._traffic.exports.get(step.node, ())
                outcomes = self._backend.run(step, self._order(step, exports), sources, None)
                acknowledged += [done for done, _ in outcomes]
                by_rank = dict(zip(step.ranks, outcomes, strict=True))
                for chunk, holder in enumerate(step.layout.holders):
                    if exports:
                        self._handles[step.node, chunk] = by_rank[holder][1]
            self._drop(remote)
        done = self._backend.done(acknowledged)
        for step in self._plan.steps:
            _agree(step, done)
        output = self._plan.graph.output
        self._filter(frozenset().union(*(self._behind[ref.node] for ref in output.refs())))
        return self._result(output), done

    def _filter(self, filters: frozenset[int]) -> None:
        """Learn which rows these filters keep, from the columns that say so."""
        graph = self._plan.graph
        for node, keep in masks(graph):
            if node.id not in filters or node.id in self._filtered:
                continue
            stored = dict.fromkeys(n for n, _ in origins(graph, keep.node, keep.column or VALUE))
            layouts = self._plan.layouts
            reader = self._reader([(n, chunk) for n in stored for chunk in range(layouts[n].chunks)])
            column = reader.column(keep.node, keep.column or VALUE, 0, reader.table.rows[keep.node])
            group = node.op.group if isinstance(node.op, Filter) else 1
            self._filtered[node.id] = kept_rows(column.tolist(), group, f"'filter' in line {node.span.line}")
            kept = rows_in(self._plan.inference.values[node.id])
            self._known |= dict.fromkeys(kept.atoms if kept is not None else (), len(self._filtered[node.id]) // group)
            hold(self._plan, self._known)
            self._traffic = traffic(self._plan, row_table(self._plan, self._sizes, self._filtered))

    def _order(self, step: Step, exports: tuple[str, ...]) -> Order:
        return Order(self._plan.name, step.node, self._number, self._traffic.table, exports)

    def _drop(self, remote: Sequence[Sequence[tuple[int, int]]]) -> None:
        for pair in {pair for rank in remote for pair in rank if pair[0] not in self._stays}:
            self._left[pair] -= 1
            if not self._left[pair]:
                del self._handles[pair]

    def _reader(self, pairs: Sequence[tuple[int, int]]) -> Reader:
        pieces = dict(zip(pairs, self._backend.get([self._handles[pair] for pair in pairs]), strict=True))
        return Reader(self._plan.graph.nodes, self._plan.layouts, self._traffic.table, lambda n, c: pieces[n, c])

    def _through_driver(self, step: Step, remote: Sequence[Sequence[tuple[int, int]]]) -> list[Any]:
        """A step whose protocol is a pair of functions: they get whole values, here."""
        reader = self._reader(list({pair for rank in remote for pair in rank}))
        values = {}
        for name, operand in step.arguments:
            port = step.signature.port(name)
            if port is not None:
                rows = reader.table.rows.get(operand.node, 0) if isinstance(operand, Ref) else 0
                values[name] = reader.value(operand, port.type, 0, rows)
        group = _GroupView(self._plan.mesh(step.role or ""))
        direct = _dispatched(step, group, values)
        outcomes = self._backend.run(step, self._order(step, ()), [{} for _ in step.ranks], direct)
        pieces = self._backend.get([piece for _, piece in outcomes])
        outputs = [unpack(step.signature.returns, piece) for piece in pieces]
        collected = step.custom.collect_fn(group, outputs) if step.custom else None
        check_result(step.label, step.signature.returns, collected, "from its collect function")
        self._handles[step.node, 0] = self._backend.put(pack(collected))
        return [done for done, _ in outcomes]

    def _result(self, output: Output) -> Any:
        value = output.value
        if isinstance(value, tuple):
            parts = [self._result(inner) for inner in value]
            return output.container(*parts) if hasattr(output.container, "_fields") else output.container(parts)
        if isinstance(value, dict):
            return {key: self._result(inner) for key, inner in value.items()}
        if not isinstance(value, Ref):
            return value.value if isinstance(value, Constant) else None
        graph, layouts = self._plan.graph, self._plan.layouts
        stored = dict.fromkeys(node for node, _ in result_origins(graph, value))
        reader = self._reader([(node, chunk) for node in stored for chunk in range(layouts[node].chunks)])
        return reader.value(value, result_type(graph, value), 0, reader.table.rows.get(value.node, 0))


def _agree(step: Step, done: Sequence[Done]) -> None:
    """Refuse a value of which only some ranks made a column, though nobody may have read more than one part of it."""
    made = {d.rank: d.absent for d in done if d.label == step.label and d.rank in step.layout.holders}
    if step.custom is not None or step.layout.lists:
        return
    for name in optional_columns(step.signature.returns):
        what = f"column '{name}' of '{step.label}'" if name else f"the result of '{step.label}'"
        try:
            there(
                what, [None if name in absent else name for absent in made.values()], [f"rank {rank}" for rank in made]
            )
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
