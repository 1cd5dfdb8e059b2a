"""The executor: one process of a plan. It holds one worker of each role, and the values that it made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import HfError, RoleError, WiringError
from hfdsl.graph.guards import check_result, inputs_unchanged
from hfdsl.graph.program import Constant, Ref
from hfdsl.graph.signatures import VALUE, RecordType
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader, pack
from hfdsl.plan.rows import RowTable, argument_rows
from hfdsl.plan.segments import Task
from hfdsl.protocols.call import Call, in_call, seed_streams, seeded
from hfdsl.protocols.collectives import Collectives, without_peers
from hfdsl.protocols.conditions import provisions_of
from hfdsl.protocols.kinds import PerRank
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.runtime.failing import role_error
from hfdsl.runtime.parking import Parking
from hfdsl.runtime.store import Content, Kept, Store, bytes_of, slice_payload
from hfdsl.types.batches import Batch, schema, upcast
from hfdsl.types.columns import MetricSpec
from hfdsl.types.ragged import Jagged

if TYPE_CHECKING:
    from hfdsl.runtime.recording import Recorder
    from hfdsl.runtime.saving import Writing


LAST = 16
"""Folders of states, beside the newest, of which a process can still say what it has written."""


@dataclass(frozen=True, slots=True)
class Done:
    """One rank's part of a step is done; times are seconds since the epoch, ``absent`` the columns it left out."""

    label: str
    rank: int
    start: float
    stop: float
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """One rank's part of a segment has run.

    ``given`` are the bytes of its payloads, in the order of its task; ``held`` those of the values that the process
    holds now, ``most`` the most that it has held in this step so far.
    """

    group: str
    rank: int
    start: float
    stop: float
    done: tuple[Done, ...]
    given: tuple[int, ...]
    held: int
    most: int

    def packed(self) -> list[Any]:
        """As plain values."""
        done = [[one.label, one.rank, one.start, one.stop, list(one.absent)] for one in self.done]
        return [self.group, self.rank, self.start, self.stop, done, list(self.given), self.held, self.most]

    @classmethod
    def unpacked(cls, values: list[Any]) -> Ran:
        """Back again."""
        group, rank, start, stop, done, given, held, most = values
        parts = tuple(Done(label, of, first, last, tuple(absent)) for label, of, first, last, absent in done)
        return cls(group, rank, start, stop, parts, tuple(given), held, most)


