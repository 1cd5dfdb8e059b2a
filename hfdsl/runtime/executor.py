"""The executor: one process of a plan. It holds one worker of each role, and the values that it made."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hfdsl.errors import HfError, RoleError, WiringError
from hfdsl.graph.guards import check_result, inputs_unchanged, versions
from hfdsl.graph.program import Constant, Ref
from hfdsl.graph.signatures import VALUE, RecordType
from hfdsl.graph.spans import traceback_span
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Piece, Reader, pack
from hfdsl.plan.rows import RowTable, share
from hfdsl.protocols.call import Call, in_call, seeded
from hfdsl.protocols.collectives import Collectives, alone
from hfdsl.protocols.conditions import provisions_of
from hfdsl.protocols.kinds import PerRank
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.types.batches import Batch, own_rows, schema, upcast
from hfdsl.types.columns import MetricSpec


@dataclass(frozen=True, slots=True)
class Done:
    """One rank's part of a step is done; times are seconds since the epoch, ``absent`` the columns it left out."""

    label: str
    rank: int
    start: float
    stop: float
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """What every rank of a step is told: the step, its rows, and which columns of the result leave the process."""

    plan: str
    node: int
    number: int
    table: RowTable
    exports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that stays in the process that made it, with the versions that its tensors had then."""

    maker: str
    columns: Piece
    versions: Mapping[str, int]

    @classmethod
    def of(cls, maker: str, columns: Piece) -> Kept:
        """Keep a value as it is now."""
        return cls(maker, columns, versions(columns))

    def read(self) -> Piece:
        """The value.

        Raises:
            WiringError: HF703 where its maker has changed it since: a reader elsewhere has the old value.
        """
        for name, version in versions(self.columns).items():
            if version != self.versions[name]:
                what = f"column '{name}' of its result" if name else "its result"
                raise WiringError(
                    "HF703", f"{what} was changed after '{self.maker}' had returned it; return a .clone()"
                )
        return self.columns


class Executor:
    """One rank of a process group. ``run`` does this rank's part of a step."""

    def __init__(
        self, plan: Plan, roles: tuple[str, ...], context: RankContext, seed: int, collectives: Collectives | None
    ) -> None:
        self._rank, self._seed = context.rank, seed
        self._deployment = plan.deployment
        self._plans: dict[str, Plan] = {}
        self._steps: dict[tuple[str, int], Step] = {}
        self.add(plan)
        self._store: dict[int, tuple[int, Kept]] = {}
        self._current: tuple[str, int] | None = None
        self._workers = {name: self._build(name, context, collectives) for name in roles}

    def add(self, plan: Plan) -> None:
        """Learn another plan of the same deployment: its steps run on the same workers."""
        self._plans[plan.name] = plan
        self._steps |= {(plan.name, step.node): step for step in plan.steps}

    def _build(self, name: str, context: RankContext, collectives: Collectives | None) -> Any:
        placement = self._deployment[name]
        token = current_rank.set(replace(context, mesh=placement.mesh, collectives=collectives))
        # Not by rank: the replicas of a model start out equal. A role that wants them to differ has ``self.rank``.
        start = Call(self._seed, 0, -1, 0)
        try:
            with seeded(replace(start, node=-1 - sorted(self._deployment).index(name))):
                return placement.role(*placement.args, **placement.kwargs)
        except Exception as error:  # noqa: BLE001  # the user's code may raise anything
            raise _role_error(f"{name}.__init__ ({placement.role.__name__})", self._rank, None, error) from None
        finally:
            current_rank.reset(token)

    def run(
        self, order: Order, pieces: Mapping[tuple[int, int], Piece], direct: Mapping[str, Any] | None = None
    ) -> tuple[Done, Piece | None]:
        """This rank's part of a step: read its rows, run the body, keep the result, give what others read.

        ``direct`` are arguments that a custom dispatch function made for this rank.

        Raises:
            RoleError: HF806 where the body raises.
            WiringError: HF805 where it returns something else than it declares, HF703 where it writes into what it was
                given.
            HfError: HF807 where it waits for peers who never come.
        """
        if (order.plan, order.number) != self._current:
            self._store.clear()  # a step owns its values: nothing of another step is ever read
            self._current = (order.plan, order.number)
        step, plan, start = self._steps[order.plan, order.node], self._plans[order.plan], time.time()
        index = step.ranks.index(self._rank)
        reader = Reader(plan.graph.nodes, plan.layouts, order.table, lambda n, c: self._fetch(n, c, pieces))
        arguments = dict(direct) if direct is not None else _arguments(step, index, reader)
        try:
            columns = self._body(order, step, index, arguments)
        except WiringError as error:  # of what the body did: say where it is written
            raise WiringError(error.code, f"{error.message} ({step.signature.span})") from None
        holds = step.layout.group == step.group and self._rank in step.layout.holders
        if holds and step.keeps:
            self._store[order.node] = (step.layout.holders.index(self._rank), Kept.of(step.label, columns))
        for dead in step.last_reads:
            self._store.pop(dead, None)
        done = Done(step.label, self._rank, start, time.time(), tuple(n for n, v in columns.items() if v is None))
        if step.custom is not None:
            return done, columns
        return done, own_rows({name: columns[name] for name in order.exports}) if holds and order.exports else None

    def _fetch(self, node: int, chunk: int, pieces: Mapping[tuple[int, int], Piece]) -> Piece:
        kept = self._store.get(node)
        return kept[1].read() if kept is not None and kept[0] == chunk else pieces[node, chunk]

    def _body(self, order: Order, step: Step, index: int, arguments: dict[str, Any]) -> dict[str, Any]:
        given = order.table.given.get(step.node)
        chunk = step.chunk_of[index]
        first, last = (given[chunk], given[chunk + 1]) if given else (0, None)
        rows = last - first if last is not None else None
        call = Call(self._seed, order.number, step.call, self._rank, first, rows, order.plan)
        body = step.signature.body if step.role is None else getattr(self._workers[step.role], step.signature.name)
        peers_away = step.role is not None and len(step.ranks) < self._plans[order.plan].mesh(step.role).world_size
        token = alone.set(step.label if peers_away else None)
        with in_call(call), seeded(call), inputs_unchanged(step.label, arguments):
            try:
                result = body(**arguments)
            except RoleError:
                raise
            except Exception as error:  # noqa: BLE001  # the same for its methods
                raise _role_error(step.label, self._rank, order.number, error) from None
            finally:
                alone.reset(token)
        if step.custom is not None or self._rank in step.layout.holders or step.layout.group != step.group:
            check_result(
                step.label, step.signature.returns, result, f"on rank {self._rank}"
            )  # of other ranks nobody looks at the result
        columns = _own_result(step, result)
        for name, there in self._plans[order.plan].presence.get(step.node, {}).items():
            if step.custom is None and self._rank in step.layout.holders and (columns[name] is not None) is not there:
                raise WiringError("HF805", f"{_other_presence(step, name, there)} on rank {self._rank}")
        return columns if step.custom else _real_rows(step, chunk, order.table, columns, self._rank)


