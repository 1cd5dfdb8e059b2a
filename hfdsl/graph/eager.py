"""Eager runs: a dataflow called with real workers, each a world of one rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hfdsl.errors import DefinitionError, WiringError
from hfdsl.graph.annotations import type_hints
from hfdsl.graph.body_checks import check_result, check_widths, inputs_unchanged
from hfdsl.graph.parameters import optional_role
from hfdsl.graph.signatures import LIST_KINDS, ListType, PortType, RecordType, Signature, role_signatures
from hfdsl.graph.value_checks import check_finite_arguments, check_finite_result, raw_columns
from hfdsl.protocols.call import Call, in_call, running_call, seeded
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import Batch, schema, upcast
from hfdsl.types.columns import Column, ColumnSpec, Obj, ObjSpec
from hfdsl.types.similar_names import closest


@dataclass
class EagerRun:
    """One eager call of a dataflow: numbers its calls as a trace would, so that random streams are the same.

    ``outer`` is the call within whose body the dataflow itself was called, if any.
    """

    dataflow: str
    seed: int
    step: int
    outer: Call | None = None
    calls: int = 0

    @contextmanager
    def next_call(self, arguments: Mapping[str, Any]) -> Iterator[None]:
        """The next call, on the rows of its first argument that has rows."""
        rows = next((n for n in map(_rows, arguments.values()) if n is not None), None)
        call = Call(
            seed=self.seed,
            step=self.step,
            node=self.calls,
            rank=0,
            first_row=0,
            row_count=rows,
            dataflow=self.dataflow,
            version=self.step,
            rows_version=self.step,
        )
        self.calls += 1
        with in_call(call), seeded(call):
            yield


T = TypeVar("T")

_run: ContextVar[EagerRun | None] = ContextVar("hfdsl_eager", default=None)


@contextmanager
def eager_run(dataflow: str, seed: int, step: int) -> Iterator[None]:
    """Within this, calls of roles and functions are numbered."""
    token = _run.set(EagerRun(dataflow, seed, step, running_call()))
    try:
        yield
    finally:
        _run.reset(token)


def active_run() -> EagerRun | None:
    """The run whose dataflow is at work; None outside of one, and while one of its calls runs a body."""
    run = _run.get()
    return run if run is not None and running_call() is run.outer else None


_observer: ContextVar[list[Any] | None] = ContextVar("hfdsl_observer", default=None)


@contextmanager
def observed_calls() -> Iterator[list[Any]]:
    """Within this, what every call of a dataflow gives, in the order of the calls."""
    values: list[Any] = []
    token = _observer.set(values)
    try:
        yield values
    finally:
        _observer.reset(token)


def observed(value: Any) -> Any:
    """The result of a call, which is reported to the observer."""
    values = _observer.get()
    if values is not None and active_run() is not None:
        values.append(value)
    return value


def _rows(value: Any) -> int | None:
    if isinstance(value, Batch):
        return len(value) if schema(type(value)).row is not None else None
    return len(value._value) if isinstance(value, (Column, Obj)) else None


def call_body(label: str, signature: Signature, body: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Run a body as a plan of one rank does: as the next call of the run, its result held against its declaration."""
    run = active_run()
    check_finite_arguments(label, signature, arguments, "row {}".format)
    with run.next_call(arguments) if run else nullcontext(), inputs_unchanged(label, arguments):
        result = body(**arguments)
    check_result(label, signature.returns, result, "on rank 0")
    check_widths(label, signature, arguments, result, "on rank 0")
    check_finite_result(label, signature, raw_columns(result), "row {}".format)
    return narrowed(signature.returns, result)