@dataclass(frozen=True, slots=True)
class Order:
    """What every rank of a segment is told: which plan, which of its routes, which segment, of which step of the run.

    Routes with a number below zero hold for one step alone.
    """

    plan: str
    routes: int
    segment: int
    number: int

    def packed(self) -> list[Any]:
        """As plain values."""
        return [self.plan, self.routes, self.segment, self.number]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a rank has to know to follow an order, told with the first such order."""

    task: Task
    table: RowTable


def built(deployment: Deployment, role: str, context: RankContext, seed: int) -> Any:
    """The worker of a role, for a rank."""
    placement = deployment[role]
    # Not by rank: the replicas of a model start out equal. A role that wants them to differ has ``self.rank``.
    start = Call(seed, 0, -1 - sorted(deployment).index(role), 0)
    token = current_rank.set(context)
    try:
        with seeded(start):
            return placement.role(*placement.args, **placement.kwargs)
    finally:
        current_rank.reset(token)


class Executor:
    """One rank of a process group. ``run`` does this rank's part of a segment.

    With ``own_process`` nobody else in this process draws random numbers, so their streams need not be put back.
    """

    def __init__(
        self,
        plan: Plan,
        group: str,
        roles: tuple[str, ...],
        context: RankContext,
        seed: int,
        collectives: Collectives | None,
        own_process: bool = False,
    ) -> None:
        self._own_process = own_process
        self._group, self._rank, self._seed, self._collectives = group, context.rank, seed, collectives
        self._deployment = plan.deployment
        self._plans: dict[str, Plan] = {}
        self._steps: dict[tuple[str, int], Step] = {}
        self._parking = Parking(context.rank)
        self.add(plan)
        self.store = Store()
        self._lessons: dict[tuple[str, int, int], tuple[Lesson, Reader]] = {}
        self._current: tuple[str, int] | None = None
        self._recorder: Recorder | None = None
        self._writing: dict[str, Writing] = {}
        self._workers: dict[str, Any] = {}
        for name in roles:
            self._workers[name] = self._build(name, context, collectives)
            self._parking.built(name, self._workers[name])  # before the next one takes its memory

    def add(self, plan: Plan) -> None:
        """Learn another plan of the same deployment: its steps run on the same workers."""
        self._plans[plan.name] = plan
        self._parking.add(plan)
        self._steps |= {(plan.name, step.node): step for step in plan.steps}

    def _build(self, name: str, context: RankContext, collectives: Collectives | None) -> Any:
        placement = self._deployment[name]
        context = replace(context, mesh=placement.mesh, collectives=collectives)
        try:
            return built(self._deployment, name, context, self._seed)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            raise role_error(f"{name}.__init__ ({placement.role.__name__})", self._rank, None, error) from None

    def save(self, folder: str, behind: bool) -> None:
        """Begin to write what each worker keeps into a folder; steps may come meanwhile where it is ``behind`` them.

        Raises:
            RoleError: HF806 where ``state()`` raises.
            CheckpointError: HF908 where a role that trains has no state, or one that cannot be kept.
        """
        from hfdsl.runtime.saving import Writing, taken

        states = {name: self._asked(name, "state", taken, behind) for name in self._workers}
        self._writing = dict(list(self._writing.items())[-LAST:])  # of those that are written it knows the names alone
        self._writing[folder] = Writing(folder, {name: one for name, one in states.items() if one is not None})

    def saved(self, folder: str, wait: float) -> dict[str, dict[str, str]] | None:
        """By role, where what is being written to a folder is; None where it is not done after ``wait`` seconds.

        Raises:
            CheckpointError: HF906 where a file cannot be written.
        """
        return self._writing[folder].files(wait)

    def load(self, folder: str, saved: Mapping[str, Mapping[str, str]]) -> None:
        """Give workers back what was saved.

        Raises:
            RoleError: HF806 where ``load_state()`` raises.
            CheckpointError: HF905 where a worker's state is not there, HF906 where a file is damaged.
        """
        from hfdsl.runtime.saving import load_worker

        for name in self._workers:
            self._asked(name, "load_state", load_worker, folder, saved.get(name))

    def record(self, folder: str | None) -> None:
        """Write the calls of the next steps into a recording; with None no more."""
        if folder is None:
            self._recorder = None
            return
        from hfdsl.runtime.recording import Recorder

        self._recorder = Recorder(folder, self._rank)

    def _asked(self, role: str, method: str, ask: Callable[..., Any], *rest: Any) -> Any:
        worker = self._workers[role]
        try:
            with self._parking.all_of(role) if hasattr(worker, method) else nullcontext():
                return ask(role, worker, *rest)
        except HfError:
            raise
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            raise role_error(f"{role}.{method} ({type(worker).__name__})", self._rank, None, error) from None

    def hold(self, node: int, maker: str, value: Any) -> None:
        """Keep what is no step's result here."""
        self.store.keep(node, 0, Kept.of(maker, _ordinary(pack(value))))

    def begin(self, plan: str, number: int) -> None:
        """A step of a plan begins, if it has not begun."""
        if (plan, number) != self._current:
            self.store.clear()
            self._parking.begin(plan, number)
            self._lessons = {key: learnt for key, learnt in self._lessons.items() if key[1] >= 0}
            self._current = (plan, number)

    def run(
        self,
        order: Order,
        lesson: Lesson | None,
        payloads: Sequence[Content],
        direct: Mapping[str, Any] | None = None,
    ) -> tuple[Ran, list[Content]]:
        """This rank's part of a segment: take in payloads, run the bodies, keep what is read here, give the rest.

        ``direct`` are arguments that a custom dispatch function made for this rank; its result is given as it is.

        Raises:
            RoleError: HF806 where a body raises.
            WiringError: HF805 where it returns something else than it declares, HF703 where it writes into what it was
                given.
            HfError: HF807 where it waits for peers who never come.
        """
        start = time.time()
        self.begin(order.plan, order.number)
        name = (order.plan, order.routes, order.segment)
        if lesson is not None:
            plan = self._plans[order.plan]
            self._lessons[name] = lesson, Reader(plan.graph.nodes, plan.layouts, lesson.table, self.store.read)
        lesson, reader = self._lessons[name]
        task = lesson.task
        for content in payloads:
            self.store.bring(content)
        leaving = {cut.node for payload in task.sends for cut in payload.slices}
        made: dict[int, Kept] = {}
        done = []
        for node in task.steps:
            step, began = self._steps[order.plan, node], time.time()
            index = step.ranks.index(self._rank)
            self._parking.before(step, order.number)
            arguments = dict(direct) if direct is not None else _arguments(step, index, reader)
            try:
                columns = self._body(order, step, index, arguments, lesson.table)
            except WiringError as error:  # of what the body did: say where it is written
                raise WiringError(error.code, f"{error.message} ({step.signature.span})") from None
            if node in task.keeps or node in leaving or step.custom:
                made[node] = Kept.of(step.label, columns)
            if node in task.keeps:
                self.store.keep(node, step.layout.holders.index(self._rank), made[node])
            for dead in task.drops.get(node, ()):
                self.store.drop(dead)
            self._parking.after(order.plan, node, order.number)
            absent = tuple(name for name, value in columns.items() if value is None)
            done.append(Done(step.label, self._rank, began, time.time(), absent))
        self.store.check_loans()
        for payload in task.sends:
            if payload.direct:
                self.store.lend(payload, made)
        gives = [_as_it_is(made)] if direct is not None else [slice_payload(payload, made) for payload in task.sends]
        given, store = tuple(map(bytes_of, gives)), self.store
        return Ran(
            group=self._group,
            rank=self._rank,
            start=start,
            stop=time.time(),
            done=tuple(done),
            given=given,
            held=store.held,
            most=store.most,
        ), gives

    def _body(self, order: Order, step: Step, index: int, arguments: dict[str, Any], table: RowTable) -> dict[str, Any]:
        row_split = table.splits.get(step.node)
        chunk = step.chunk_of[index]
        rows = row_split.chunk_size if row_split else None
        balanced = row_split.positions(chunk) if row_split else None
        begin = balanced[0] if balanced else chunk * (rows or 0)
        call = Call(
            seed=self._seed,
            step=order.number,
            node=step.call,
            rank=self._rank,
            first_row=begin,
            row_count=rows,
            dataflow=order.plan,
            balanced_rows=balanced,
        )
        body = step.signature.body if step.role is None else getattr(self._workers[step.role], step.signature.name)
        if self._recorder is not None:
            body = self._recorder.around(step.label, call, body)
        peers: AbstractContextManager[None] = nullcontext()
        if self._collectives and step.role and len(step.ranks) < self._deployment[step.role].mesh.world_size:
            peers = without_peers((self._collectives, self._rank), step.label)
        if self._own_process:
            seed_streams(call)
        streams = nullcontext() if self._own_process else seeded(call)
        with in_call(call), streams, peers, inputs_unchanged(step.label, arguments):
            try:
                result = body(**arguments)
            except RoleError:
                raise
            except Exception as error:  # noqa: BLE001  # the same for its methods
                raise role_error(step.label, self._rank, order.number, error) from None
        if step.custom is not None or self._rank in step.layout.holders or step.layout.group != step.group:
            check_result(
                step.label, step.signature.returns, result, f"on rank {self._rank}"
            )  # of other ranks nobody looks at the result
        columns = _own_result(step, result)
        for name, there in self._plans[order.plan].presence.get(step.node, {}).items():
            if step.custom is None and self._rank in step.layout.holders and (columns[name] is not None) is not there:
                raise WiringError("HF805", f"{_other_presence(step, name, there)} on rank {self._rank}")
        return columns if step.custom else _real_rows(step, chunk, table, columns, self._rank)


