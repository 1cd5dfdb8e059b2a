"""Epochs in an update: which loops take steps on the same rows, again and again?

A worked example::

    for _ in range(self.epochs):                    epochs: nothing depends on the number
        for rows in torch.randperm(n).split(8):     no epochs of its own: other rows each time
            self.take_step(self.loss(rows))         a step
    for _ in range(4):
        self.take_step(self.loss(next(parts)))      other rows each time
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import ReadFunction
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.losses.frames import CallFrame, Epochs
from hfdsl.check.syntax_trees import nodes_of

TAKING: Final = functions("choice choices generate get next pop popleft randint read recv sample")
"""Functions that may give other rows each time."""

OPTIMIZER: Final = re.compile(r"opt(im|imizer|imizers)?s?", re.IGNORECASE)
"""The names of optimizers, or parts of these."""


def epochs_of(statement: ast.stmt, methods: Mapping[str, ReadFunction], frame: CallFrame) -> Epochs | None:
    """The epochs that a loop is; None for another statement, and for a loop that may take other rows each time."""
    match statement:
        case ast.For(ast.Name(number), ast.Call(ast.Name("range"), [count]), block):
            pass
        case _:
            return None
    linear, nodes = frame.linear.of(count), [node for inner in block for node in nodes_of(inner)]
    reads_number = any(isinstance(node, ast.Name) and node.id == number for node in nodes)
    takes_others = any(isinstance(node, ast.Call) and last_name(node.func) in TAKING for node in nodes)
    if linear is None or reads_number or takes_others or not any(_steps(nodes, methods)):
        return None
    return Epochs(linear, len(frame.origins.effects))


def _steps(nodes: Sequence[ast.AST], methods: Mapping[str, ReadFunction]) -> Iterator[ast.Call]:
    """The steps of optimizers in some code, and in the methods that it calls."""
    for call in nodes:
        match call:
            case ast.Call(ast.Attribute(owner, "step"), arguments):
                if any(map(OPTIMIZER.search, map(last_name, (owner, *arguments)))):
                    yield call
            case ast.Call(ast.Attribute(ast.Name("self"), name)) if name in methods:
                inner = [*nodes_of(methods[name].definition)]
                yield from _steps(inner, {other: methods[other] for other in methods.keys() - {name}})
