"""Small mistakes in the text of a program: each function makes one, as somebody who edits in a hurry makes it."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

Mutation: TypeAlias = "Callable[[Site], bool]"
"""Makes one change; False where the program has no place for it."""

N = TypeVar("N", bound=ast.AST)
T = TypeVar("T")

CONSTANTS: tuple[object, ...] = (0, 1.5, "mean", None, True, ("a", 2), [1])


def dataflows(tree: ast.Module) -> list[ast.FunctionDef]:
    """The dataflows that a module defines."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if any("dataflow" in ast.unparse(line) for line in node.decorator_list)]


@dataclass(frozen=True)
class Site:
    """The dataflows of a program, and the numbers that choose where to change them."""

    tree: ast.Module
    draw: random.Random

    @property
    def flows(self) -> list[ast.FunctionDef]:
        return dataflows(self.tree)

    def calls(self, *, with_arguments: bool = True) -> list[ast.Call]:
        """The calls in dataflows."""
        calls = self.nodes(ast.Call)
        return [call for call in calls if call.args] if with_arguments else calls

    def nodes(self, kind: type[N]) -> list[N]:
        """The nodes of one kind in dataflows."""
        lines = [line for flow in self.flows for line in flow.body]
        return [node for line in lines for node in ast.walk(line) if isinstance(node, kind)]

    def names(self) -> list[str]:
        """The parameters and variables of dataflows."""
        parameters = [arg.arg for flow in self.flows for arg in flow.args.args]
        return parameters + [n.id for n in self.nodes(ast.Name) if isinstance(n.ctx, ast.Store)]

    def pick(self, choices: list[T]) -> T | None:
        return self.draw.choice(choices) if choices else None

    def constant(self) -> ast.expr:
        return ast.parse(repr(self.draw.choice(CONSTANTS)), mode="eval").body


def arguments_in_another_order(site: Site) -> bool:
    call = site.pick([call for call in site.calls() if len(call.args) > 1])
    if call is not None:
        call.args.insert(0, call.args.pop())
    return call is not None


def an_argument_less(site: Site) -> bool:
    call = site.pick(site.calls())
    if call is not None:
        call.args.pop(site.draw.randrange(len(call.args)))
    return call is not None


def an_argument_twice(site: Site) -> bool:
    call = site.pick(site.calls())
    if call is not None:
        call.args.append(call.args[-1])
    return call is not None


def another_value(site: Site) -> bool:
    call, name = site.pick(site.calls()), site.pick(site.names())
    if call is not None and name is not None:
        call.args[site.draw.randrange(len(call.args))] = ast.Name(name, ast.Load())
    return call is not None and name is not None


def a_constant_for_a_value(site: Site) -> bool:
    call = site.pick(site.calls())
    if call is not None:
        call.args[site.draw.randrange(len(call.args))] = site.constant()
    return call is not None


def another_constant(site: Site) -> bool:
    calls = [call for call in site.calls(with_arguments=False) if ast.unparse(call.func) != "zip"]  # Python's own
    keyword = site.pick([keyword for call in calls for keyword in call.keywords])
    if keyword is not None:
        keyword.value = site.constant()
    return keyword is not None


def a_misspelled_method(site: Site) -> bool:
    call = site.pick([call for call in site.calls(with_arguments=False) if isinstance(call.func, ast.Attribute)])
    if call is not None and isinstance(call.func, ast.Attribute):
        call.func.attr += "s"
    return call is not None


def a_misspelled_column(site: Site) -> bool:
    called = [id(call.func) for call in site.calls(with_arguments=False)]
    column = site.pick([node for node in site.nodes(ast.Attribute) if id(node) not in called])
    if column is not None:
        column.attr += "s"
    return column is not None


def a_column_of_another_record(site: Site) -> bool:
    called = [id(call.func) for call in site.calls(with_arguments=False)]
    columns = [node for node in site.nodes(ast.Attribute) if id(node) not in called]
    column, replacement = site.pick(columns), site.pick(columns)
    if column is not None and replacement is not None:
        column.attr = replacement.attr
    return column is not None


def a_column_for_a_record(site: Site) -> bool:
    call = site.pick(site.calls())
    if call is not None:
        call.args[0] = ast.Attribute(call.args[0], site.draw.choice(["ids", "tensor", "reward"]), ast.Load())
    return call is not None


def a_keyword_less(site: Site) -> bool:
    call = site.pick([call for call in site.calls(with_arguments=False) if call.keywords])
    if call is not None:
        call.keywords.pop(site.draw.randrange(len(call.keywords)))
    return call is not None