def _other_presence(step: Step, name: str, there: bool) -> str:
    said = next(p for p in provisions_of(step.signature.body) if name in (p.columns or (VALUE,)))
    what = f"column '{name}'" if name else "its result"
    says, made = ("there", "left it out") if there else ("absent", "gave it")
    return f"'{step.label}' is declared {said}, by which {what} is {says}, and {made}"


def _own_result(step: Step, result: Any) -> dict[str, Any]:
    """A result as raw columns: those of the declared record alone, in ordinary tensors."""
    if isinstance(result, Batch) and isinstance(step.signature.returns, RecordType):
        result = upcast(result, step.signature.returns.record)
    return _ordinary(pack(result))


def _ordinary(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same memory in tensors that have no history of gradients and can be trained on.

    Neither a history nor the mark of ``torch.inference_mode`` crosses from role to role in separate processes, so they
    must not within one.
    """
    return {name: _as_if_brought(value) for name, value in columns.items()}


def _as_if_brought(value: Any) -> Any:
    if isinstance(value, Jagged):
        return Jagged(_as_if_brought(value.values), _as_if_brought(value.offsets)) if value.is_inference() else value
    if getattr(value, "requires_grad", False):
        return value.detach()
    if hasattr(value, "untyped_storage") and value.is_inference():
        return value.new_empty(0).set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    return value


def _arguments(step: Step, index: int, reader: Reader) -> dict[str, Any]:
    chunk = step.chunk_of[index]
    arguments: dict[str, Any] = {}
    for name, operand in step.arguments:
        port = step.signature.port(name)
        if isinstance(operand, Constant) or port is None:
            value = operand.value if isinstance(operand, Constant) else None
            arguments[name] = value[index] if step.per_rank and isinstance(value, (list, tuple, PerRank)) else value
        elif step.per_rank and isinstance(operand, Ref):
            arguments[name] = reader.entry(operand.node, index, port.type)
        elif isinstance(operand, Ref):
            arguments[name] = reader.value(operand, port.type, argument_rows(reader.table, step, operand, chunk))
    return arguments


def _real_rows(step: Step, chunk: int, table: RowTable, columns: dict[str, Any], rank: int) -> dict[str, Any]:
    """The result without the rows that came of padding, after its row count was held against its signature."""
    rows, bounds, row_split = table.rows.get(step.node), table.bounds.get(step.node), table.splits.get(step.node)
    if rows is None or not bounds or rank not in step.layout.holders:
        return columns  # it has no rows, each entry of a list has rows of its own, or nobody looks at it
    part = step.layout.holders.index(rank)
    wanted = expected = bounds[part + 1] - bounds[part]
    taken = row_split.chunk_size if row_split else 0
    if taken and step.rows_from is not None and step.layout.chunks == step.chunks:
        expected = taken * rows // table.rows[step.rows_from]
    why = f"its {taken} input rows make {expected}" if taken else f"the program has {expected} there"
    kinds = (
        schema(step.signature.returns.record).fields
        if isinstance(step.signature.returns, RecordType)
        else {VALUE: step.signature.returns}
    )
    real = {}
    for name, value in columns.items():
        if isinstance(kinds[name], MetricSpec) or value is None:
            real[name] = value
            continue
        if len(value) != expected:
            raise WiringError(
                "HF805",
                f"'{step.label}' returned {len(value)} row{'s' * (len(value) != 1)} of {step.signature.returns} on "
                f"rank {rank}, where {why}",
            )
        real[name] = value[:wanted] if wanted != expected else value
    return real


def _as_it_is(made: Mapping[int, Kept]) -> Content:
    return {
        ColumnSlice(node, 0, name, None): value for node, kept in made.items() for name, value in kept.columns.items()
    }
