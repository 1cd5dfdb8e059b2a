"""Constructors: do the arguments given to ``hf.place`` fit the role's constructor, by number, name and type?"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from hfdsl.check.constructor_types import constructor_of, misfits, numbers_out_of_bounds, parameters
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import call_at, keyword_span, parameter_span, span_of
from hfdsl.deploy.deployment import Placement
from hfdsl.graph.annotations import annotation_text
from hfdsl.graph.fits import value_text
from hfdsl.graph.spans import Span, definition_span
from hfdsl.types.numbers import brief
from hfdsl.types.similar_names import closest


def _constructor(role: Any) -> Label:
    return Label(definition_span(role.__init__), "its constructor")


def _unknown(signature: inspect.Signature, arguments: Iterable[str]) -> str | None:
    """An argument that a constructor does not have: reported before the one that is missing."""
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    stray = [name for name in arguments if name not in signature.parameters]
    if not stray or not signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    return f"it has no parameter '{stray[0]}'; {closest(stray[0], list(signature.parameters))}"


def constructors_take_arguments(context: Context) -> Iterator[Finding]:
    """The arguments given to ``hf.place`` fit the role's constructor."""
    for name, placement in context.program.placements.items():
        role: type = placement.role
        signature = parameters(role)
        try:
            signature.bind(*placement.args, **placement.kwargs)
        except TypeError as error:
            unknown = _unknown(signature, placement.kwargs)
            bare = [signature.parameters[p].replace(annotation=inspect.Parameter.empty) for p in signature.parameters]
            parameters_alone = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
            yield Finding(
                "HF516",
                f"role '{name}': {placement.role.__name__}{parameters_alone} cannot be built: {unknown or error}",
                Label(placement.span),
                () if placement.role.__init__ is object.__init__ else (_constructor(placement.role),),
            )


def constructors_take_types(context: Context) -> Iterator[Finding]:
    """The arguments given to ``hf.place`` are of the types that the constructor's parameters are annotated with."""
    for name, placement in context.program.placements.items():
        for parameter, annotation, value in misfits(placement):
            where = f"argument '{parameter}' of {placement.role.__name__}"
            declaration = definition_span(constructor_of(placement.role))
            finding = Finding(
                "HF540",
                f"role '{name}': {where} is annotated {annotation_text(annotation)} but is given {value_text(value)}",
                Label(_value_span(placement, parameter)),
                (Label(parameter_span(declaration, parameter.partition(".")[0]), "its parameter"),),
            )
            note = next(_advice(value, annotation), "")
            argument = name, placement, parameter, value, annotation
            yield with_suggestions(context, finding, _as_declared(*argument), note, most=1)


def _as_declared(
    name: str, placement: Placement[Any], path: str, value: object, annotation: Any
) -> Iterator[Suggestion]:
    from hfdsl.check.repair import declarations  # late: most programs need none

    written = _argument_expression(placement, path)
    yield from declarations.built_as_declared(
        declarations.Argument(
            role=name, placement=placement, path=path, value=value, annotation=annotation, written=written
        )
    )


def constructors_take_numbers(context: Context) -> Iterator[Finding]:
    """The numbers that a role is built with, and those in its config objects, are within their declared bounds."""
    for name, placement in context.program.placements.items():
        for path, bounds, value in numbers_out_of_bounds(placement):
            yield Finding(
                "HF940",
                f"role '{name}': '{path}' of {placement.role.__name__} must be {bounds}, and is {brief(value)}",
                Label(_value_span(placement, path)),
                (_constructor(placement.role),),
                notes=(bounds.help,) if bounds.help else (),
            )


def _argument_expression(placement: Placement[Any], path: str) -> ast.expr | None:
    """The expression of a value in the call of ``hf.place``: of ``config.rate`` the 2.0 in ``Config(rate=2.0)``."""
    parameter, *fields = path.split(".")
    node = _argument(placement, parameter)
    for field in fields:
        keywords = {keyword.arg: keyword.value for keyword in node.keywords} if isinstance(node, ast.Call) else {}
        node = keywords.get(field)
    return node


def _value_span(placement: Placement[Any], path: str) -> Span:
    """The place of a value, or of the argument that contains it if it is not written in the call."""
    written = _argument_expression(placement, path)
    return (
        _argument_span(placement, path.partition(".")[0]) if written is None else span_of(placement.span.file, written)
    )


def _argument(placement: Placement[Any], parameter: str) -> ast.expr | None:
    """An argument in the call of ``hf.place``."""
    call = call_at(placement.span)
    if call is None:
        return None
    role: type = placement.role
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    position = list(parameters(role).parameters).index(parameter) + 1  # the first argument is the role
    by_position = call.args[position] if position < len(call.args) else None
    return named.get(parameter, by_position)


def _argument_span(placement: Placement[Any], parameter: str) -> Span:
    """An argument in the call of ``hf.place``; the whole call if the argument is not written there."""
    by_name = keyword_span(placement.span, parameter)
    call = call_at(placement.span)
    role: type = placement.role
    names = list(parameters(role).parameters)
    position = names.index(parameter) + 1  # the first argument is the role
    if by_name != placement.span or call is None or position >= len(call.args):
        return by_name
    return span_of(placement.span.file, call.args[position])


def _advice(value: object, annotation: Any) -> Iterator[str]:
    """For a dict in the place of a dataclass, and a class in the place of an object, how it is written."""
    if not dataclasses.is_dataclass(annotation) or not isinstance(annotation, type):
        return
    if isinstance(value, dict):
        fields = [field.name for field in dataclasses.fields(annotation) if field.init]
        unknown = [key for key in value if key not in fields]
        if unknown:
            yield f"{annotation.__name__} has no field {unknown[0]!r}; {closest(str(unknown[0]), fields)}"
        else:
            yield f"build it: {annotation.__name__}(...)"
    elif value is annotation:
        yield f"call it: {annotation.__name__}(...)"
