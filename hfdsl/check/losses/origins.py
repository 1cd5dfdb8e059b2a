"""Origins of log-probs: are two of them computed alike, from the same numbers, by the same weights?

A worked example, of an update that computes its old log-probs again::

    old = self.log_probs(experience)                   origin: self.log_probs(experience)
    now = self.log_probs(experience)                   the same, so that now - old is 0
    with self.model.disable_adapter():
        ref = self.log_probs(experience)               another one: the context may change weights

Text decides it, so names in it have to be set once at most, and nothing may be called for its effects in between.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from typing import Final

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.names import last_name, parameter_names
from hfdsl.check.bodies.syntax import assigned_names
from hfdsl.check.losses.terms import PolicyValue, Quantity, with_origin
from hfdsl.check.sources import Function

QUIET: Final = frozenset({"append", "backward", "debug", "info", "print", "warning", "zero_grad"})
"""Functions that are called for their effects, and change no weights."""

PLAIN_CONTEXTS: Final = frozenset({"autocast", "inference_mode", "no_grad", "nullcontext", "record_function"})
"""Contexts in which a model has the same weights."""


class LogProbOrigins:
    """The origins of log-probs in a function; ``effects`` are the statements that may change weights, so far.

    ``scope`` tells calls of functions apart.
    """

    def __init__(self, definition: Function, effects: list[ast.stmt] | None = None, scope: int = 0) -> None:
        self.definition, self.effects, self.scope = definition, [] if effects is None else effects, scope
        self.versions = Counter[str]()
        stores = (node for node in ast.walk(definition) if isinstance(node, ast.Name))
        self.assigned = Counter(node.id for node in stores if not isinstance(node.ctx, ast.Load))
        self.assigned.update(parameter_names(definition))

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
                is_quiet = not any(isinstance(part, ast.Attribute) for target in targets for part in ast.walk(target))
            case ast.AugAssign(target) | ast.AnnAssign(target):
                is_quiet = not any(isinstance(part, ast.Attribute) for part in ast.walk(target))
            case _:
                is_quiet = True
        self.effects.extend([] if is_quiet else [statement])

    def of(self, node: ast.expr) -> str:
        """The origin of what an expression gives; empty if other numbers may have the same text."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        is_certain = all(self.assigned[name] <= 1 for name in names)
        return f"{ast.unparse(node)} after {len(self.effects)}" if is_certain else ""

    def traced(self, operation: Operation[PolicyValue], result: PolicyValue) -> PolicyValue:
        """The result of an operation with its origin."""
        if isinstance(result, Quantity) and operation.function in ("log_softmax", "softmax"):
            return replace(result, origin=self._of_logits(operation))
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
                logits = receiver if operation.is_method or not arguments else arguments[0]
                names = sorted({part.id for part in ast.walk(logits) if isinstance(part, ast.Name)})
                return f"{ast.unparse(logits)} of {self.scope}, {[self.versions[name] for name in names]}"
        return ""
