"""Models of the next token: which of those that a role calls does it sample with, by their numbers at the last token?

A worked example::

    logits = self.network(ids)[:, -1]                              of the token after the last one
    token = torch.multinomial(logits.softmax(-1), 1)
    ids = torch.cat([ids, token], dim=1)

So what ``self.network`` gives at a token is of the next one, wherever the role calls it. A model that gives ``.logits``
needs no such evidence.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from hfdsl.check.bodies.role_code import ReadFunction, code_of
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.syntax_trees import nodes_of

DRAWS: Final = functions("Categorical argmax cumsum gumbel_softmax multinomial topk")
"""Functions that choose tokens."""

LAST: Final = frozenset({":, -1", ":, -1, :", "..., -1, :"})
"""Indices of the last token of all rows."""


@lru_cache(maxsize=256)
def next_token_models(role: type) -> frozenset[str]:
    """The models, as a role's code writes them, with which it chooses a token after the last one."""
    return frozenset(model for function in code_of(role).all_functions for model in _sampled_with(function))


def _sampled_with(function: ReadFunction) -> Iterator[str]:
    """The models whose numbers at the last token a function reads, if it chooses a token."""
    if DRAWS.isdisjoint(function.names):
        return
    calls = dict[str, set[str]]()
    for node in nodes_of(function.definition):
        match node:
            case ast.Assign([ast.Name(name)], value):
                model = _model(value)
                calls.setdefault(name, set()).add(model)
    for node in nodes_of(function.definition):
        match node:
            case ast.Subscript(source, index) if ast.unparse(index).strip("()") in LAST:
                models = {_model(source)} if not isinstance(source, ast.Name) else calls.get(source.id, {""})
                yield from models if len(models) == 1 and "" not in models else ()


def _model(node: ast.expr) -> str:
    """The model that an expression calls, such as ``self.network``; empty if it calls none."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("self")) as model):
            return ast.unparse(model)
    return ""
