"""Steps of a dataflow besides calls of roles: functions, and operations on rows such as ``repeat`` and ``filter``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from hfdsl.errors import DefinitionError, SizeError, WiringError
from hfdsl.graph.active import active_tracer
from hfdsl.graph.body_checks import inputs_unchanged
from hfdsl.graph.eager import active_run, call_arguments, call_body, observed, role_of
from hfdsl.graph.misuses import no_record
from hfdsl.graph.signatures import Signature, deferred, function_signature
from hfdsl.graph.spans import caller_span
from hfdsl.protocols.conditions import PROVISIONS, REQUIREMENTS
from hfdsl.protocols.filtering import kept_rows, taken_rows
from hfdsl.protocols.queueing import Late, queue_problem
from hfdsl.protocols.state import no_sync, not_in_flight, sync_methods
from hfdsl.protocols.worker import Worker
from hfdsl.types.arguments import takes
from hfdsl.types.batches import Batch, is_record, schema
from hfdsl.types.columns import Column, MetricSpec, Obj, bool_
from hfdsl.types.dims import Dim
from hfdsl.types.joining import picked_rows, repeated_rows
from hfdsl.types.numbers import brief, count_range, is_count
from hfdsl.types.rows import Grouped, GroupedBy, Independent, IndependentRows, RowDependence, WholeRows

P = ParamSpec("P")
R = TypeVar("R")
ColumnT = TypeVar("ColumnT", bound=Column[Any, *tuple[Any, ...]] | Obj[Any, Any])
BatchT = TypeVar("BatchT", bound=Batch)
Row = TypeVar("Row")


SIGNATURE = "__hf_signature__"
"""The attribute under which ``function`` leaves what reads the signature."""


class _SameSignature(Protocol):
    def __call__(self, body: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def function(body: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def function(*, rows: RowDependence | GroupedBy) -> _SameSignature: ...
@takes(DefinitionError, "HF118", "hf.function")
def function(body: Any = None, /, *, rows: RowDependence | GroupedBy = Independent) -> Any:
    """Make a stateless function a node of the dataflows that call it; it may run wherever its rows already are.

    ``rows`` is a promise about the body: ``Independent`` (output row i depends on input row i alone), ``Grouped(n)``
    (on its group of n consecutive rows) or ``Whole``. It decides how the function may be split; ``hfdsl`` never splits
    beyond it. With ``GroupedBy("group")`` the size of groups is the parameter ``group: int``.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> @hf.function(rows=hf.Grouped(2))
    ... def centre(scores: Scores) -> Scores:
    ...     groups = scores.reward.tensor.view(-1, 2)
    ...     return Scores(reward=(groups - groups.mean(1, keepdim=True)).flatten())
    """
    if body is None:
        return functools.partial(function, rows=rows)
    if not callable(body):
        raise DefinitionError("HF118", f"@hf.function takes a function, got {body!r}; rows= is a keyword")
    if kind := deferred(body):
        raise DefinitionError("HF121", f"'{body.__name__}' is {kind}: a function under @hf.function is a plain def")
    if not isinstance(rows, (IndependentRows, WholeRows, Grouped, GroupedBy)):
        raise DefinitionError("HF113", f"rows= takes hf.Independent, hf.Whole or hf.Grouped(n), got {rows!r}")

    @functools.cache
    def signature() -> Signature:  # read at first use: annotations may name classes that are defined further down
        for condition in (REQUIREMENTS, PROVISIONS):
            if condition in vars(call):  # @hf.requires above @hf.function
                setattr(body, condition, vars(call)[condition])
        return function_signature(body, rows)

    @functools.wraps(body)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = active_tracer((*args, *kwargs.values()))
        if tracer is not None:
            return tracer.call_function(signature, args, kwargs)
        if active_run() is not None:
            declared = signature()
            arguments = call_arguments(declared.name, declared, args, kwargs)
            return observed(call_body(declared.name, declared, body, arguments))
        arguments = dict(zip((port.name for port in signature().ports), args, strict=False)) | kwargs
        with inputs_unchanged(body.__name__, arguments):
            return body(*args, **kwargs)

    setattr(call, SIGNATURE, signature)
    return call


def repeat(batch: BatchT, times: int) -> BatchT:
    """Repeat each row ``times`` times: B rows become B*times, in groups of ``times`` consecutive rows.

    Raises:
        SizeError: HF304 if ``times`` is below 1.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> hf.repeat(Questions(text=["a", "b"]), 2).text.objects
    ['a', 'a', 'b', 'b']
    """
    tracer = active_tracer((batch, times))
    if tracer is not None:
        return tracer.repeat(batch, times)  # type: ignore[no-any-return]  # a symbolic record stands for a record
    _check("repeat", batch, times)
    return _with_rows(batch, lambda column: repeated_rows(column, times))


def minibatches(batch: BatchT, count: int) -> tuple[BatchT, ...]:
    """Split a batch into ``count`` equal runs of consecutive rows; in a dataflow, the loop over them unrolls.

    Raises:
        SizeError: HF304 if ``count`` is below 1, HF310 if it does not divide the number of rows.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> [part.text.objects for part in hf.minibatches(Questions(text=["a", "b", "c", "d"]), 2)]
    [['a', 'b'], ['c', 'd']]
    """
    tracer = active_tracer((batch, count))
    if tracer is not None:
        return tracer.minibatches(batch, count)
    _check("minibatches", batch, count)
    rows = len(batch)
    if rows % count:
        raise SizeError(
            "HF310", f"{rows} rows of '{type(batch).__name__}' do not split into {count} equal mini-batches"
        )
    size = rows // count
    return tuple(batch[i * size : (i + 1) * size] for i in range(count))


def filter(batch: BatchT, keep: bool_[Row], *, group: int = 1) -> BatchT:  # noqa: A001  # hf.filter is the field's word
    """The rows for which ``keep`` is true, in order; their number is known only at run time.

    ``group`` consecutive rows are kept or dropped together, so the result has complete groups. A method that splits
    its rows accepts such a record if ``group`` is a multiple of the number of chunks, after ``hf.take`` or
    ``hf.fill``, or if it is registered with ``pad=``. Records filtered by the same column keep the same rows.

    Raises:
        SizeError: HF304 if ``group`` is below 1, HF313 if ``keep`` would split a group.

    >>> import hfdsl as hf
    >>> import torch
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> keep = hf.bool_(torch.tensor([True, False, True]))
    >>> hf.filter(Questions(text=["a", "b", "c"]), keep).text.objects
    ['a', 'c']
    """
    tracer = active_tracer((batch, keep, group))
    if tracer is not None:
        return tracer.filter(batch, keep, group)  # type: ignore[no-any-return]  # a symbolic record stands for a record
    _check("filter", batch, group)
    if not isinstance(keep, Column) or str(keep.tensor.dtype) != "torch.bool" or keep.tensor.shape != (len(batch),):
        got = f"{keep.tensor.dtype} of shape {tuple(keep.tensor.shape)}" if isinstance(keep, Column) else repr(keep)
        raise WiringError("HF206", f"filter takes one truth value (hf.bool_) for each of {len(batch)} rows, got {got}")
    return _rows_of(batch, kept_rows(keep.tensor.tolist(), group, "filter"))


def take(batch: BatchT, rows: int) -> BatchT:
    """The first ``rows`` rows; after a filter, this makes their number known before launch.

    Raises:
        SizeError: HF304 if ``rows`` is below 1, HF321 if there are fewer.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> hf.take(Questions(text=["a", "b", "c"]), 2).text.objects
    ['a', 'b']
    """
    tracer = active_tracer((batch, rows))
    if tracer is not None:
        return tracer.take(batch, rows, fill=False)  # type: ignore[no-any-return]  # as above
    _check("take", batch, rows)
    return _rows_of(batch, taken_rows(len(batch), rows, fill=False, subject="take"))


def fill(batch: BatchT, rows: int) -> BatchT:
    """The first ``rows`` rows; if there are fewer, they repeat from the first.

    Raises:
        SizeError: HF304 if ``rows`` is below 1, HF321 if there is no row to repeat.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> hf.fill(Questions(text=["a", "b", "c"]), 5).text.objects
    ['a', 'b', 'c', 'a', 'b']
    """
    tracer = active_tracer((batch, rows))
    if tracer is not None:
        return tracer.take(batch, rows, fill=True)  # type: ignore[no-any-return]  # as above
    _check("fill", batch, rows)
    return _rows_of(batch, taken_rows(len(batch), rows, fill=True, subject="fill"))


def queue(
    batch: BatchT,
    *,
    rows: int | type[Dim] | None = None,
    group: int = 1,
    lag: int | None = None,
    late: Late | None = None,
) -> BatchT:
    """A queue that splits a dataflow into two stages, which run independently: a producer and a reader of ``batch``.

    ``lag`` is the worst-case staleness of the rows that the reader gets: the number of updates from their dispatch to
    the update that trains on them. ``late`` says what happens to groups of ``group`` rows that would exceed it: the
    reader waits for them in order of dispatch (``"wait"``), they are dropped (``"drop"``), dropped and dispatched
    again (``"refill"``), or trained with a mask of zeros (``"mask"``). ``rows`` is the size of the reader's batch, if
    it differs from what a step puts in.

    Without a lag it is a synchronous edge. Called with a real record, it returns that record.

    Raises:
        DefinitionError: HF740 for invalid arguments.
        WiringError: HF206 if ``batch`` is not a record.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> hf.queue(Questions(text=["a", "b"]), lag=4, late="wait").text.objects
    ['a', 'b']
    """
    tracer = active_tracer((batch, rows, group, lag, late))
    if tracer is not None:
        return tracer.queue(batch, rows, group, lag, late)  # type: ignore[no-any-return]  # as above
    if (problem := queue_problem(rows, group, lag, late)) is not None:
        raise DefinitionError("HF740", f"hf.queue: {problem}")
    _check("queue", batch)
    return batch


def sync(source: Worker, *targets: Worker, during: str | None = None) -> None:
    """Send the weights of ``source`` to roles that hold copies of them, such as an actor's to its rollout engines.

    This sends every state that the source exports (``@hf.exports``) and a target loads (``@hf.loads``). Each state is
    exported once for all targets.

    By default, weights arrive between calls. With ``during="generate"`` they are sent in flight: calls of
    ``generate`` that are running in another stage load them between two tokens, and continue their responses. A
    target declares that it can do so: ``@hf.loads("policy", during="generate")``.

    Raises:
        WiringError: HF707 if they share no state, HF753 if a target cannot take weights ``during`` this method.

    >>> import hfdsl as hf
    >>> class Actor(hf.Worker):
    ...     @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    ...     @hf.exports("policy")
    ...     def weights(self) -> dict[str, float]:
    ...         return {"bias": 0.5}
    >>> class Engine(hf.Worker):
    ...     @hf.register(hf.Dispatch.ONE_TO_ALL)
    ...     @hf.loads("policy")
    ...     def load(self, weights: dict[str, float]) -> None:
    ...         self.weights = weights
    >>> engine = Engine()
    >>> hf.sync(Actor(), engine)
    >>> engine.weights
    {'bias': 0.5}
    """
    tracer = active_tracer(())
    if tracer is not None:
        targets = tuple(target for target in targets if tracer.can_sync(source, target))
    exported: dict[str, Any] = {}
    for target in targets:
        pairs = sync_methods(role_of(source), role_of(target))
        if not pairs:
            raise WiringError("HF707", f"sync: {no_sync(role_of(source), role_of(target))}")
        for export, load in pairs:
            if tracer is None and during is not None and (why := not_in_flight(role_of(target), load, during)):
                raise WiringError("HF753", f"sync: {role_of(target).__name__} cannot take weights in flight: {why}")
            if export not in exported:
                exported[export] = getattr(source, export)()
            getattr(target, load)(exported[export])
            if tracer is not None and during is not None:
                tracer.mark_load_in_flight(during)


def _check(operation: str, batch: object, count: object = 1) -> None:
    """Check the arguments of an operation as tracing does.

    Raises:
        SizeError: HF304 if ``count`` is not a whole number of at least 1.
        WiringError: HF206 if ``batch`` is not a record.
    """
    if not is_count(count):
        raise SizeError("HF304", f"{operation} takes {count_range(count)}, got {brief(count)}")
    if not isinstance(batch, Batch):
        raise WiringError("HF206", f"{operation} takes a record, got {brief(batch)}")


def _rows_of(batch: BatchT, rows: Sequence[int]) -> BatchT:
    return _with_rows(batch, lambda column: picked_rows(column, rows))


def _with_rows(batch: BatchT, change: Callable[[Any], Any]) -> BatchT:
    """The record with other rows of its columns; metrics and absent columns are unchanged."""
    fields = schema(type(batch)).fields
    columns = {
        name: value if isinstance(fields[name], MetricSpec) or value is None else change(value)
        for name, value in batch.__hf_columns__.items()
    }
    return type(batch)(**columns)


def merge(record: type[BatchT], *parts: Batch) -> BatchT:
    """Build a ``record`` from the columns of ``parts``, each column from the one part that has it.

    A column that is optional in ``record``, with the default None, is absent if no part has it.

    Raises:
        WiringError: HF204 if no part has a column, HF205 if two parts have it, HF206 if ``record`` is no class of
            records, HF231 if a column is absent and required.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Answers(hf.Batch):
    ...     answer: hf.Obj[str, B]
    >>> class Both(Questions):
    ...     answer: hf.Obj[str, B]
    >>> hf.merge(Both, Questions(text=["6*7"]), Answers(answer=["42"])).answer.objects
    ['42']
    """
    tracer = active_tracer(parts)
    if tracer is not None:
        return tracer.merge(record, parts)  # type: ignore[no-any-return]  # a symbolic record stands for a record
    if not is_record(record):
        raise WiringError("HF206", no_record(record))
    for part in parts:
        _check("merge", part)
    columns: dict[str, Any] = {}
    for name in schema(record).fields:
        owners = [part for part in parts if name in schema(type(part)).fields]
        if not owners and name in schema(record).spare:
            continue
        if len(owners) != 1:
            code, owned_by = ("HF205", "two parts have") if owners else ("HF204", "no part has")
            names = ", ".join(f"'{type(part).__name__}'" for part in owners or parts)
            raise WiringError(code, f"merge into '{record.__name__}': {owned_by} column '{name}' ({names})")
        columns[name] = owners[0].__hf_columns__[name]
    return record(**columns)


def present(column: ColumnT | None) -> ColumnT:
    """Assert that an optional column is present: ``f32[B, R] | None`` becomes ``f32[B, R]``.

    In a dataflow, the check refutes the assertion if it knows that the column is absent; otherwise a run tests it.

    Raises:
        WiringError: HF231 if the column is absent.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Answers(hf.Batch):
    ...     text: hf.Obj[str, B]
    ...     hint: hf.Obj[str, B] | None = None
    >>> hf.present(Answers(text=["42"], hint=hf.Obj(["6*7"])).hint).objects
    ['6*7']
    """
    tracer = active_tracer((column,))
    if tracer is not None:
        return tracer.present(column)  # type: ignore[no-any-return]  # a symbolic column stands for a column
    if column is None:
        raise WiringError("HF231", f"hf.present at {caller_span()} got a column that is absent")
    return column