def _other_presence(step: Step, name: str, there: bool) -> str:
    said = next(p for p in provisions_of(step.signature.body) if name in (p.columns or (VALUE,)))
    what = f"column '{name}'" if name else "its result"
    says, made = ("there", "left it out") if there else ("absent", "gave it")
    return f"'{step.label}' is declared {said}, by which {what} is {says}, and {made}"


def _own_result(step: Step, result: Any) -> dict[str, Any]:
    """A result as raw columns: those of the declared record alone, and without a history of gradients.

    Gradients do not cross from role to role in separate processes, so they must not within one.
    """
    if isinstance(result, Batch) and isinstance(step.signature.returns, RecordType):
        result = upcast(result, step.signature.returns.record)
    return {n: v.detach() if getattr(v, "requires_grad", False) else v for n, v in pack(result).items()}


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
            rows, (start, stop) = reader.table.rows.get(operand.node, 0), share(reader.table, step, operand, chunk)
            arguments[name] = reader.padded(operand, port.type, start, stop, rows, step.pad)
    return arguments


def _real_rows(step: Step, chunk: int, table: RowTable, columns: dict[str, Any], rank: int) -> dict[str, Any]:
    """The result without the rows that came of padding, after its row count was held against its signature."""
    rows, bounds, given = table.rows.get(step.node), table.bounds.get(step.node), table.given.get(step.node)
    if rows is None or not bounds or rank not in step.layout.holders:
        return columns  # it has no rows, each entry of a list has rows of its own, or nobody looks at it
    part = step.layout.holders.index(rank)
    wanted = expected = bounds[part + 1] - bounds[part]
    taken = given[chunk + 1] - given[chunk] if given else 0
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


def _role_error(what: str, rank: int, number: int | None, error: Exception) -> HfError:
    step = f" in step {number}" if number is not None else ""
    if isinstance(error, HfError) and error.code == "HF807":  # a wait without end is told as such on every backend
        return HfError("HF807", f"'{what}'{step}: {error.message} ({traceback_span(error)})")
    own = error.__traceback__ and error.__traceback__.tb_next  # the first frame is this file's
    trace = "".join(traceback.format_exception(type(error), error, own)).rstrip()
    return RoleError("HF806", f"'{what}' raised on rank {rank}{step}: {type(error).__name__}: {error}\n\n{trace}")
