"""The tracer: it runs a dataflow on symbolic values, and records calls, operations and mistakes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hfdsl.errors import DefinitionError
from hfdsl.graph.active import Traced, tracing
from hfdsl.graph.binding import bind
from hfdsl.graph.inner import call_inner
from hfdsl.graph.misuses import Misuse, MisuseKind, no_record
from hfdsl.graph.outsiders import refused
from hfdsl.graph.program import (
    Constant,
    ErrorValue,
    Filter,
    FunctionCall,
    InnerCall,
    MiniBatch,
    Node,
    Op,
    Operand,
    Pack,
    Present,
    Queue,
    Ref,
    Repeat,
    RoleCall,
    Take,
)
from hfdsl.graph.signatures import (
    ListType,
    PortType,
    RecordType,
    Signature,
    StaticType,
    deferred,
    in_groups,
    role_signature,
)
from hfdsl.graph.spans import CallSite, Span, column_span, traceback_span, traced_span
from hfdsl.graph.symbolic import Symbolic, SymbolicRole, error_value, is_error
from hfdsl.protocols.queueing import queue_problem
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import no_sync, sync_methods
from hfdsl.types.batches import Batch, is_record, schema
from hfdsl.types.columns import ColumnSpec, ObjSpec
from hfdsl.types.numbers import brief, count_range, is_count
from hfdsl.types.rows import GroupedBy
from hfdsl.types.similar_names import nearest

MAX_STEPS = 100_000
"""A dataflow with more steps has a loop without an end, such as one that waits for a value."""

MAX_DECISIONS = 10_000
"""Likewise one in which Python asks values more often what they are, such as ``while scores.score: ...``."""


@dataclass
class Tracer:
    """Records nodes and misuses; sizes, pools and type errors are the business of later passes."""

    nodes: list[Node]
    misuses: list[Misuse]
    calls: int = 0
    decisions: int = 0
    roles: dict[type, dict[str, Signature | None]] = field(default_factory=dict)
    decided: set[Span] = field(default_factory=set)
    reported: set[tuple[object, ...]] = field(default_factory=set)
    optional_reads: list[tuple[Span, str, PortType]] = field(default_factory=list)
    containers: dict[int, Any] = field(default_factory=dict)  # by identity, those that were used as one value
    inner_calls: list[InnerCall] = field(default_factory=list)
    within: list[str] = field(default_factory=list)  # the inner dataflows that are being traced, outermost first

    def signatures(self, role: type) -> dict[str, Signature | None]:
        """The role's signatures, read once; None for a method with an invalid declaration, which is then reported."""
        if role not in self.roles:
            self.roles[role] = {name: self._signature(role, name) for name in registered_methods(role)}
        return self.roles[role]

    def _signature(self, role: type, method: str) -> Signature | None:
        try:
            return role_signature(role, method)
        except DefinitionError as error:
            self.record_invalid_declaration(error)
            return None

    def record_invalid_declaration(self, error: DefinitionError, span: Span | None = None) -> Any:
        """Record an invalid declaration, at its own place or at ``span``."""
        place = error.span if isinstance(error.span, Span) else span or traced_span(run_body.__code__)
        place = column_span(place, error.column) if error.column else place
        if not any(m.kind is MisuseKind.DEFINITION and m.subject == error.message for m in self.misuses):
            self.misuses.append(Misuse(MisuseKind.DEFINITION, place, error.message, error.code))
        return error_value(self)

    def record_misuse(
        self, kind: MisuseKind, subject: str, name: str = "", candidates: tuple[str, ...] = (),
        producer: Traced | None = None, signature: Signature | None = None,
    ) -> Any:  # fmt: skip  # one line of optional facts
        """Record a mistake, and continue with a value that fits everywhere."""
        source = producer._operand.node if producer is not None and isinstance(producer._operand, Ref) else None
        span = traced_span(run_body.__code__)
        helper = span.calls[-1].callee if span.calls else ""
        if kind is MisuseKind.COMPUTE and helper.isidentifier() and helper not in self.within:
            candidates = (helper,)
        misuse = Misuse(
            kind=kind,
            span=span,
            subject=subject,
            name=name,
            candidates=candidates,
            producer=source,
            signature=signature,
        )
        if (identity := _identity(misuse)) not in self.reported:
            self.reported.add(identity)
            self.misuses.append(misuse)
        return error_value(self)

    def count_decision(self) -> None:
        """Count a time that Python asks a value for a number or a truth, which no value has while it is traced.

        Raises:
            DefinitionError: HF610 for a loop that asks forever.
        """
        self.decisions += 1
        if self.decisions > MAX_DECISIONS:
            problem = f"Python has asked values of the dataflow more than {MAX_DECISIONS} times for a truth or a number"
            raise DefinitionError("HF610", f"{problem}: a loop here does not end")

    def is_first_decision(self) -> bool:
        """Whether Python has not asked for a truth at this place before: a ``while`` ends after one iteration."""
        place = traced_span(run_body.__code__)
        is_first = place not in self.decided
        self.decided.add(place)
        return is_first

    def record_outsider(self, access: str, role: type) -> Any:
        """Record that the dataflow calls or constructs a worker that is not one of its parameters."""
        return self.record_misuse(MisuseKind.OUTSIDER, access, role.__name__)

    def emit(self, op: Op, arguments: Mapping[str, Any], result: PortType) -> Any:
        """Append a node and return its symbolic value."""
        if len(self.nodes) >= MAX_STEPS:
            del self.nodes[MAX_STEPS // 100 :]  # the loop is reported; further iterations would add nothing
            raise DefinitionError("HF610", f"more than {MAX_STEPS} steps were traced: a loop here does not end")
        operands = [(name, self.operand(value)) for name, value in arguments.items()]
        node = Node(len(self.nodes), op, tuple(operands), result, traced_span(run_body.__code__))
        self.nodes.append(node)
        if isinstance(result, StaticType) and result.annotation in (None, type(None)):
            return None
        return Symbolic(self, Ref(node.id), result, node.label)

    def operand(self, value: Any) -> Operand:
        """An argument as an operand of the graph."""
        if isinstance(value, Symbolic):
            if value._tracer is self:
                return value._operand
            self.record_misuse(MisuseKind.FOREIGN, value._shown)
            return ErrorValue()
        if isinstance(value, (list, tuple, dict)):
            entries = value.values() if isinstance(value, dict) else value
            if any(isinstance(entry, Symbolic) for entry in entries):
                if not self.is_known_container(value):
                    self.record_misuse(MisuseKind.CONTAINER, type(value).__name__)
                return ErrorValue()
        return Constant(value)

    def call_role(self, role: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A role method is called."""
        if kind := deferred(signature.body):
            text = f"'{role}.{signature.name}' is {kind}, and a plan takes what a call returns: make it a plain def"
            return self.record_invalid_declaration(DefinitionError("HF121", text), signature.span)
        arguments = bind(self, signature, f"{role}.{signature.name}", args, kwargs)
        self.calls += 1
        return self.emit(RoleCall(role, signature, self.calls - 1), arguments, signature.result)

    def call_function(
        self, read_signature: Callable[[], Signature], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A function is called; ``read_signature`` gives its signature."""
        try:
            signature = read_signature()
        except DefinitionError as error:
            return self.record_invalid_declaration(error)
        arguments = bind(self, signature, signature.name, args, kwargs)
        if isinstance(signature.rows, GroupedBy):
            parameter = signature.rows.parameter
            group = arguments.get(parameter, inspect.signature(signature.body).parameters[parameter].default)
            if group is not inspect.Parameter.empty and not is_count(group):
                return self._bad_count(f"'{parameter}' of '{signature.name}'", group)
            signature = in_groups(signature, group if is_count(group) else 1)
        self.calls += 1
        return self.emit(FunctionCall(signature, self.calls - 1), arguments, signature.result)

    def call_dataflow(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A dataflow is called within this one: its nodes become this one's."""
        self.within.append(body.__name__)
        try:
            return call_inner(self, body, args, kwargs)
        finally:
            self.within.pop()

    def record_inner_call(self, signature: Signature, values: Mapping[str, Any]) -> None:
        """Record a call of another dataflow with its values, roles by name, and plain numbers and strings."""
        operands = ((name, _inner_operand(value)) for name, value in values.items())
        arguments = tuple((name, operand) for name, operand in operands if operand is not None)
        self.inner_calls.append(InnerCall(signature, arguments, traced_span(run_body.__code__)))

    def record_wrong_return(self, signature: Signature, expected: str, shown: str) -> None:
        """Record that an inner dataflow returns another type than it declares."""
        place = replace(signature.span, calls=_with_call(traced_span(run_body.__code__), signature.name))
        self.misuses.append(Misuse(MisuseKind.RETURNED, place, signature.name, candidates=(expected, shown)))

    def repeat(self, batch: Any, times: Any) -> Any:
        """``hf.repeat`` on a symbolic record."""
        if not is_count(times):
            return self._bad_count("repeat", times)
        return self._of_rows(Repeat(times), batch, "repeat")

    def minibatches(self, batch: Any, count: Any) -> tuple[Any, ...]:
        """``hf.minibatches`` on a symbolic record."""
        if not is_count(count):
            self._bad_count("minibatches", count)
            return (error_value(self),)
        if not isinstance(batch, Symbolic) or not isinstance(batch._type, RecordType):
            return (self._not_rows(batch, "minibatches"),)
        parts = [self.emit(MiniBatch(i, count), {"batch": batch}, batch._type) for i in range(count)]
        shown = f"minibatch of {batch._shown}"  # the same for all: a mistake in the loop's body is reported once
        return tuple(Symbolic(self, part._operand, part._type, shown) for part in parts)

    def filter(self, batch: Any, keep: Any, group: Any) -> Any:
        """``hf.filter`` on a symbolic record."""
        if not is_count(group):
            return self._bad_count("filter", group)
        return self._of_rows(Filter(group), batch, "filter", keep=keep)

    def take(self, batch: Any, rows: Any, fill: bool) -> Any:
        """``hf.take`` and ``hf.fill`` on a symbolic record."""
        name = "fill" if fill else "take"
        if not is_count(rows):
            return self._bad_count(name, rows)
        return self._of_rows(Take(rows, fill), batch, name)

    def _of_rows(self, op: Op, batch: Any, operation: str, **operands: Any) -> Any:
        """Append an operation on the rows of a record."""
        if not isinstance(batch, Symbolic) or not isinstance(batch._type, RecordType):
            return self._not_rows(batch, operation)
        return self.emit(op, {"batch": batch, **operands}, batch._type)

    def queue(self, batch: Any, rows: Any, group: Any, lag: Any, late: Any) -> Any:
        """``hf.queue`` on a symbolic record."""
        for value in (batch, rows, group, lag, late):
            if is_error(value):
                return value
        shown = (_in_words(value) if isinstance(value, Symbolic) else value for value in (rows, group, lag, late))
        if (problem := queue_problem(*shown)) is not None:
            return self.record_invalid_declaration(DefinitionError("HF740", f"hf.queue: {problem}"))
        if not isinstance(batch, Symbolic) or not isinstance(batch._type, RecordType):
            return self._not_rows(batch, "queue")
        if self.within and lag is not None:
            text = f"'{self.within[-1]}' is called by another dataflow, which its hf.queue would split into stages"
            return self.record_invalid_declaration(DefinitionError("HF741", text))
        return self.emit(Queue(rows, group, lag, late), {"batch": batch}, batch._type)

    def merge(self, record: type[Batch], parts: tuple[Any, ...]) -> Any:
        """``hf.merge`` of symbolic records: each column of ``record`` from the one part that has it."""
        if not is_record(record):
            return self.record_invalid_declaration(DefinitionError("HF206", no_record(record)))
        columns: dict[str, Any] = {}
        owners: dict[str, Any] = {}
        fields, spare = schema(record).fields, schema(record).spare
        for part in parts:
            if not isinstance(part, Symbolic) or not isinstance(part._type, RecordType):
                return self._not_rows(part, "merge")
            names = schema(part._type.record).fields
            for owner in dict.fromkeys(owners[name] for name in names if name in owners and name in fields):
                shared = [name for name in names if name in fields and owners.get(name) is owner]
                both = [owner._shown, part._shown, *(["same"] if owner._operand == part._operand else [])]
                self.record_misuse(MisuseKind.MERGE_TWICE, record.__name__, "', '".join(shared), tuple(both), part)
            columns |= {name: getattr(part, name) for name in names}
            owners |= dict.fromkeys(names, part)
        for name in fields:
            if name not in columns and name not in spare:
                others = tuple(column for column in columns if column not in fields)
                self.record_misuse(MisuseKind.MERGE_MISSING, record.__name__, name, others)
        return self.pack(record, columns)

    def pack(self, record: type[Batch], columns: Mapping[str, Any]) -> Any:
        """Build a record from columns; optional ones that are left out are absent."""
        values = dict.fromkeys(schema(record).spare) | dict(columns)
        return self.emit(Pack(record), {n: values[n] for n in schema(record).fields if n in values}, RecordType(record))

    def present(self, column: Any) -> Any:
        """``hf.present`` on a symbolic column."""
        kind = column._type if isinstance(column, Symbolic) else None
        if isinstance(kind, (ColumnSpec, ObjSpec)):
            # Two calls on one column give one value, so that filters by it keep the same rows.
            again = (n for n in self.nodes if isinstance(n.op, Present) and n.batch == column._operand)
            certain = replace(kind, optional=False)
            if kind.optional and (node := next(again, None)) is not None:
                return Symbolic(self, Ref(node.id), certain, node.label)
            return self.emit(Present(), {"column": column}, certain) if kind.optional else column
        if is_error(column):
            return column
        return self.record_misuse(MisuseKind.NOT_A_COLUMN, _in_words(column))

    def can_sync(self, source: Any, target: Any) -> bool:
        """Whether ``hf.sync`` has a state to transfer from one to the other."""
        for value in (source, target):
            if not isinstance(value, SymbolicRole):
                self.record_misuse(MisuseKind.NO_SYNC, "sync takes roles of the dataflow", f"got {_in_words(value)}")
                return False
        if sync_methods(source._role, target._role):
            return True
        self.record_misuse(
            MisuseKind.NO_SYNC, f"sync({source._name}, {target._name})", no_sync(source._role, target._role)
        )
        return False

    def mark_load_in_flight(self, method: object) -> None:
        """Note that the load which was called last takes effect between the tokens of a method."""
        node = self.nodes[-1]
        if isinstance(node.op, RoleCall):
            name = method if isinstance(method, str) else brief(method)
            self.nodes[-1] = replace(node, op=replace(node.op, during=name))

    def _bad_count(self, subject: str, value: object) -> Any:
        if is_error(value):
            return value
        return self.record_misuse(MisuseKind.BAD_COUNT, subject, _in_words(value), (count_range(value),))

    def is_known_container(self, value: Any) -> bool:
        """Whether a container of values, such as the results of an inner dataflow, was already used as one value.

        Each is one mistake, wherever it is used.
        """
        is_known = id(value) in self.containers
        if isinstance(value, (list, tuple, dict)):
            self.containers[id(value)] = value
        return is_known

    def _not_rows(self, value: Any, operation: str) -> Any:
        if is_error(value):
            return value
        if self.is_known_container(value):
            return error_value(self)
        if isinstance(value, Symbolic) and isinstance(value._operand, Ref) and value._operand.column is not None:
            return self.record_misuse(MisuseKind.NOT_A_RECORD, operation, value._shown)
        if isinstance(value, Symbolic):
            kind, shown = value._type, f"'{value._shown}', which is {value._type}"
            if isinstance(kind, ListType) and isinstance(kind.inner, RecordType):
                return self.record_misuse(MisuseKind.LIST_OF_ROWS, operation, shown, producer=value)
        else:
            shown = f"role '{value._name}'" if isinstance(value, SymbolicRole) else brief(value)
        return self.record_misuse(MisuseKind.NOT_ROWS, operation, shown)


def _inner_operand(value: Any) -> Operand | None:
    """The operand for a value, role or number passed to an inner dataflow; None for containers of them."""
    if isinstance(value, Symbolic):
        return value._operand
    if isinstance(value, SymbolicRole):
        return Constant(value._name)
    return Constant(value) if isinstance(value, (int, float, str)) else None


def _with_call(call: Span, callee: str) -> tuple[CallSite, ...]:
    """The calls that lead to a place in a function: those to its call, and this one."""
    return (*call.calls, CallSite(callee, replace(call, calls=())))


def _identity(misuse: Misuse) -> tuple[object, ...]:
    """The key of a misuse, reported once: a loop repeats a line, and ``list(x)`` iterates, then calls ``len(x)``.

    All lines of a helper that compute are one mistake: it lacks a decorator.
    """
    if misuse.kind is MisuseKind.COMPUTE and misuse.candidates:
        return misuse.kind, misuse.span.calls[-1]
    return misuse.kind, misuse.span, "" if misuse.kind is MisuseKind.CONTROL else misuse.name


def _in_words(value: object) -> str:
    return f"'{value._shown}'" if isinstance(value, Symbolic) else brief(value)


def run_body(tracer: Tracer, body: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run a dataflow's body under a tracer; an error in it becomes a misuse, and the result None."""
    token = tracing.set(tracer)
    parameters = inspect.signature(body).parameters
    by_position = [name for name in arguments if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY]
    positional = [arguments[name] for name in by_position]
    named = {name: value for name, value in arguments.items() if name not in by_position}
    try:
        with refused(body, tracer.record_outsider):
            return body(*positional, **named)
    except DefinitionError as error:
        tracer.record_invalid_declaration(error, traceback_span(error, run_body.__code__))
        return None
    except Exception as error:  # noqa: BLE001  # the user's own code, on values that a mistake may have made strange
        if not tracer.misuses:
            span = traceback_span(error, run_body.__code__)
            tracer.misuses.append(Misuse(MisuseKind.RAISED, span, body.__name__, _error_text(error)))
        return None
    finally:
        tracing.reset(token)


def _error_text(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"calls go deeper than Python's recursion limit of {sys.getrecursionlimit()}, see sys.setrecursionlimit"
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, AttributeError) and error.name and (near := nearest(error.name, dir(error.obj))):
        text += f"; did you mean '{near}'?"
    return text
