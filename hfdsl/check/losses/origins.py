"""Origins of log-probs: are two of them computed alike, from the same numbers, by the same weights?

A worked example, of an update that computes its old log-probs again::

    old = self.log_probs(experience)                   origin: self.log_probs(experience)
    now = self.log_probs(experience)                   the same, so that now - old is 0
    with self.model.disable_adapter():
        ref = self.log_probs(experience)               another one: the context may change weights
    chances = self.model(ids).logits.softmax(-1)       maker: self.model

Text decides it, so names in it have to be set once at most, and nothing may be called for its effects in between.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from typing import Final, NamedTuple

from hfdsl.check.bodies.interpretation import MODULES, Operation
from hfdsl.check.bodies.names import last_name, local_names, parameter_names
from hfdsl.check.bodies.scopes import FunctionScope
from hfdsl.check.bodies.syntax import assigned_names
from hfdsl.check.losses.functions import SAME, less_itself
from hfdsl.check.losses.joins import with_origin
from hfdsl.check.losses.masks import CHOICES, masks_of_index
from hfdsl.check.losses.terms import SELECTION, PolicyValue, Quantity
from hfdsl.check.syntax_trees import nodes_of

QUIET: Final = frozenset({"append", "backward", "debug", "info", "print", "warning", "zero_grad"})
"""Functions that are called for their effects, and change no weights."""

PLAIN_CONTEXTS: Final = frozenset({"autocast", "inference_mode", "no_grad", "nullcontext", "record_function"})
"""Contexts in which a model has the same weights."""

DISTRIBUTIONS: Final = frozenset({"Categorical", "log_softmax", "softmax"})
"""Functions that make a distribution of logits."""


class LogProbOrigins:
    """The origins of log-probs in a function; ``effects`` are the statements that may change weights, so far.

    ``number`` tells calls of functions apart.
    """

    def __init__(self, scope: FunctionScope) -> None:
        self.scope, self.effects, self.number = scope, list[ast.stmt](), 0
        self.versions = Counter[str]()
        stores = (node for node in nodes_of(scope.definition) if isinstance(node, ast.Name))
        self.assigned = Counter(node.id for node in stores if not isinstance(node.ctx, ast.Load))
        self.assigned.update(parameter_names(scope.definition))

    def enclosed_in(self, outer: LogProbOrigins) -> None:
        """Take the names of the function that this one is defined in."""
        own = local_names(self.scope.definition)
        self.assigned.update({name: count for name, count in outer.assigned.items() if name not in own})

    def note(self, statement: ast.stmt) -> None:
        """Note a statement that may change weights, or sets names."""
        if isinstance(statement, (ast.AnnAssign, ast.Assign, ast.AugAssign)):
            self.versions.update(assigned_names(statement))
        match statement:
            case ast.Expr(ast.Call(function)):
                is_quiet = last_name(function) in QUIET
            case ast.With(items):
                contexts = (item.context_expr for item in items)
                names = {last_name(c.func) if isinstance(c, ast.Call) else "" for c in contexts}
                is_quiet = names <= PLAIN_CONTEXTS
            case ast.Assign(targets):
                is_quiet = not any(isinstance(part, ast.Attribute) for target in targets for part in nodes_of(target))
            case ast.AugAssign(target) | ast.AnnAssign(target):
                is_quiet = not any(isinstance(part, ast.Attribute) for part in nodes_of(target))
            case _:
                is_quiet = True
        self.effects.extend([] if is_quiet else [statement])

    def of(self, node: ast.expr) -> str:
        """The origin of what an expression gives; empty if other numbers may have the same text."""
        names = {part.id for part in nodes_of(node) if isinstance(part, ast.Name)}
        is_certain = all(self.assigned[name] <= 1 for name in names)
        owner = "" if self.scope.receiver == "self" else f" of {self.scope.receiver}"
        return f"{ast.unparse(node)}{owner} after {len(self.effects)}" if is_certain else ""

    def traced(self, operation: Operation[PolicyValue], result: PolicyValue) -> PolicyValue:
        """The result of an operation with its origin."""
        if isinstance(result, Quantity) and operation.function in ("log_softmax", "softmax"):
            return replace(result, origin=self._of_logits(operation))
        if isinstance(result, Quantity) and result.kind == "categorical":
            return replace(result, origin=result.origin or self.as_written(operation.node))
        if isinstance(result, Quantity) and (result.kind, result.base) == ("gap", "old"):
            return replace(result, of_itself=_is_of_itself(operation))
        if not isinstance(result, Quantity) or result.kind != "log_prob":
            return result
        source = operation.source
        if not isinstance(source, Quantity) or source.kind != "log_prob":
            return with_origin(result, self.of(operation.node))
        arguments = [*operation.positional, *operation.named.values()]
        arguments += [operation.node.right] if isinstance(operation.node, ast.BinOp) else []
        origins = [self.of(argument) for argument in arguments]
        is_certain = source.origin and all(origins)
        text = f"{source.origin}.{operation.function}({', '.join(map(ast.unparse, arguments))})"
        return replace(result, origin=text if is_certain else "")

    def _of_logits(self, operation: Operation[PolicyValue]) -> str:
        """The logits that a distribution is of, as they are written."""
        match operation.node:
            case ast.Call(ast.Attribute(receiver), [*arguments]):
                return self.as_written(receiver if operation.is_method or not arguments else arguments[0])
        return ""

    def as_written(self, node: ast.expr) -> str:
        """An expression as it is written, with the versions of its names."""
        names = sorted({part.id for part in nodes_of(node) if isinstance(part, ast.Name)})
        return f"{ast.unparse(node)} of {self.number}, {[self.versions[name] for name in names]}"


def _is_of_itself(operation: Operation[PolicyValue]) -> bool:
    """Whether log-probs are subtracted from such that are computed alike, and one of the two has no gradient."""
    origins = {value.origin if isinstance(value, Quantity) else "" for value in (operation.source, *operation.others)}
    return less_itself(operation.node) or (len(origins) == 1 and "" not in origins)


class LogitMaker(NamedTuple):
    """The call that makes logits, such as ``self.model``, empty if several may; and what is left out of its logits."""

    call: str = ""
    masks: frozenset[str] = frozenset()


class LogitMakers:
    """The makers of the names of a function, as far as it has run."""

    def __init__(self, scope: FunctionScope) -> None:
        self.scope, self.by_name = scope, dict[str, LogitMaker]()

    def of(self, node: ast.expr) -> LogitMaker:
        """The maker of logits, or of a distribution of them."""
        match node:
            case ast.Name(name):
                return self.by_name.get(name, LogitMaker())
            case ast.Subscript(inner, ast.Constant()) | ast.Attribute(inner, "logits"):  # of what a model returns
                return self.of(inner)
            case ast.Subscript(inner, index):
                return self._of_part(inner, masks_of_index(index))
            case ast.BinOp(left, ast.Add() | ast.Div() | ast.Mult() | ast.Sub()):
                return self.of(left)
            case ast.Call(ast.Attribute(ast.Name(module), function), [first, *_]) if module in MODULES:
                return self._of_function(function, first) if function in SAME | DISTRIBUTIONS else LogitMaker()
            case ast.Call(ast.Attribute(inner, function)) if function in SAME | DISTRIBUTIONS:
                return self._of_function(function, inner)
            case ast.Call(function):
                return LogitMaker(ast.unparse(function).replace("self", self.scope.receiver, 1))
        return LogitMaker()

    def _of_function(self, function: str, source: ast.expr) -> LogitMaker:
        return self._of_part(source, frozenset([SELECTION] if function in CHOICES else []))

    def _of_part(self, whole: ast.expr, masks: frozenset[str]) -> LogitMaker:
        maker = self.of(whole)
        return maker._replace(masks=maker.masks | masks) if maker.call else maker
