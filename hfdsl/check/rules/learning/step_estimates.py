"""Estimates over steps: do advantages of the user's add up what comes after each step, as their formula has it?

A worked example of which only the comments are right::

    for t in range(steps):                                                   for t in reversed(range(steps)):
        delta = r[:, t] + gamma * lam * v[:, t + 1] - v[:, t]                    gamma alone: the value one step later
        last = delta + gamma * lam * last
        advantages[:, t] = last

Forwards, a step gets the sum of what came before it, and nothing of what its action leads to. Nothing fails, as the
shapes are right. The rule knows a running sum by a product with itself and a discount, which goes under the index of
the loop into what is named after advantages or returns, and is silent where anything is turned around.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import ReadFunction, code_of, code_of_function
from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import span_of
from hfdsl.graph.program import FunctionCall, Node, RoleCall
from hfdsl.graph.spans import Span, definition_span

DISCOUNT: Final = re.compile(r"(.*_)?(decay|discount|gamma|lam|lambda|lmbda)(_.*)?")
"""The names of discounts."""

DECAY: Final = re.compile(r"(gae_)?(lam|lambda|lmbda)(_|_gae)?")
"""The names of the decay of an estimate, which is no discount of values."""

ESTIMATE: Final = re.compile(r"(.*_)?(adv|advs|advantages?|gaes?|returns?|rewards_to_go)(_.*)?")
"""The names of what is estimated."""

NEXT_VALUE: Final = re.compile(r"(next_v(alues?)?|v(alues?)?_next|later)")
"""The names of the values one step later."""

TURNS: Final = frozenset({"flip", "fliplr", "flipud", "insert", "reverse", "reversed"})
"""Names in code that may turn the order of steps around."""


class EstimateMistake(NamedTuple):
    """A place in a body, what it does, a label and advice; whether it goes through steps forwards."""

    place: ast.expr
    effect: str
    label: str
    advice: str
    is_forwards: bool = False


def estimates_add_up_later_steps(context: Context) -> Iterator[Finding]:
    """HF363: advantages and returns are sums over later steps, discounted by their formula."""
    program, reported = context.program, set[Span]()
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        update = next(updates_after(program.graph, node), None) if not signature.is_ready_made else None
        functions = [*_functions(program, node)] if update is not None else []
        are_turned = any(map(_turns_steps, functions))
        for function in functions:
            for mistake in (*(_forwards(function) if not are_turned else ()), *_decayed_values(function)):
                place = span_of(definition_span(function.body).file, mistake.place)
                if place in reported or update is None:
                    continue
                reported.add(place)
                learns = [] if update is node else [Label(update.span, "learns from the result")]
                finding = Finding(
                    "HF363",
                    f"'{node.label}' {mistake.effect}",
                    Label(place, mistake.label),
                    (Label(node.span, "called here"), *learns),
                )
                yield with_suggestions(context, finding, _edits(place, mistake), mistake.advice, most=1)


def _edits(place: Span, mistake: EstimateMistake) -> Iterator[Suggestion]:
    from hfdsl.check.repair import bodies  # late: most programs need none

    if mistake.is_forwards:
        yield from bodies.wrapped(place, "reversed")


def _functions(program: Program, node: Node) -> Iterator[ReadFunction]:
    """The functions that a node runs."""
    if isinstance(node.op, FunctionCall):
        code = code_of_function(node.op.signature.body)
        yield from (function for several in code.functions.values() for function in several)
    elif isinstance(node.op, RoleCall):
        role = program.role_class(node.role)
        yield from code_of(role).reached(node.method)


# -- sums that run forwards


def _forwards(function: ReadFunction) -> Iterator[EstimateMistake]:
    """The loops that go forwards through steps with a running sum that is stored as an estimate."""
    for loop in ast.walk(function.definition):
        match loop:
            case ast.For(ast.Name(step), ast.Call(ast.Name("range"), [_] | [_, _]) as steps, block):
                statements = [node for statement in block for node in ast.walk(statement)]
                sums = set(_running_sums(statements))
                stored = {name for name, target in _stored(statements, step) if _is_estimate(function, target)}
                if sums & stored and any(_reads_at(node, step) for node in statements):
                    yield EstimateMistake(
                        steps,
                        f"adds up steps forwards in '{min(sums & stored)}': each gets the sum of those before it, and "
                        "nothing of what comes after",
                        "from the first step to the last",
                        "go backwards: for t in reversed(range(steps))",
                        is_forwards=True,
                    )


def _turns_steps(function: ReadFunction) -> bool:
    """Whether code may turn the order of steps around: by a function, a slice with a step, or indices that fall."""
    nodes = [*ast.walk(function.definition)]
    loops = {node.iter for node in nodes if isinstance(node, ast.For)}
    has_steps = any(isinstance(node, ast.Slice) and node.step is not None for node in nodes)
    return not TURNS.isdisjoint(function.names) or has_steps or any(_falls(node) for node in nodes if node not in loops)


def _falls(node: ast.AST) -> bool:
    """Whether an expression gives falling indices: ``arange(9, -1, -1)``, ``range(9, -1, -1)``, ``9 - arange(10)``."""
    match node:
        case ast.Call(function, [_, _, ast.UnaryOp(ast.USub())]):
            return last_name(function) in ("arange", "range")
        case ast.BinOp(_, ast.Sub(), ast.Call(function)):
            return last_name(function) == "arange"
    return False


def _running_sums(statements: Sequence[ast.AST]) -> Iterator[str]:
    """The names that are set once, to a sum with a discounted part of themselves."""
    assigned = [
        (target.id, statement.value)
        for statement in statements
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    for name, value in assigned:
        is_single = [other for other, _ in assigned].count(name) == 1
        parts = [factors for _, factors in _terms(value)]
        if is_single and len(parts) > 1 and any(_is_discounted(factors, name) for factors in parts):
            yield name


def _is_discounted(factors: Sequence[ast.expr], name: str) -> bool:
    names = {last_name(factor) for factor in factors}
    return name in names and any(DISCOUNT.fullmatch(other) for other in names - {name})


def _stored(statements: Sequence[ast.AST], step: str) -> Iterator[tuple[str, str]]:
    """The names that are stored at a step, each with the name of the tensor or list that gets them."""
    for statement in statements:
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(target), index), *others], value) if _is_at(index, step):
                added = [factors[0] for sign, factors in _terms(value) if sign > 0 and len(factors) == 1]
                yield from ((last_name(term), target) for term in (*added, *others))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(target), "append"), [ast.Name(name)])):
                yield name, target


def _is_at(index: ast.expr, step: str) -> bool:
    """Whether an index takes one step of all rows."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(part, ast.Name) and part.id == step for part in parts)