def call_arguments(label: str, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by port, each record with the columns that its port declares."""
    parameters = [p for p in inspect.signature(signature.body).parameters.values() if signature.port(p.name)]
    bound = bind(label, inspect.Signature(parameters), args, kwargs)
    for name, value in bound.arguments.items():
        port = signature.port(name)
        if (
            port is not None
            and value is None
            and isinstance(port.type, (ColumnSpec, ObjSpec))
            and not port.type.optional
        ):
            raise WiringError("HF231", f"port '{name}' of '{label}' takes {port.type} and got a column that is absent")
    return {n: narrowed(p.type, v) for n, v in bound.arguments.items() if (p := signature.port(n)) is not None}


def narrowed(kind: PortType, value: Any) -> Any:
    """A record with the columns of its declared class alone, as a plan reads it; any other value unchanged."""
    if isinstance(value, (PerRank, PerStage)):
        inner = kind.inner if isinstance(kind, ListType) else kind
        return type(value)([narrowed(inner, entry) for entry in value])
    if isinstance(kind, RecordType) and isinstance(value, kind.record):
        return upcast(value, kind.record)
    return value


def bind(
    label: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Match arguments to parameters.

    Raises:
        WiringError: HF202 for an argument that there is no parameter for, HF203 for a parameter without an argument.
    """
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = signature.parameters
        for name in kwargs:
            if name not in parameters:
                hint = closest(name, list(parameters))
                raise WiringError("HF202", f"'{label}' has no parameter '{name}'; {hint}") from None
        positional = [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
        if len(args) > len(positional):
            names = ", ".join(n if n in positional else f"{n}=..." for n in parameters) or "none"
            text = f"'{label}' takes {len(positional)} positional arguments, got {len(args)}; its parameters: {names}"
            raise WiringError("HF202", text) from None
        twice = [n for n in positional[: len(args)] if n in kwargs]
        if twice:
            raise WiringError("HF202", f"'{label}' is given '{twice[0]}' twice: by position and by name") from None
        bound = {*positional[: len(args)], *kwargs}
        missing = [n for n, p in parameters.items() if p.default is p.empty and n not in bound]
        if not missing:
            raise WiringError("HF202", f"'{label}': {error}") from None
        text = f"'{label}' is called without its argument {', '.join(map(repr, missing))}"
        raise WiringError("HF203", text) from None


@dataclass(frozen=True, slots=True)
class _SoleGroup:
    """The worker group that an eagerly called worker is: what protocol functions read of a group."""

    workers: tuple[Worker, ...]
    mesh: Mesh = field(default_factory=Mesh)
    world_size: int = 1


class EagerRole:
    """A worker in an eager dataflow: its registered methods go through their protocol's dispatch and collect."""

    def __init__(self, name: str, worker: Worker) -> None:
        self._name, self._worker = name, worker

    def __repr__(self) -> str:
        return f"<role '{self._name}' of class {type(self._worker).__name__}>"

    @property  # type: ignore[misc]  # isinstance(actor, Actor) holds, as it does in a trace
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # read only
        return type(self._worker)

    def __getattr__(self, method: str) -> Any:
        role: type = type(self._worker)
        signatures = role_signatures(role)
        if method not in signatures:
            raise WiringError(
                "HF202", f"role '{role.__name__}' has no method '{method}'; {closest(method, list(signatures))}"
            )
        return lambda *args, **kwargs: observed(self._call(signatures[method], args, kwargs))

    def _call(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        body, label = getattr(self._worker, signature.name), f"{self._name}.{signature.name}"
        arguments = call_arguments(label, signature, args, kwargs)
        registration = signature.registration
        functions = registration.functions if registration else None
        if functions is not None:
            group = _SoleGroup((self._worker,))
            named = {port.name for port in signature.ports if port.keyword_only}
            loose = [name for name in arguments if name not in named]
            split, split_kwargs = functions.dispatch_fn(
                group, *(arguments[n] for n in loose), **{n: v for n, v in arguments.items() if n in named}
            )
            entries = dict(zip(loose, split, strict=False)) | split_kwargs
            result = call_body(label, signature, body, {name: entry[0] for name, entry in entries.items()})
            collected = functions.collect_fn(group, [result])
            check_result(label, signature.returns, collected, "from its collect function")
            return collected
        if signature.per_rank:
            arguments = {n: v[0] if isinstance(v, (list, tuple, PerRank)) else v for n, v in arguments.items()}
        result = call_body(label, signature, body, arguments)  # one rank: every declared split is the whole
        return result if signature.gives == "whole" else LIST_KINDS[signature.gives]([result])


def inner_result(body: Callable[..., Any], result: T) -> T:
    """The result for the caller of an inner dataflow: records with the columns of its annotation, as in a trace."""
    from hfdsl.graph.inner import annotated_types, as_annotated  # late: `import hfdsl` is kept fast

    annotation = annotated_types(body).get("return", Any)
    return as_annotated(annotation, result, _upcast)  # type: ignore[no-any-return]  # of the same type


def _upcast(kind: type, value: Any) -> Any:
    return upcast(value, kind) if isinstance(value, Batch) and isinstance(value, kind) else value


def role_of(worker: Any) -> type:
    """The class of a worker, wrapped for an eager run or not, or of a role in a trace."""
    from hfdsl.graph.symbolic import SymbolicRole  # late: `import hfdsl` is kept fast

    if isinstance(worker, SymbolicRole):
        return worker._role
    return type(worker._worker) if isinstance(worker, EagerRole) else type(worker)


def eager_arguments(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """The dataflow's arguments with workers wrapped as roles.

    Raises:
        WiringError: HF202, HF203 for arguments that are not those of the dataflow, HF206 for values of other types.
    """
    bound = bind(body.__name__, inspect.signature(body), args, kwargs)
    bound.apply_defaults()
    try:
        hints = type_hints(body, f"'{body.__name__}'")
    except DefinitionError:
        hints = {}  # classes of an enclosing function: a plain call needs no types
    for name, value in bound.arguments.items():
        bound.arguments[name] = _argument(f"'{name}' of '{body.__name__}'", name, hints.get(name), value)
    return bound


def _argument(parameter: str, name: str, kind: Any, value: Any) -> Any:
    worker = value._worker if isinstance(value, EagerRole) else value
    kind = kind if value is None else optional_role(kind) or kind
    if isinstance(kind, type) and issubclass(kind, Worker) and not isinstance(worker, kind):
        got = f"the class {value.__name__}: call it" if isinstance(value, type) else type(worker).__name__
        raise WiringError("HF206", f"role {parameter} takes an instance of {kind.__name__}, got {got}")
    if isinstance(kind, type) and issubclass(kind, Batch):
        if not isinstance(value, kind):
            got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise WiringError("HF206", f"input {parameter} takes {kind.__name__}, got {got}")
        return upcast(value, kind)
    return EagerRole(name, worker) if isinstance(worker, Worker) else value
