"""Shared models: which attributes of a role are certainly one model, under two names?

A worked example, of a constructor::

    self.model = AutoModelForCausalLM.from_pretrained(path)
    self.ref_model = self.model.eval()                  the same model: eval() returns it
    self.teacher = copy.deepcopy(self.model)            another one

Nothing is known of an attribute that is set in a branch, or in several places.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple

from hfdsl.check.bodies.optimizers import variable
from hfdsl.check.bodies.role_code import ReadFunction, RoleCode, own_functions
from hfdsl.check.bodies.row_tensors import functions
from hfdsl.check.syntax_trees import nodes_of

RETURNS_ITSELF: Final = functions("bfloat16 cpu cuda double eval float half requires_grad_ share_memory to train")
"""Methods of a module of torch that return it."""


class SharedModel(NamedTuple):
    """An attribute, one that was set before and is the same object, where it is set, and the constructor."""

    attribute: str
    other: str
    place: ast.expr
    function: ReadFunction


def shared_models(code: RoleCode, role: type) -> Iterator[SharedModel]:
    """The attributes that the constructors of a role set to what another one is."""
    settings = Counter(chain.from_iterable(map(_set_attributes, code.all_functions)))
    set_once = {attribute for attribute, times in settings.items() if times == 1}
    for function in own_functions(code, role):
        if function.definition.name == "__init__":
            yield from _shared_in(function, set_once)


def _shared_in(constructor: ReadFunction, set_once: AbstractSet[str]) -> Iterator[SharedModel]:
    """The attributes that a constructor sets to what another one is, of those that nothing else sets."""
    objects = dict[str, int]()
    for statement in constructor.definition.body:
        if not isinstance(statement, ast.Assign):
            continue
        kept = _object_of(statement.value, objects)
        for target in statement.targets:
            name = ast.unparse(target)
            attribute = variable(target) if isinstance(target, ast.Attribute) else ""
            same = [other for other, number in objects.items() if number == kept and other != name]
            others = [other.removeprefix("self.") for other in same if other.startswith("self.")]
            for other in others if attribute in set_once else ():
                if other in set_once:
                    yield SharedModel(attribute, other, target, constructor)
            objects[name] = kept = statement.lineno if kept is None else kept


def _object_of(value: ast.expr, objects: Mapping[str, int]) -> int | None:
    """The line that made the object which an expression certainly is; None of another one."""
    match value:
        case ast.Call(ast.Attribute(owner, method)) if method in RETURNS_ITSELF:
            return _object_of(owner, objects)
        case ast.Name() | ast.Attribute(ast.Name("self")):
            return objects.get(ast.unparse(value))
    return None


def _set_attributes(function: ReadFunction) -> Iterator[str]:
    """The attributes of ``self`` that a function sets, each as often as it does."""
    for node in nodes_of(function.definition):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and variable(node):
            yield node.attr
