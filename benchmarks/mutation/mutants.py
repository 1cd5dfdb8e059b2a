"""Mutants: a function with one small mistake, made in its syntax tree.

What runs inside functions and lambdas is mutated. Left alone are annotations, decorators, defaults, ``__repr__``, code
for type checkers, and the wording of messages: texts, and what is added to or multiplied with them. Numbers within
f-strings are mutated: a message that says a wrong one is wrong.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip  # a table
CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip  # a table
# Calls whose arguments are not swapped: a TypeError at once, or no difference.
ORDERED = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", "cast", "max", "min"}
HIDDEN = {"annotation", "returns", "decorator_list", "args", "format_spec"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a function: its text before and after, the lines that reach it, and the code of the whole file."""

    file: str
    function: str
    before: str
    after: str
    nth: int  # of those of its function with these texts
    lines: range
    place: int  # of the function among those of its file
    code: CodeType


def mutants(root: Path, file: str) -> list[Mutant]:
    """Every mutant of a file."""
    text = (root / file).read_text("utf-8")
    tree, collected, seen = ast.parse(text), list[Mutant](), Counter[tuple[str, str, str]]()
    functions = codes(compile(tree, root / file, "exec", dont_inherit=True))
    for holder, field, index, lines, name in places(tree):
        node = get(holder, field, index)
        for new in changes(node, holder):
            put(holder, field, index, ast.fix_missing_locations(ast.copy_location(new, node)))
            code = compile(tree, root / file, "exec", dont_inherit=True)
            put(holder, field, index, node)
            changed = [i for i, (a, b) in enumerate(zip(functions, codes(code), strict=True)) if a != b]
            if changed:  # not where the compiler makes the same of both
                key = name, ast.unparse(node), ast.unparse(new)
                collected.append(Mutant(file, *key, seen[key], lines, changed[0], code))
                seen[key] += 1
    return collected


def codes(module: CodeType) -> list[CodeType]:
    """The codes of the functions of a module and of its classes, in order; functions within functions lie in these."""
    function_codes: list[CodeType] = []
    for code in (const for const in module.co_consts if isinstance(const, CodeType)):
        is_class = not code.co_flags & 0x2  # a function has CO_NEWLOCALS
        function_codes += codes(code) if is_class else [code]
    return function_codes


def get(holder: ast.AST, field: str, index: int | None) -> ast.AST:
    """The node at a place in the tree."""
    value = getattr(holder, field)
    node: ast.AST = value if index is None else value[index]
    return node


def put(holder: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    """Set the node at a place in the tree."""
    if index is None:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[index] = node


def places(
    node: ast.AST, lines: range = range(0), name: str = "", inside: bool = False
) -> Iterator[tuple[ast.AST, str, int | None, range, str]]:
    """Where mutants are made: holder, field and index of a node, the lines that reach it, and its function's name."""
    for field, value in ast.iter_fields(node):
        if field in HIDDEN and not (field == "args" and isinstance(node, ast.Call)):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or is_wording(child):
                continue
            within, reached, called = inside, lines, name
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                called = f"{name}.{child.name}".lstrip(".")
                within = inside or not isinstance(child, ast.ClassDef)
            elif isinstance(child, ast.Lambda):
                within, reached = True, span(child.body) if not inside else lines
            elif isinstance(child, ast.stmt):
                reached = span(child)
            if inside:
                yield node, field, index, reached, name
            yield from places(child, reached, called, within)


def span(node: ast.stmt | ast.expr) -> range:
    """The lines of a statement that run before its block."""
    last = node.end_lineno or node.lineno
    block = getattr(node, "body", None) or getattr(node, "cases", None)
    if isinstance(node, ast.stmt) and isinstance(block, list):
        first = block[0].pattern if isinstance(block[0], ast.match_case) else block[0]
        last = max(node.lineno, first.lineno - 1)
    return range(node.lineno, last + 1)


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a text."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def is_wording(node: ast.AST) -> bool:
    """Whether a node is only about how things are written, or never runs."""
    match node:
        case ast.BinOp(left, _, right):
            return (is_text(left) or is_text(right)) and not any(isinstance(n, ast.JoinedStr) for n in (left, right))
        case ast.Expr(ast.Constant()):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
        case ast.keyword("strict"):  # of zip: asserts what holds
            return True
        case ast.FunctionDef(name="__repr__"):
            return True
    return False


def changes(node: ast.AST, holder: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    if isinstance(holder, ast.UnaryOp) and isinstance(node, ast.Constant):
        return  # of -1 one mutant is enough, 1
    yield from other_values(node)
    yield from forced(node, holder)
    yield from without(node, holder)


def other_values(node: ast.AST) -> Iterator[ast.AST]:
    """Another operator, number, order of arguments or result."""
    match node:
        case ast.Compare(left, [op], [right]):
            for operator in COMPARED[type(op)]:
                yield ast.Compare(left, [operator()], [right])
            if isinstance(op, (ast.Eq, ast.NotEq)) and isinstance(right, ast.Constant) and isinstance(right.value, str):
                yield ast.Compare(left, [op], [ast.Constant(right.value + "~")])
        case ast.BinOp(left, op, right) if type(op) in CALCULATED and not (is_text(left) or is_text(right)):
            yield ast.BinOp(left, CALCULATED[type(op)](), right)
        case ast.AugAssign(target, op, value) if type(op) in CALCULATED:
            yield ast.AugAssign(target, CALCULATED[type(op)](), value)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield copy.deepcopy(operand)  # a copy gets a place of its own
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Return(value) if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.Call(func, [first, second, *rest], keywords) if swappable(node):
            yield ast.Call(func, [second, first, *rest], keywords)


def swappable(call: ast.Call) -> bool:
    """Whether a call with its first two arguments swapped tells something of the tests."""
    called = {"id", "attr"} & set(call.func._fields)
    name = getattr(call.func, called.pop()) if called else ""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args[:2])
    same = ast.dump(call.args[0]) == ast.dump(call.args[1])
    return not (starred or same or name in ORDERED or name.endswith("Error") or is_text(call.args[0]))


def forced(node: ast.AST, holder: ast.AST) -> Iterator[ast.AST]:
    """A condition that always holds, or never."""
    conditional = isinstance(holder, (ast.If, ast.IfExp)) and holder.test is node
    filtering = isinstance(holder, ast.comprehension) and node in holder.ifs
    if isinstance(node, ast.expr) and (conditional or filtering) and not isinstance(node, ast.Constant):
        yield ast.Constant(True)
        if not filtering:  # which would leave nothing
            yield ast.Constant(False)


def without(node: ast.AST, holder: ast.AST) -> Iterator[ast.AST]:
    """A statement left out; not where that is the same as its condition never holding."""
    alone = isinstance(holder, ast.If) and holder.body == [node] and not holder.orelse
    last = isinstance(holder, (ast.FunctionDef, ast.AsyncFunctionDef)) and isinstance(node, ast.Return)
    stored = isinstance(node, ast.Assign) and not any(isinstance(target, ast.Name) for target in node.targets)
    left_out = stored or isinstance(
        node, (ast.AugAssign, ast.Expr, ast.Raise, ast.Return, ast.Continue, ast.Break, ast.Delete)
    )
    if isinstance(node, ast.stmt) and left_out and not alone and not last:
        yield ast.Pass()
