"""What a dataflow may do besides calling roles: ``function``, ``repeat``, ``minibatches``, ``merge``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from hfdsl.errors import DefinitionError, SizeError, WiringError
from hfdsl.graph.eager import active_run, call_arguments, call_body
from hfdsl.graph.guards import inputs_unchanged
from hfdsl.graph.signatures import Signature, function_signature
from hfdsl.graph.trace import active_tracer
from hfdsl.protocols.register import requirements_of, requires
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import MetricSpec, ObjSpec
from hfdsl.types.rows import Grouped, Independent, IndependentRows, Rows, WholeRows

P = ParamSpec("P")
R = TypeVar("R")
BatchT = TypeVar("BatchT", bound=Batch)


class _Same(Protocol):
    def __call__(self, body: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def function(body: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def function(*, rows: Rows) -> _Same: ...
def function(body: Any = None, /, *, rows: Rows = Independent) -> Any:
    """Make a stateless function a node of the dataflows that call it; it may run wherever its rows already are.

    ``rows`` is a promise about the body: ``Independent`` (output row i depends on input row i alone), ``Grouped(n)``
    (on its group of n consecutive rows) or ``Whole``. It decides how the function may be split; ``hfdsl`` never splits
    beyond it.

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
    if not isinstance(rows, (IndependentRows, WholeRows, Grouped)):
        raise DefinitionError("HF113", f"rows= takes hf.Independent, hf.Whole or hf.Grouped(n), got {rows!r}")

    @functools.cache
    def signature() -> Signature:  # read at first use: annotations may name classes that are defined further down
        written = requirements_of(call)[: len(requirements_of(call)) - len(requirements_of(body))]
        if written:  # @hf.requires above @hf.function
            requires(*written)(body)
        return function_signature(body, rows)

    @functools.wraps(body)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = active_tracer((*args, *kwargs.values()))
        if tracer is not None:
            return tracer.call_function(signature, args, kwargs)
        if active_run() is not None:
            read = signature()
            return call_body(read.name, read, body, call_arguments(read.name, read, args, kwargs))
        given = dict(zip((port.name for port in signature().ports), args, strict=False)) | kwargs
        with inputs_unchanged(body.__name__, given):
            return body(*args, **kwargs)

    return call


def repeat(batch: BatchT, times: int) -> BatchT:
    """Every row ``times`` times in a row: B rows become B*times, in groups of ``times`` consecutive rows.

    Raises:
        SizeError: HF304 where ``times`` is below 1.

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
    if times < 1:
        raise SizeError("HF304", f"repeat takes a count of at least 1, got {times}")
    fields = schema(type(batch)).fields
    columns = {
        name: value
        if isinstance(fields[name], MetricSpec)
        else [row for row in value for _ in range(times)]
        if isinstance(fields[name], ObjSpec)
        else value.repeat_interleave(times, dim=0)
        for name, value in batch.__hf_columns__.items()
    }
    return type(batch)(**columns)


def minibatches(batch: BatchT, count: int) -> tuple[BatchT, ...]:
    """``count`` equal runs of consecutive rows; in a dataflow the loop over them unrolls.

    Raises:
        SizeError: HF310 where ``count`` does not divide the rows.

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
    rows = len(batch)
    if count < 1 or rows % count:
        raise SizeError(
            "HF310", f"{rows} rows of '{type(batch).__name__}' do not split into {count} equal mini-batches"
        )
    size = rows // count
    return tuple(batch[i * size : (i + 1) * size] for i in range(count))


def merge(record: type[BatchT], *parts: Batch) -> BatchT:
    """A record of class ``record`` from the columns of ``parts``: each column from the one part that has it.

    Raises:
        WiringError: HF204 no part has a column, HF205 two parts have it.

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
    columns: dict[str, Any] = {}
    for name in schema(record).fields:
        owners = [part for part in parts if name in schema(type(part)).fields]
        if len(owners) != 1:
            code, found = ("HF205", "two parts have") if owners else ("HF204", "no part has")
            names = ", ".join(f"'{type(part).__name__}'" for part in owners or parts)
            raise WiringError(code, f"merge into '{record.__name__}': {found} column '{name}' ({names})")
        columns[name] = owners[0].__hf_columns__[name]
    return record(**columns)
