"""Models that take the mask of their tokens: those of transformers, and those that a role gives one somewhere.

A worked example; a model of the user's own may find padding by itself, so it is none::

    self.model = AutoModelForCausalLM.from_pretrained(path)        takes a mask
    self.model(ids, attention_mask=mask)                           so does this one
    self.model = OwnModel(); self.model(ids)                       unknown
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.role_code import ReadFunction, code_of
from hfdsl.check.syntax_trees import nodes_of

CONSTRUCTORS: Final = frozenset({"from_config", "from_pretrained"})
"""Functions that construct models of transformers."""

OTHERS: Final = re.compile("config|processor|tokenizer", re.IGNORECASE)
"""Names of classes with the same functions, which are no models."""


@lru_cache(maxsize=256)
def masked_models(role: type) -> frozenset[str]:
    """The models that take a mask, as a role's code writes them."""
    return frozenset(model for function in code_of(role).all_functions for model in _masked_in(function))


def _masked_in(function: ReadFunction) -> Iterator[str]:
    for node in nodes_of(function.definition):
        match node:
            case ast.Assign(targets, value) if any(map(_constructs, nodes_of(value))):
                yield from map(ast.unparse, targets)
            case ast.Call(model, keywords=options) if any(option.arg == "attention_mask" for option in options):
                yield ast.unparse(model)


def _constructs(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Attribute(owner, constructor)) if constructor in CONSTRUCTORS:
            return OTHERS.search(last_name(owner)) is None
    return False
