"""Updates of policies, interpreted: the losses that a user's method certainly minimizes.

A worked example::

    def update(self, experience):
        loss = -(ratio * experience.advantage.tensor).mean()
        loss.backward()                                          a loss: a surrogate of sign -1
        self.optimizer.step()                                    an optimizer of torch, which minimizes

Rules read the signs of terms from this. So nothing is known of a method without an optimizer step, or whose role has
code that may turn the sign of a gradient; and where a number of a role is negative, it may be a coefficient.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hfdsl.check.bodies.interpretation import RowGroups
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.known_values import constructor_arguments
from hfdsl.check.bodies.names import last_name, value_of
from hfdsl.check.bodies.objects import KeptValue, given_values
from hfdsl.check.bodies.optimizers import steps_of
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode, code_of
from hfdsl.check.bodies.syntax import definition_of
from hfdsl.check.dependences import trains
from hfdsl.check.losses import terms
from hfdsl.check.losses.coefficients import may_have_negative_coefficients
from hfdsl.check.losses.collected import Collected
from hfdsl.check.losses.interpretation import PolicyInterpretation
from hfdsl.check.losses.rates import has_negative_rate, rates
from hfdsl.check.losses.terms import PolicyValue, Quantity, Several
from hfdsl.check.program import Program, call_numbers, derived_once, signature_of
from hfdsl.check.syntax_trees import nodes_of
from hfdsl.graph.program import Constant, Node, RoleCall
from hfdsl.graph.signatures import Signature

TURNS: Final = frozenset({"maximize", "neg_", "register_hook", "save_for_backward"})
"""Names in code that may turn the sign of a gradient."""

ACCUMULATION: Final = re.compile(r"(num_)?grad(ient)?_acc(um|umulation)?(_steps)?")
"""The names of how many gradients are added up."""

SURROGATE: Final = (Quantity("log_prob"), Quantity("old"), Quantity("advantage"), terms.POSITIVE)
"""The arguments of ``PolicyLoss.surrogate``: log-probs, old ones, advantages and a mask."""


class InterpretedSurrogate(NamedTuple):
    """The surrogate that a user's loss returns, what was collected on the way, and the numbers of its attributes."""

    value: PolicyValue
    collected: Collected
    numbers: Mapping[str, float]


class Minimizer(NamedTuple):
    """A user's method that certainly minimizes, and what is known of its role: objects that it is given, and numbers.

    ``numbers`` are those that a call passes, by parameter; where a number of the role is negative, it may be a
    coefficient.
    """

    signature: Signature
    role: type
    method: str
    numbers: tuple[tuple[str, PolicyValue], ...]
    objects: tuple[tuple[str, KeptValue], ...]
    has_negative_numbers: bool


@derived_once
def minimizer(program: Program, node: Node) -> Minimizer | None:
    """The method that a call runs, if it is a user's that takes optimizer steps; None if it may not minimize."""
    signature = signature_of(node)
    if not isinstance(node.op, RoleCall) or signature is None or signature.is_ready_made:
        return None
    role, place = program.role_class(node.role), program.placement(node)
    if not minimizes(role, node.method):
        return None
    arguments = None if place is None else (place.args, place.kwargs)
    constructor: Any = inspect.unwrap(role.__init__)  # type: ignore[misc]
    objects = tuple(given_values(role, constructor_arguments(constructor, arguments)).items())
    kinds = [value for _, value in objects if isinstance(value, type)]
    numbers, may_be_negative = tuple(static_numbers(node).items()), may_have_negative_coefficients(role, arguments)
    may_be_negative |= any(may_have_negative_coefficients(kind, None) for kind in kinds)
    if may_be_negative and any(True for function in code_of(role).all_functions for _ in rates(function)):
        return None  # the rate may be that number
    if any(_may_ascend(code_of(kind)) for kind in kinds):
        return None
    return Minimizer(
        signature=signature,
        role=role,
        method=node.method,
        numbers=numbers,
        objects=objects,
        has_negative_numbers=may_be_negative,
    )


def interpreted_update(program: Program, node: Node) -> Collected | None:
    """The losses that a user's method minimizes; None if it takes no optimizer steps, or may not minimize."""
    update = minimizer(program, node)
    return None if update is None else _interpreted(update)


@lru_cache(maxsize=256)
def minimizes(role: type, method: str) -> bool:
    """Whether a method can be read and takes optimizer steps, and nothing in the code of its role may ascend."""
    code = code_of(role)
    return method in methods_of(role) and next(steps_of(code, method), None) is not None and not _may_ascend(code)


@lru_cache(maxsize=256)  # several rules ask, for each call of an unrolled loop
def _interpreted(update: Minimizer) -> Collected | None:
    methods = methods_of(update.role)
    body = PolicyInterpretation.of_method(
        update.signature, methods[update.method], methods, update.role, update.objects
    )
    body.trusts_coefficients = not update.has_negative_numbers
    body.names |= dict(update.numbers)
    return body.collected.of_tokens() if body.completed().is_whole else None


def interpreted_surrogates(program: Program, node: Node) -> Iterator[InterpretedSurrogate]:
    """The surrogates of the user's losses among the options of an update."""
    for _, operand in node.arguments if trains(program, node) else ():
        loss: Any = operand.value if isinstance(operand, Constant) else None
        kind: Any = type(loss)
        method: Any = getattr(kind, "surrogate", None)
        if method is None or str(method.__module__).startswith("hfdsl."):
            continue
        definition = definition_of(method)
        if definition is None or len(definition.args.args) != len(SURROGATE) + 1:
            continue
        body = PolicyInterpretation(method, definition, RowGroups(1, None), {}, methods_of(kind))
        body.names |= {arg.arg: value for arg, value in zip(definition.args.args[1:], SURROGATE, strict=True)}
        numbers = {name: getattr(loss, name, None) for name in getattr(loss, "__dataclass_fields__", ())}
        body.numbers = {name: number for name, number in numbers.items() if isinstance(number, (int, float))}
        result = body.completed().result()
        surrogate = result.values[0] if isinstance(result, Several) and result.values else None
        yield InterpretedSurrogate(body.collected.terms_of_tokens(surrogate), body.collected, body.numbers)


def static_numbers(node: Node) -> dict[str, PolicyValue]:
    """The signs of the numbers that a call passes, by parameter."""
    numbers = call_numbers(node).items()
    return {name: terms.number(number) for name, number in numbers if isinstance(number, (int, float))}


def _may_ascend(code: RoleCode) -> bool:
    """Whether code may turn the sign of gradients."""
    return has_negative_rate(code) or any(map(_turns_gradients, code.all_functions))


def _turns_gradients(function: ReadFunction) -> bool:
    nodes = [*nodes_of(function.definition)]
    options = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    options |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for table in (value_of(function.body, name) for name in function.names):
        options |= {key for key in table if isinstance(key, str)} if isinstance(table, dict) else set()
    if not TURNS.isdisjoint(function.names | options):
        return True
    for statement in nodes_of(function.definition):
        nodes = [*nodes_of(statement)] if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)) else []
        names = {name for node in nodes if not ACCUMULATION.fullmatch(name := last_name(node))} - {"no_grad"}
        is_turned = "neg" in names or any(isinstance(node, ast.USub) for node in nodes)
        if is_turned and any("grad" in name for name in names):
            return True
    return False
