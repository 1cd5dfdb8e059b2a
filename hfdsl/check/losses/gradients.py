"""Gradients in a policy's loss: what they are taken of, and what has none.

A worked example::

    old = now.detach()                                    old log-probs
    weight = (now.detach() - old).exp().requires_grad_()  of which gradients are taken from here on
    loss.backward()                                       a loss
    grads = torch.autograd.grad(loss, parameters)         likewise
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Final

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.losses import joins
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.terms import PolicyValue, Quantity

OPTIONS: Final = frozenset({"allow_unused", "create_graph", "inputs", "retain_graph"})
"""The options of what takes gradients that leave them as they are."""


def collect_loss(operation: Operation[PolicyValue], frame: CallFrame) -> None:
    """Collect what gradients are taken of: ``loss.backward()``, ``torch.autograd.grad(loss, ...)``."""
    source, positional, others = operation.source, operation.positional, operation.others
    if operation.named.keys() <= OPTIONS:
        is_of_argument = source is None and (operation.function == "grad" or len(positional) == 1)
        if is_of_argument and others:
            frame.collected.losses.append(others[0])
        elif not positional:
            frame.collected.losses.append(source)


def gradient_result(operation: Operation[PolicyValue], _: CallFrame) -> PolicyValue:
    """A value with or without its gradient; None for other functions.

    Log-probs that a name has with their gradient are no other policy's without it.
    """
    if operation.function == "requires_grad_":
        return joins.with_gradient(operation.source)
    if operation.function != "detach":
        return None
    value, node = joins.without_gradient(operation.source), operation.node
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_name(node.func.value)
    return replace(value, above="") if isinstance(value, Quantity) and value.kind == "old" and is_named else value


def _is_name(node: ast.expr) -> bool:
    """Whether an expression is a name, or a part of what has one."""
    return isinstance(node, (ast.Attribute, ast.Name)) or (isinstance(node, ast.Subscript) and _is_name(node.value))