def _reads_at(node: ast.AST, step: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_at(node.slice, step)


def _is_estimate(function: ReadFunction, target: str) -> bool:
    """Whether a tensor is one of advantages or returns: by its name, or by the column that it is returned as."""
    if ESTIMATE.fullmatch(target):
        return True
    for node in ast.walk(function.definition):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            for column in node.value.keywords:
                names = {part.id for part in ast.walk(column.value) if isinstance(part, ast.Name)}
                if target in names and ESTIMATE.fullmatch(column.arg or ""):
                    return True
    return False


# -- values with the decay of an estimate


def _decayed_values(function: ReadFunction) -> Iterator[EstimateMistake]:
    """The errors of values, ``r + c * v[next] - v``, with the decay of an estimate in ``c``."""
    for node in ast.walk(function.definition):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub)):
            continue
        terms = [*_terms(node)]
        subtracted = [factors[0] for sign, factors in terms if sign < 0 and len(factors) == 1]
        for sign, factors in terms if len(terms) > 2 else ():
            decays = [factor for factor in factors if DECAY.fullmatch(last_name(factor))]
            is_later = any(_is_later(factor, value) for factor in factors for value in subtracted)
            if sign > 0 and decays and is_later:
                yield EstimateMistake(
                    decays[0],
                    f"discounts the value one step later by '{ast.unparse(decays[0])}', which is for the sum of the "
                    "errors of values alone",
                    "no discount of values",
                    "delta = reward + gamma * next_value - value, and advantage = delta + gamma * lam * next_advantage",
                )


def _is_later(factor: ast.expr, value: ast.expr) -> bool:
    """Whether a factor is the value one step after another one."""
    match factor, value:
        case ast.Subscript(owner, index), ast.Subscript(other, other_index):
            return ast.dump(owner) == ast.dump(other) and ast.dump(index) != ast.dump(other_index)
        case ast.Name(name), ast.Subscript() | ast.Name():
            return NEXT_VALUE.fullmatch(name) is not None
    return False


# -- arithmetic


def _terms(node: ast.expr, sign: int = 1) -> Iterator[tuple[int, list[ast.expr]]]:
    """The terms of a sum, each with its sign and its factors."""
    match node:
        case ast.BinOp(left, ast.Add(), right):
            yield from _terms(left, sign)
            yield from _terms(right, sign)
        case ast.BinOp(left, ast.Sub(), right):
            yield from _terms(left, sign)
            yield from _terms(right, -sign)
        case ast.UnaryOp(ast.USub(), operand):
            yield from _terms(operand, -sign)
        case _:
            yield sign, [*_factors(node)]


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """The factors of a product."""
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield node
