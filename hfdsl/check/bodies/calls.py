"""Calls in a body, by their syntax: arguments, defaults, and the functions that a body defines itself."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from hfdsl.check.bodies.names import last_name
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of

NO_GRADIENT: Final = frozenset({"inference_mode", "no_grad"})
"""Names of torch for computing without gradients, as a block or as a decorator."""

GRADIENT: Final = frozenset({"enable_grad", "set_grad_enabled"})
"""Names of torch for computing with gradients within such a block."""

UNPLAIN: Final = (ast.Await, ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)
"""The parts of a function that does more than return a value."""


def call_name(call: ast.Call) -> str:
    """The callee as the source spells it."""
    return ast.unparse(call.func)


def bound_arguments(formula: Any, call: ast.Call) -> Mapping[str, ast.expr]:
    """The arguments of a call by parameter; none if ``*`` or ``**`` hides which are which."""
    if any(isinstance(argument, ast.Starred) for argument in call.args) or any(k.arg is None for k in call.keywords):
        return {}
    try:
        named = {str(keyword.arg): keyword.value for keyword in call.keywords}
        arguments: Mapping[str, ast.expr] = inspect.signature(formula).bind_partial(*call.args, **named).arguments
    except (TypeError, ValueError):
        return {}
    return arguments


def filled(partial: ast.Call, call: ast.Call) -> ast.Call:
    """The call of a function that ``functools.partial`` has given some arguments, with all of them."""
    function, *arguments = partial.args
    overridden = {keyword.arg for keyword in call.keywords}
    kept = [keyword for keyword in partial.keywords if keyword.arg not in overridden]
    return ast.copy_location(ast.Call(function, [*arguments, *call.args], [*kept, *call.keywords]), call)


def dim_argument(call: ast.Call) -> ast.expr | None:
    """The ``dim`` of a call of torch that takes tensors first, such as ``torch.stack``; None if it is left out."""
    named = next((keyword.value for keyword in call.keywords if keyword.arg == "dim"), None)
    return call.args[1] if len(call.args) > 1 else named


def is_without_gradient(expression: ast.expr) -> bool:
    """Whether a context, or a decorator, is that of torch for computing without gradients."""
    return last_name(expression.func if isinstance(expression, ast.Call) else expression) in NO_GRADIENT


def enables_gradient(block: Sequence[ast.stmt]) -> bool:
    """Whether something in a block may compute with gradients although the block does not."""
    return any(last_name(node) in GRADIENT for statement in block for node in nodes_of(statement))


def defaults(definition: Function) -> Iterator[tuple[str, ast.expr]]:
    """The parameters of a function that have a default, each with it."""
    positional = (*definition.args.posonlyargs, *definition.args.args)
    with_default = positional[len(positional) - len(definition.args.defaults) :]
    yield from zip((argument.arg for argument in with_default), definition.args.defaults, strict=True)
    for argument, default in zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


@lru_cache(maxsize=1024)
def local_function(name: str, node: ast.FunctionDef | ast.Lambda) -> Mapping[str, Function]:
    """By its name a function that a body defines, or a lambda as one; nothing for a decorated one, or a generator."""
    if isinstance(node, ast.Lambda):
        returned = ast.copy_location(ast.Return(node.body), node.body)
        definition = ast.copy_location(ast.FunctionDef(name, node.args, [returned], []), node)
    else:
        definition = node
    is_plain = all(map(is_without_gradient, definition.decorator_list))
    is_whole = is_plain and not any(isinstance(part, UNPLAIN) for part in nodes_of(definition))
    return {name: definition} if is_whole else {}
