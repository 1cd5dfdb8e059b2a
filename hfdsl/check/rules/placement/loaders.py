"""Loaders: do the batches of an experiment, as their function is annotated, fit the records that the dataflow takes?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.report import CheckError, Report
from hfdsl.errors import DefinitionError
from hfdsl.graph.annotations import annotation_text, type_hints
from hfdsl.graph.program import Graph, Input
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.batches import Batch

CONTAINERS = (dict, list, set, str, bytes, int, float)
"""The types that are never a batch of a step."""


def batches_fit(context: Context) -> Iterator[Finding]:
    """The loader of an experiment is called without arguments, and gives the records that the dataflow takes."""
    if context.loader is not None:
        graph = context.program.graph
        for finding in loader_findings(graph, context.loader, context.call_site):
            yield with_suggestions(context, finding, _other_loaders(graph, context.loader))


def _other_loaders(graph: Graph, loader: Callable[..., Any]) -> Iterator[Suggestion]:
    from hfdsl.check.repair import declarations  # late: most programs need none

    records = [node.op.record for node in graph.inputs if isinstance(node.op, Input)]
    yield from declarations.other_loaders(_function(loader), lambda candidate: _gives(_return_type(candidate), records))


def _gives(returns: Any, records: list[type[Batch]]) -> bool:
    """Whether a return type is certainly that of batches of these records."""
    batches = isinstance(get_origin(returns), type) and issubclass(get_origin(returns), Iterable)
    return batches and any(kind in get_args(returns) for kind in records[:1]) and _problem(returns, records) is None


def loader_findings(graph: Graph, loader: Callable[..., Any], experiment: Span) -> Iterator[Finding]:
    """Findings for a loader that cannot be called, or whose annotation differs from the inputs of a step."""
    function, inputs = _function(loader), [node.op for node in graph.inputs if isinstance(node.op, Input)]
    name = getattr(function, "__name__", type(loader).__name__)
    takes = ", ".join(f"{node.name}: {node.record.__name__}" for node in inputs) or "no records"
    places = (
        Label(experiment, "in this experiment"),
        Label(definition_span(function)),
        Label(graph.span, f"takes {takes}"),
    )
    subject = f"the batches of '{graph.name}': '{name}'"
    if needed := required_parameters(loader):
        message = f"{subject} is called without arguments, but needs {', '.join(map(repr, needed))}"
        yield Finding("HF542", message, places[0], places[1:], notes=("pass the arguments: lambda: loader(...)",))
    elif inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
        message = f"{subject} is an async function, but steps take their batches with a plain for"
        yield Finding("HF542", message, places[1], (places[2], places[0]), notes=("make it a plain def",))
    elif problem := _problem(_return_type(function), [node.record for node in inputs]):
        yield Finding("HF542", f"{subject} {problem}", places[1], (places[2], places[0]))


def require_fit(graph: Graph, loader: Callable[..., Any], experiment: Span) -> None:
    """Raise the findings about a loader.

    Raises:
        CheckError: with HF542.
    """
    if findings := tuple(loader_findings(graph, loader, experiment)):
        raise CheckError(Report(graph.name, findings))


def _function(loader: Any) -> Any:
    """The annotated function behind a loader."""
    while isinstance(loader, functools.partial):
        loader = loader.func
    if isinstance(loader, type):
        return getattr(loader, "__iter__", loader)
    return loader if hasattr(loader, "__name__") else type(loader).__call__


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters without which a function cannot be called; none of one that has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in anything
    ]


def _return_type(function: Any) -> Any:
    try:
        return type_hints(function, "the loader").get("return", Any)
    except DefinitionError:
        return Any


def _problem(returns: Any, records: list[type[Batch]]) -> str | None:
    """Describe how a return type differs from batches of these records; None if it does not, or may not."""
    origin, inner = get_origin(returns), get_args(returns)
    if isinstance(returns, type) and issubclass(returns, Batch):
        return f"returns one {returns.__name__} where batches are expected, one a step: yield it, or return a list"
    if not isinstance(origin, type) or not issubclass(origin, Iterable) or issubclass(origin, dict) or not inner:
        return None
    entries = [kind for kind in inner if kind is not ...] if origin is tuple else inner[:1]
    return next((problem for kind in entries if (problem := _differs(kind, records))), None)


def _records(count: int) -> str:
    return "one record" if count == 1 else f"tuples of {count} records"


def _differs(kind: Any, records: list[type[Batch]]) -> str | None:
    """Describe how one batch differs from the records of a step."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        problems = [_differs(option, records) for option in inner]
        return None if None in problems else problems[0]
    if origin is tuple and ... not in inner:
        parts: tuple[Any, ...] = inner
    elif isinstance(kind, type) and issubclass(kind, Batch):
        parts = (kind,)
    elif records and (origin or kind) in CONTAINERS:
        return f"gives {annotation_text(kind)} where a step takes {_records(len(records))}"
    else:
        return None
    if len(parts) != len(records):
        return f"gives {_records(len(parts))} where a step takes {len(records)}" if records else None
    for part, record in zip(parts, records, strict=True):
        if (get_origin(part) or part) in CONTAINERS:
            return f"gives {annotation_text(part)} where {record.__name__} is taken"
        if (
            isinstance(part, type)
            and issubclass(part, Batch)
            and not (issubclass(part, record) or issubclass(record, part))
        ):
            return f"gives {part.__name__} where {record.__name__} is taken"
    return None
