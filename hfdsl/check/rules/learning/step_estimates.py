"""Estimates over steps: do users' advantages add up what comes after each step, as their formula has it?

A worked example; only the comments are right::

    for t in range(steps):                                                   for t in reversed(range(steps)):
        delta = r[:, t] + gamma * v[:, t + 1] - v[:, t]
        last = delta + gamma * lam * last
        advantages[:, t] = last

In a forward loop, a step gets the sum of what came before it, and nothing of what its action leads to. Nothing fails,
as the shapes are right; nor does it if a list keeps the order of a backward loop. The rule knows a running sum by a sum
with itself that goes, under the index of the loop or to the end of a list, into something named after advantages or
returns. It is silent where anything else is reversed; ``bodies/step_sums.py`` follows ``rewards.cumsum(1)``, and
``bodies/temporal_differences.py`` reads the errors of values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from hfdsl.check.bodies.changes import changed_names
from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import ReadFunction, code_of, code_of_function
from hfdsl.check.bodies.step_sums import StepInterpretation, SumUpTo
from hfdsl.check.bodies.syntax import definition_of, is_decorated
from hfdsl.check.bodies.temporal_differences import DISCOUNT, mistaken_differences, sum_terms
from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import span_of
from hfdsl.check.syntax_trees import index_parts, nodes_of
from hfdsl.graph.program import FunctionCall, Node, RoleCall
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span, definition_span

ESTIMATE: Final = re.compile(r"(.*_)?(adv|advs|advantages?|gaes?|returns?|rewards_to_go)(_.*)?")
"""The names of what is estimated."""

STACKS: Final = frozenset({"Tensor", "array", "as_tensor", "asarray", "cat", "stack", "tensor"})
"""Functions that make a tensor of a list, in its order."""

TURNS: Final = frozenset({"flip", "fliplr", "flipud", "insert", "reverse", "reversed"})
"""Names in code that may turn the order of steps around."""


class EstimateMistake(NamedTuple):
    """A place in a body, what it does, a label and advice; whether it goes through steps forwards."""

    place: Span
    effect: str
    label: str
    advice: str
    is_forwards: bool = False


def estimates_add_up_later_steps(context: Context) -> Iterator[Finding]:
    """HF363: advantages and returns are sums over later steps, discounted by their formula."""
    program, reported = context.program, set[Span]()
    for node, signature in program.graph.bodies if not program.graph.misuses else ():
        update = next(updates_after(program, node), None) if not signature.is_ready_made else None
        for mistake in _mistakes(program, node, signature) if update is not None else ():
            if mistake.place in reported or update is None:
                continue
            reported.add(mistake.place)
            learns = [] if update is node else [Label(update.span, "learns from the result")]
            finding = Finding(
                "HF363",
                f"'{node.label}' {mistake.effect}",
                Label(mistake.place, mistake.label),
                (Label(node.span, "called here"), *learns),
            )
            yield with_suggestions(context, finding, _edits(mistake), mistake.advice, most=1)


def _mistakes(program: Program, node: Node, signature: Signature) -> Iterator[EstimateMistake]:
    """The mistakes in the functions that a node runs."""
    functions = [*_functions(program, node)]
    are_turned = any(map(_turns_steps, functions))
    for function in functions:
        yield from _in_loops(function) if not are_turned else ()
        file = definition_span(function.body).file
        for mistake in mistaken_differences(function):
            place = span_of(file, mistake.node)
            yield EstimateMistake(place, mistake.effect, mistake.label, mistake.advice)
    yield from _sums_up_to_steps(program, node, signature)


def _edits(mistake: EstimateMistake) -> Iterator[Suggestion]:
    from hfdsl.check.repair import bodies  # late: most programs need none

    if mistake.is_forwards:
        yield from bodies.wrapped(mistake.place, "reversed")


def _functions(program: Program, node: Node) -> Iterator[ReadFunction]:
    """The functions that a node runs."""
    if isinstance(node.op, FunctionCall):
        yield from code_of_function(node.op.signature.body).all_functions
    elif isinstance(node.op, RoleCall):
        role = program.role_class(node.role)
        yield from code_of(role).reached(node.method)


# -- sums up to each step


def _sums_up_to_steps(program: Program, node: Node, signature: Signature) -> Iterator[EstimateMistake]:
    """The estimates that a body returns and that are sums of the numbers up to each step."""
    definition, body = definition_of(signature.body), None
    if isinstance(node.op, RoleCall):
        role = program.role_class(node.role)
        methods = methods_of(role)
        if node.method in methods:
            body = StepInterpretation.of_method(signature, methods[node.method], methods, role)
    elif definition is not None and not is_decorated(signature.body):
        body = StepInterpretation.of(signature, definition)
    columns = body.completed().columns if body is not None else {}
    for name, value in columns.items():
        if isinstance(value, SumUpTo) and ESTIMATE.fullmatch(name):
            yield EstimateMistake(
                value.place,
                _forwards(name),
                "from the first step to each",
                "sum from the end: x.flip(1).cumsum(1).flip(1)",
            )


# -- running sums in loops


def _forwards(name: str) -> str:
    """The effect of a sum that runs forwards."""
    return f"adds up steps forwards in '{name}': each gets the sum of those before it, and nothing of what comes after"


def _in_loops(function: ReadFunction) -> Iterator[EstimateMistake]:
    """The loops with a running sum that is stored as an estimate at a wrong step."""
    file = definition_span(function.body).file
    for loop in nodes_of(function.definition):
        if not isinstance(loop, ast.For):
            continue
        statements, steps = [node for part in loop.body for node in nodes_of(part)], {*changed_names(loop.target)}
        sums = set(_running_sums(statements))
        stored = [
            storage
            for storage in _stored(statements, steps)
            if storage.name in sums and _is_estimate(function, storage.target)
        ]
        lists = [storage for storage in stored if storage.appends is not None and _is_stacked(function, storage.target)]
        if not stored or not any(_reads_at(node, steps) for node in statements):
            continue
        if _goes_forwards(loop.iter):
            yield EstimateMistake(
                span_of(file, loop.iter),
                _forwards(stored[0].name),
                "from the first step to the last",
                "go backwards: for t in reversed(range(steps))",
                is_forwards=True,
            )
        elif _goes_backwards(loop.iter) and lists and lists[0].appends is not None:
            yield EstimateMistake(
                span_of(file, lists[0].appends),
                f"appends to '{lists[0].target}' from the last step to the first, and leaves it in this order: the "
                "first step gets the estimate of the last",
                "the last step comes first",
                f"turn it around: {lists[0].target}.reverse()",
            )


def _goes_forwards(iterated: ast.expr) -> bool:
    """Whether a loop goes through steps, or their numbers, forwards."""
    match iterated:
        case ast.Call(ast.Name("range"), [_] | [_, _]) | ast.Name() | ast.Call(ast.Attribute(_, "tolist" | "unbind")):
            return True
        case ast.Call(ast.Name("zip"), sources):
            return all(map(_goes_forwards, sources))
    return False


def _goes_backwards(iterated: ast.expr) -> bool:
    """Whether a loop goes through steps, or their numbers, backwards."""
    match iterated:
        case ast.Call(ast.Name("reversed"), [_]) | ast.Call(ast.Name("range"), [_, _, ast.UnaryOp(ast.USub())]):
            return True
        case ast.Subscript(_, ast.Slice(None, None, ast.UnaryOp(ast.USub(), ast.Constant(1)))):
            return True
        case ast.Call(ast.Name("zip"), sources):
            return all(map(_goes_backwards, sources))
    return False


def _is_stacked(function: ReadFunction, target: str) -> bool:
    """Whether all that code does with a list is to append to it, and to make a tensor of it as it is."""
    uses = [node for node in nodes_of(function.definition) if isinstance(node, ast.Name) and node.id == target]
    known = list[ast.expr]()
    for node in nodes_of(function.definition):
        match node:
            case ast.Assign([ast.Name() as name], ast.List([])) | ast.AnnAssign(ast.Name() as name, _, ast.List([])):
                known.append(name)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name() as name, "append"))):
                known.append(name)
            case ast.Call(function_called, [ast.Name() as name, *_]) if last_name(function_called) in STACKS:
                known.append(name)
    return all(use in known for use in uses)


def _turns_steps(function: ReadFunction) -> bool:
    """Whether code may turn the order of steps around: by a function, a slice with a step, or indices that fall.

    A loop may go backwards.
    """
    loops = {node.iter for node in nodes_of(function.definition) if isinstance(node, ast.For)}
    loops = {loop for loop in loops if _goes_forwards(loop) or _goes_backwards(loop)}
    in_loops = {node for loop in loops for node in nodes_of(loop)}
    nodes = [node for node in nodes_of(function.definition) if node not in in_loops]
    has_steps = any(isinstance(node, ast.Slice) and node.step is not None for node in nodes)
    return has_steps or any(last_name(node) in TURNS or _falls(node) for node in nodes)


def _falls(node: ast.AST) -> bool:
    """Whether an expression gives falling indices: ``arange(9, -1, -1)``, ``range(9, -1, -1)``, ``9 - arange(10)``."""
    match node:
        case ast.Call(function, [_, _, ast.UnaryOp(ast.USub())]):
            return last_name(function) in ("arange", "range")
        case ast.BinOp(_, ast.Sub(), ast.Call(function)):
            return last_name(function) == "arange"
    return False


def _running_sums(statements: Sequence[ast.AST]) -> Iterator[str]:
    """The names that are set once, to a sum with themselves, or with a discounted part of themselves."""
    assigned = list[tuple[str, bool]]()
    for statement in statements:
        match statement:
            case ast.Assign(targets, value):
                assigned += [
                    (target.id, _adds_to(value, target.id)) for target in targets if isinstance(target, ast.Name)
                ]
            case ast.AugAssign(ast.Name(name), operator):
                assigned.append((name, isinstance(operator, ast.Add)))
    names = [name for name, _ in assigned]
    yield from (name for name, is_sum in assigned if is_sum and names.count(name) == 1)


def _adds_to(value: ast.expr, name: str) -> bool:
    """Whether an expression is the sum of something and a name, which may be discounted."""
    parts = [factors for _, factors in sum_terms(value)]
    return len(parts) > 1 and any(_is_discounted(factors, name) for factors in parts)


def _is_discounted(factors: Sequence[ast.expr], name: str) -> bool:
    names = {last_name(factor) for factor in factors}
    return name in names and (len(factors) == 1 or any(DISCOUNT.fullmatch(other) for other in names - {name}))


class Storage(NamedTuple):
    """A name that is stored at a step, the tensor or list that gets it, and what appends it to a list."""

    name: str
    target: str
    appends: ast.expr | None = None


def _stored(statements: Sequence[ast.AST], steps: AbstractSet[str]) -> Iterator[Storage]:
    """The names that are stored at a step; ``steps`` are those that a loop has for it."""
    for statement in statements:
        match statement:
            case ast.Assign([ast.Subscript(ast.Name(target), index), *others], value) if _is_at(index, steps):
                added = [factors[0] for sign, factors in sum_terms(value) if sign > 0 and len(factors) == 1]
                yield from (Storage(last_name(term), target) for term in (*added, *others))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(target), "append"), [value]) as call):
                added = [factors[0] for sign, factors in sum_terms(value) if sign > 0 and len(factors) == 1]
                yield from (Storage(last_name(term), target, call) for term in added)


def _is_at(index: ast.expr, steps: AbstractSet[str]) -> bool:
    """Whether an index takes one step of all rows."""
    parts = index_parts(index)
    return any(isinstance(part, ast.Name) and part.id in steps for part in parts)


def _reads_at(node: ast.AST, steps: AbstractSet[str]) -> bool:
    """Whether code reads the numbers of a step, by an index or as the loop has them."""
    match node:
        case ast.Subscript(_, index, ast.Load()):
            return _is_at(index, steps)
        case ast.BinOp(left, _, right):
            return any(isinstance(part, ast.Name) and part.id in steps for part in (left, right))
    return False


def _is_estimate(function: ReadFunction, target: str) -> bool:
    """Whether a tensor is one of advantages or returns: by its name, or by the column that it is returned as."""
    if ESTIMATE.fullmatch(target):
        return True
    for node in nodes_of(function.definition):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            for column in node.value.keywords:
                names = {part.id for part in nodes_of(column.value) if isinstance(part, ast.Name)}
                if target in names and ESTIMATE.fullmatch(column.arg or ""):
                    return True
    return False
