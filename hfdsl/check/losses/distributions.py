"""Distributions in a policy's loss: which are certainly of tokens, and not of attention, a router or a pool?

A worked example, of a model with an attention over its hidden states::

    chances = self.head(hidden).softmax(-1)                 of tokens, as log-probs are picked from them
    now = chances.log().gather(-1, ids)
    weights = (hidden @ self.query).softmax(-1)             of something else, perhaps
    entropy = Categorical(logits=self.logits(ids)).entropy()        of tokens, as logits are

Text and names decide it, so nothing is said of an entropy of any other distribution.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from hfdsl.check.bodies.interpretation import Operation
from hfdsl.check.bodies.names import last_name
from hfdsl.check.bodies.scopes import FunctionScope
from hfdsl.check.losses.collected import TokenChoice
from hfdsl.check.losses.frames import CallFrame
from hfdsl.check.losses.functions import MADE, of_tokens
from hfdsl.check.losses.names import LOGITS
from hfdsl.check.losses.origins import DISTRIBUTIONS
from hfdsl.check.losses.terms import PolicyValue, Quantity, has_kind
from hfdsl.check.syntax_trees import nodes_of


def distributed(operation: Operation[PolicyValue], result: PolicyValue, frame: CallFrame) -> PolicyValue:
    """The result of an operation, which is of tokens if it is made of logits; what picks log-probs is collected."""
    source = operation.source
    match source, result:
        case Quantity("categorical" | "distribution", origin=origin, maker=called), Quantity("log_prob", masks=masks):
            frame.collected.choices.append(TokenChoice(origin, called, masks))
    is_made = operation.function in DISTRIBUTIONS
    if not isinstance(result, Quantity) or not is_made:
        return result
    is_of_logits = any(has_kind(value, "logits") for value in (source, *operation.others))
    is_named = is_of_logits or names_logits(operation.node, frame.scope)
    maker = frame.makers.of(operation.node)
    return replace(result, of_tokens=is_named, maker=maker.call).masked(*maker.masks)


def categorical(call: ast.Call, arguments: Iterable[PolicyValue], frame: CallFrame) -> PolicyValue:
    """The distribution that a call makes of its arguments."""
    values = [*arguments]
    is_of_logits = any(has_kind(value, "logits") for value in values) or names_logits(call, frame.scope)
    logits = next(iter([*call.args, *(keyword.value for keyword in call.keywords)]), call)
    maker = frame.makers.of(logits)
    masks = maker.masks.union(*(value.masks for value in values if isinstance(value, Quantity)))
    origin = frame.origins.as_written(call)
    quantity = replace(MADE["Categorical"], of_tokens=is_of_logits, maker=maker.call, masks=masks, origin=origin)
    return of_tokens(quantity, call)


def names_logits(node: ast.expr, scope: FunctionScope) -> bool:
    """Whether an expression names logits; what a function takes, its caller knows."""
    parameters = scope.parameters if scope.depth else frozenset()
    return any(LOGITS.fullmatch(name) and name not in parameters for name in map(last_name, nodes_of(node)))
