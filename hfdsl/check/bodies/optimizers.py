"""Optimizers in the code of a role: where it makes them, and where its methods take their steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain

from hfdsl.check.bodies.names import parameter_names
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode
from hfdsl.check.syntax_trees import nodes_of


def steps_of(code: RoleCode, method: str) -> Iterator[tuple[ReadFunction, ast.Call]]:
    """The steps of an optimizer of torch that a method takes, each with the function that it is written in."""
    names = frozenset(made_by_torch(code))
    for function in code.reached(method) if names else ():
        optimizers = names.union(optimizer_parameters(function))
        for node in nodes_of(function.definition):
            if isinstance(node, ast.Call) and is_step(node, optimizers):
                yield function, node


def steps_for_certain(code: RoleCode, method: str) -> Iterator[tuple[ReadFunction, ast.Call, str]]:
    """The steps that a method and those that it calls on ``self`` take of optimizers that the role keeps, by name.

    An optimizer of something else than what the role keeps, such as of the noise that a call tunes, is left out.
    """
    kept = frozenset(name for name, place in made_by_torch(code).items() if _learned_by(*place))
    waiting, seen = [method], set[str]()
    while waiting:
        name = waiting.pop()
        reached = code.functions.get(name, ()) if name not in seen else ()
        for function, node in [(read, node) for read in reached for node in nodes_of(read.definition)]:
            match node:
                case ast.Call(ast.Attribute(ast.Attribute(ast.Name("self"), optimizer), "step")) if optimizer in kept:
                    yield function, node, optimizer
                case ast.Call(ast.Attribute(ast.Name("self"), called)):
                    waiting.append(called)
        seen.add(name)


def learned_attributes(code: RoleCode) -> frozenset[str]:
    """The attributes of the role that its optimizers get the parameters of."""
    return frozenset[str]().union(*(_learned_by(*place) for place in made_by_torch(code).values()))


def _learned_by(function: ReadFunction, call: ast.Call) -> frozenset[str]:
    """The attributes that one optimizer gets the parameters of, also under a name of the constructor."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)][:1]
    match given:
        case [ast.Name(name)]:
            for node in nodes_of(function.definition):
                match node:
                    case ast.Assign([ast.Name(assigned)], value) if assigned == name:
                        given.append(value)
    nodes = chain.from_iterable(map(nodes_of, given))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute) and variable(node))


def is_step(call: ast.Call, optimizers: frozenset[str]) -> bool:
    """Whether a call is a step of one of these, also by a scaler of gradients."""
    match call:
        case ast.Call(ast.Attribute(owner, "step"), arguments):
            return any(variable(candidate) in optimizers for candidate in (owner, *arguments))
    return False


def optimizer_parameters(function: ReadFunction) -> Iterator[str]:
    """The parameters of a function that are optimizers, by their names."""
    return (name for name in parameter_names(function.definition) if name.startswith("opt"))


@lru_cache(maxsize=256)
def made_by_torch(code: RoleCode, *, schedules: bool = False) -> Mapping[str, tuple[ReadFunction, ast.Call]]:
    """By name the optimizers of torch that code makes, or the schedules of their rates, with the calls that do."""
    constructors = dict[str, tuple[ReadFunction, ast.Call]]()
    for function in code.all_functions:
        for node in nodes_of(function.definition):
            match node:
                case ast.Assign([target], ast.Call() as call) | ast.AnnAssign(target, _, ast.Call() as call):
                    path = function.path(call.func).split(".")
                    if path[:2] == ["torch", "optim"] and ("lr_scheduler" in path) is schedules and variable(target):
                        constructors[variable(target)] = function, call
    return constructors


def variable(expression: ast.expr) -> str:
    """The name of a variable, or of an attribute of ``self``."""
    match expression:
        case ast.Name(name) | ast.Attribute(ast.Name("self"), name):
            return name
    return ""
