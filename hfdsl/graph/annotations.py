"""The annotations of a function, evaluated: types for its ports and its result, and the bounds of its numbers.

``annotation_text`` writes one as a user does.
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType, SimpleNamespace
from typing import Annotated, Any, get_args, get_origin

from hfdsl.errors import DefinitionError
from hfdsl.types.bounds import Within, bounds_of
from hfdsl.types.column_annotations import REDUCTION_LITERALS, is_marked_finite


def type_hints(body: Callable[..., Any], where: str) -> dict[str, Any]:
    """The annotations of a function as objects.

    Raises:
        DefinitionError: HF109 if one cannot be evaluated.
    """
    try:
        annotations = dict(_annotations(body))
        if not any(map(_is_annotated, annotations.values())):
            return annotations
        marked = {name: annotation for name, annotation in annotations.items() if _has_finite(annotation)}
        return typing.get_type_hints(body, localns=REDUCTION_LITERALS) | marked
    except DefinitionError:
        raise
    except (NameError, AttributeError, TypeError, ValueError, LookupError, SyntaxError) as error:
        raise DefinitionError(
            "HF109", f"{where}: cannot evaluate an annotation ({error}); define the class or dim at module level"
        ) from None


def bounds_of_parameters(body: Callable[..., Any]) -> dict[str, Within]:
    """The bounds that the annotations of a function declare, by parameter; errors as for ``type_hints``.

    >>> def discounted(rewards: list[float], gamma: typing.Annotated[float, Within(at_least=0, at_most=1)]) -> None: ...
    >>> str(bounds_of_parameters(discounted)["gamma"])
    'at least 0 and at most 1'
    """
    bounds = {name: bounds_of(annotation) for name, annotation in _annotations(body).items()}
    return {name: within for name, within in bounds.items() if within is not None}


def annotation_text(annotation: Any) -> str:
    """An annotation as a user writes it.

    >>> annotation_text(tuple[Within, ...]), annotation_text(int | None)
    ('tuple[Within, ...]', 'int | None')
    """
    text = getattr(annotation, "__name__", "") if isinstance(annotation, type) and not get_args(annotation) else ""
    return text or re.sub(r"\b(?:\w+\.)+(?=\w)", "", repr(annotation))


def _annotations(body: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of a function as objects, with what ``Annotated`` adds.

    Texts are evaluated here, since typing compiles each of them every time, a fifth of the time of a trace.
    """
    annotations, scope = getattr(body, "__annotations__", {}), getattr(inspect.unwrap(body), "__globals__", None)
    if scope is not None and not getattr(body, "__type_params__", ()):
        with suppress(NameError, AttributeError, TypeError, ValueError, LookupError, SyntaxError):  # raised below
            values = {
                name: eval(_compiled(annotation), scope) if isinstance(annotation, str) else annotation
                for name, annotation in annotations.items()
            }
            if all(value is None or isinstance(value, type) or get_origin(value) for value in values.values()):
                evaluated = SimpleNamespace(__annotations__=values)
                return typing.get_type_hints(evaluated, scope, REDUCTION_LITERALS, include_extras=True)
    return typing.get_type_hints(body, localns=REDUCTION_LITERALS, include_extras=True)


@functools.lru_cache(maxsize=1024)
def _compiled(annotation: str) -> CodeType:
    return compile(annotation, "<annotation>", "eval")


def _has_finite(annotation: Any) -> bool:
    return is_marked_finite(annotation) or any(map(_has_finite, get_args(annotation)))


def _is_annotated(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated or any(map(_is_annotated, get_args(annotation)))