def a_misspelled_keyword(site: Site) -> bool:
    keyword = site.pick([keyword for call in site.calls(with_arguments=False) for keyword in call.keywords])
    if keyword is not None and keyword.arg is not None:
        keyword.arg += "s"
    return keyword is not None


def a_keyword_more(site: Site) -> bool:
    call = site.pick(site.calls(with_arguments=False))
    if call is not None:
        call.keywords.append(ast.keyword("temperature", ast.Constant(1.0)))
    return call is not None


def a_result_as_a_tuple(site: Site) -> bool:
    assigned = [node for node in site.nodes(ast.Assign) if isinstance(node.value, ast.Call)]
    assign = site.pick([node for node in assigned if isinstance(node.targets[0], ast.Name)])
    if assign is not None:
        assign.targets = [ast.Tuple([assign.targets[0], ast.Name("rest", ast.Store())], ast.Store())]
    return assign is not None


def the_first_of_a_result(site: Site) -> bool:
    assign = site.pick([node for node in site.nodes(ast.Assign) if isinstance(node.value, ast.Call)])
    if assign is not None:
        assign.value = ast.Subscript(assign.value, ast.Constant(0), ast.Load())
    return assign is not None


def a_tuple_for_a_value(site: Site) -> bool:
    call = site.pick(site.calls())
    if call is not None:
        call.args[0] = ast.Tuple([call.args[0], call.args[-1]], ast.Load())
    return call is not None


def an_uncalled_method(site: Site) -> bool:
    assign = site.pick([node for node in site.nodes(ast.Assign) if isinstance(node.value, ast.Call)])
    if assign is not None and isinstance(assign.value, ast.Call):
        assign.value = assign.value.func
    return assign is not None


def an_optional_column_as_it_is(site: Site) -> bool:
    call = site.pick([call for call in site.calls() if ast.unparse(call.func).endswith("present")])
    for node in site.nodes(ast.Call):
        for position, argument in enumerate(node.args):
            if argument is call and call is not None:
                node.args[position] = call.args[0]
        for keyword in node.keywords:
            if keyword.value is call and call is not None:
                keyword.value = call.args[0]
    return call is not None


def another_result(site: Site) -> bool:
    result, name = site.pick(site.nodes(ast.Return)), site.pick(site.names())
    if result is not None and name is not None:
        result.value = ast.Name(name, ast.Load())
    return result is not None and name is not None


def a_result_in_a_tuple(site: Site) -> bool:
    result = site.pick(site.nodes(ast.Return))
    if result is not None and result.value is not None:
        result.value = ast.Tuple([result.value, result.value], ast.Load())
    return result is not None


def another_parameter(site: Site) -> bool:
    parameters = [arg for flow in site.flows for arg in flow.args.args if arg.annotation is not None]
    parameter, replacement = site.pick(parameters), site.pick(parameters)
    if parameter is not None and replacement is not None:
        parameter.annotation = replacement.annotation
    return parameter is not None


def another_annotation_of_the_result(site: Site) -> bool:
    flow, replacement = site.pick(site.flows), site.pick([arg for flow in site.flows for arg in flow.args.args])
    if flow is not None and replacement is not None:
        flow.returns = replacement.annotation
    return flow is not None


MUTATIONS: tuple[Mutation, ...] = (
    arguments_in_another_order,
    an_argument_less,
    an_argument_twice,
    another_value,
    a_constant_for_a_value,
    another_constant,
    a_misspelled_method,
    a_misspelled_column,
    a_column_of_another_record,
    a_column_for_a_record,
    a_keyword_less,
    a_misspelled_keyword,
    a_keyword_more,
    a_result_as_a_tuple,
    the_first_of_a_result,
    a_tuple_for_a_value,
    an_uncalled_method,
    an_optional_column_as_it_is,
    another_result,
    a_result_in_a_tuple,
    another_parameter,
    another_annotation_of_the_result,
)


def mutants(source: str, draw: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Programs with one change each, with the name of the change; changes of different kinds before any twice."""
    parsed = ast.parse(source)
    kinds = [mutation for _ in range(count) for mutation in draw.sample(MUTATIONS, len(MUTATIONS))]
    texts: dict[str, str] = {}
    for mutation in kinds:
        tree = copy.deepcopy(parsed)
        if mutation(Site(tree, draw)):
            texts.setdefault(ast.unparse(tree), mutation.__name__)
        if len(texts) > count:
            break
    texts.pop(ast.unparse(parsed), None)
    yield from list(texts.items())[:count]
