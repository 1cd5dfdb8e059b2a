"""Unlearned modules: which new modules of a role does an update compute with, and no optimizer has?

A worked example, in which the head stays random::

    self.model, self.head = load(path), torch.nn.Linear(1024, 1)
    self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    loss = (self.head(self.model(ids)) - returns).square().mean()

Code that freezes anything may mean it. Code that hands a module or its parameters on, other than to an optimizer, to be
initialized or to be clipped, may have it learn in a way that is not followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from hfdsl.check.bodies.calls import NO_GRADIENT
from hfdsl.check.bodies.optimizers import learned_attributes, variable
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode, own_functions
from hfdsl.check.syntax_trees import nodes_of

MODULES: Final = frozenset({"Bilinear", "Conv1d", "Conv2d", "Embedding", "GRU", "LSTM", "Linear", "RMSNorm"})
"""The classes of ``torch.nn`` whose modules are there to be learned."""

MEANT: Final = re.compile(r".*(base|expert|frozen|fixed|old|prior|proj|random|ref|rnd|sketch|target|teacher).*")
"""The names of modules that may be there to stay as they are."""

CONSTANT: Final = NO_GRADIENT | {"detach"}
"""Names in code that computes without a gradient."""

PARTS: Final = frozenset(
    {"bias", "buffers", "children", "modules", "named_children", "named_modules", "named_parameters", "parameters"}
    | {"weight"}
)
"""The names by which code gets at the parameters of a module."""

BY_HAND: Final = frozenset(
    {"add_", "add_param_group", "copy_", "data", "freeze", "lerp_", "mul_", "param_groups", "requires_grad"}
    | {"requires_grad_", "sub_"}
)
"""Names in code that may freeze a module, or change it without an optimizer."""


class UnlearnedModule(NamedTuple):
    """An attribute with a module, where it is made, and the constructor that does."""

    attribute: str
    place: ast.expr
    function: ReadFunction


def unlearned_modules(code: RoleCode, role: type, method: str) -> Iterator[UnlearnedModule]:
    """The modules that a method computes with, and that no optimizer of the role has."""
    learned = learned_attributes(code)
    unknown = PARTS.union(code.functions)  # those of all modules, if the role is one, or of a method
    if not learned or not learned.isdisjoint(unknown) or not BY_HAND.isdisjoint(code.names):
        return
    own = [function for function in own_functions(code, role) if function in [*code.reached(method, "__init__")]]
    reached = [function for function in own if function.definition.name != "__init__"]
    for function, attribute, place in _new_modules(own):
        computing = [other for other in reached if attribute in _called(other)]
        is_learned = bool(computing) and all(CONSTANT.isdisjoint(other.names) for other in computing)
        is_kept = all(_is_only_called(other, attribute) for other in code.all_functions)
        if is_learned and is_kept and attribute not in learned and not MEANT.fullmatch(attribute.lower()):
            yield UnlearnedModule(attribute, place, function)


def _new_modules(own: Sequence[ReadFunction]) -> Iterator[tuple[ReadFunction, str, ast.expr]]:
    """The modules of torch that the constructors among a role's functions make, by attribute."""
    for function in own:
        for statement in function.definition.body if function.definition.name == "__init__" else ():
            pairs: list[tuple[ast.expr, ast.expr]] = []
            match statement:
                case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)) if len(targets) == len(values):
                    pairs = [*zip(targets, values, strict=True)]
                case ast.Assign([target], value):
                    pairs = [(target, value)]
            for target, value in pairs:
                if isinstance(target, ast.Attribute) and isinstance(value, ast.Call) and variable(target):
                    path = function.path(value.func).split(".")
                    if path[:2] == ["torch", "nn"] and path[-1] in MODULES:
                        yield function, target.attr, value


def _called(function: ReadFunction) -> set[str]:
    """The attributes of ``self`` that a function calls."""
    calls = (node.func for node in nodes_of(function.definition) if isinstance(node, ast.Call))
    return {called.attr for called in calls if isinstance(called, ast.Attribute) and variable(called)}


def _is_only_called(function: ReadFunction, attribute: str) -> bool:
    """Whether a function only sets, calls or initializes a module, or changes its gradients."""
    nodes = [*nodes_of(function.definition)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    loops = [node.iter for node in nodes if isinstance(node, ast.For) and _changes_gradients(node)]
    changes = [*loops, *(call for call in calls if _initializes_or_clips(function, call))]
    harmless = {inner for change in changes for inner in nodes_of(change)}
    known = {call.func for call in calls}
    known |= {node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr not in PARTS}
    known |= {node.value for node in nodes if isinstance(node, ast.Attribute) and node in harmless}
    uses = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == attribute and variable(node)]
    return all(use in known or isinstance(use.ctx, ast.Store) for use in uses)


def _changes_gradients(loop: ast.For) -> bool:
    """Whether a loop over parameters uses only their gradients, as one that takes the mean over ranks."""
    inner = [node for statement in loop.body for node in nodes_of(statement)]
    gradients = {node.value for node in inner if isinstance(node, ast.Attribute) and node.attr == "grad"}
    uses = [node for node in inner if isinstance(node, ast.Name) and ast.unparse(node) == ast.unparse(loop.target)]
    return isinstance(loop.target, ast.Name) and bool(uses) and all(use in gradients for use in uses)


def _initializes_or_clips(function: ReadFunction, call: ast.Call) -> bool:
    """Whether a call initializes parameters, or clips their gradients."""
    return function.path(call.func).startswith(("torch.nn.init.", "torch.nn.utils.clip_grad"))
