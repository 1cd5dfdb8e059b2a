"""Tracing: from a dataflow to its graph, with the mistakes in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hfdsl.errors import DefinitionError
from hfdsl.graph.annotations import bounds_of_parameters, type_hints
from hfdsl.graph.binding import out_of_bounds
from hfdsl.graph.misuses import Misuse, MisuseKind
from hfdsl.graph.parameters import optional_role, present_role
from hfdsl.graph.program import Constant, ErrorValue, Input, Node, Output
from hfdsl.graph.pythonic import uncalled
from hfdsl.graph.signatures import RecordType, is_option
from hfdsl.graph.spans import Span, definition_span
from hfdsl.graph.symbolic import Symbolic, SymbolicRole
from hfdsl.graph.traced import TracedGraph
from hfdsl.graph.tracer import Tracer, run_body
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import Batch, schema


def trace(body: Callable[..., Any]) -> TracedGraph:
    """Trace a dataflow. Never raises for a mistake in it: mistakes are in ``Graph.misuses``.

    An annotation of the dataflow that cannot be evaluated (HF109) is the one exception: without it there is no program.
    """
    tracer, roles, span = Tracer([], []), {}, definition_span(body)
    hints = type_hints(body, f"'{body.__name__}'")
    parameters = inspect.signature(body).parameters
    bounds = bounds_of_parameters(body) if any(map(is_option, parameters.values())) else {}
    arguments: dict[str, Any] = {}
    for name, parameter in parameters.items():
        kind = hints.get(name)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            tracer.misuses.append(Misuse(MisuseKind.VARIADIC, span, body.__name__, name))
        elif isinstance(kind, type) and issubclass(kind, Worker):
            roles[name] = kind
            arguments[name] = SymbolicRole(tracer, name, kind)
        elif parameter.default is None and optional_role(kind) is not None:
            arguments[name] = None
        elif (role := present_role(parameter, kind)) is not None:
            roles[name] = role
            arguments[name] = SymbolicRole(tracer, name, role)
        elif isinstance(kind, type) and issubclass(kind, Batch):
            try:
                schema(kind)
            except DefinitionError as error:
                arguments[name] = tracer.record_invalid_declaration(error, definition_span(kind))
            else:
                arguments[name] = tracer.emit(Input(name, kind), {}, RecordType(kind))
        elif is_option(parameter):
            arguments[name] = parameter.default
            outside = out_of_bounds(bounds.get(name), parameter.default, "its default is")
            if outside is not None:
                tracer.misuses.append(Misuse(MisuseKind.BOUNDS, span, body.__name__, name, outside))
        else:
            tracer.misuses.append(_parameter_misuse(body, span, name, hints))
            arguments[name] = Symbolic(tracer, ErrorValue(), None, name)
    nodes = [n if not isinstance(n.op, Input) else Node(n.id, n.op, (), n.result, span) for n in tracer.nodes]
    tracer.nodes[:] = nodes
    result = run_body(tracer, body, arguments)
    output = _output(tracer, result, span)  # may note misuses
    return TracedGraph(
        name=body.__name__,
        nodes=tuple(tracer.nodes),
        roles=roles,
        output=output,
        misuses=tuple(tracer.misuses),
        span=span,
        returns=hints.get("return", inspect.Signature.empty),
        optional_reads=tuple(tracer.optional_reads),
        inner_calls=tuple(tracer.inner_calls),
    )


def _parameter_misuse(body: Callable[..., Any], span: Span, name: str, hints: Mapping[str, Any]) -> Misuse:
    """The misuse of a parameter that is neither a batch, a role nor an option."""
    kind = hints.get(name)
    shown = f"is annotated '{getattr(kind, '__name__', kind)}'" if name in hints else "has no annotation"
    advice = "annotate it with a class derived from hf.Batch or hf.Worker"
    if optional_role(kind):
        advice = "give an optional role the default None"
    facts = shown, f"{advice}; an option stands behind '*' and has a default"
    return Misuse(MisuseKind.PARAMETER, span, body.__name__, name, facts)


def _output(tracer: Tracer, value: Any, span: Span, where: str = "") -> Output:
    if isinstance(value, Symbolic):
        return Output(value._operand)
    if isinstance(value, (tuple, list)):
        return Output(tuple(_output(tracer, inner, span, where) for inner in value), type(value))
    if isinstance(value, dict):
        return Output({key: _output(tracer, inner, span, f" at key {key!r}") for key, inner in value.items()})
    if not isinstance(value, (int, float, str, bool, type(None))):
        shown = f"the role '{value._name}'" if isinstance(value, SymbolicRole) else uncalled(value)
        shown = shown or f"a '{type(value).__name__}'"
        tracer.misuses.append(Misuse(MisuseKind.NOT_A_RESULT, span, f"{shown}{where}"))
    return Output(Constant(value))
