"""Objects in a body whose class is known, such as the loss that a role keeps, and the methods that it runs of them.

A worked example, of a role's constructor::

    self.loss = ClipLoss(0.2)                           an object of ClipLoss
    self.model = Policy(config).to(device)              an object of Policy
    self.surrogate = clipped_loss                       a function
    self.surrogate = LOSSES[config.loss]                one of the functions in a table of the module
    self.other = other                                  an object of the class of what the role is placed with
    self.loss = ClipLoss() if clip else PlainLoss()     not known
    self.loss = make_loss(config)                       not known

An attribute that a class sets in two ways is not known, and neither is one of a class that sets some by their names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias

from hfdsl.check.bodies.calls import enables_gradient, is_without_gradient
from hfdsl.check.bodies.role_code import is_of_user
from hfdsl.check.bodies.syntax import assigned_names, definition_of, is_decorated, resolved
from hfdsl.check.sources import Function
from hfdsl.check.syntax_trees import nodes_of

SAME_OBJECT: Final = frozenset(
    {"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "requires_grad_", "to", "train"}
)
"""Methods of a model of torch that return the model itself."""

BY_NAME: Final = frozenset({"__dict__", "__setattr__", "add_module", "register_module", "setattr", "vars"})
"""The names that set attributes by names which the code need not write."""


class CalledFunction(NamedTuple):
    """A function that a body calls; a method of an ``owner`` takes that first if it ``is_bound``."""

    body: Callable[..., Any]
    definition: Function
    is_bound: bool = False
    owner: KnownObject | None = None
    is_closure: bool = False
    """Whether it is written in the body that calls it, and so has the names of that."""

    @property
    def parameters(self) -> Sequence[str]:
        """The parameters that take positional arguments."""
        return [argument.arg for argument in (*self.definition.args.posonlyargs, *self.definition.args.args)]

    @property
    def is_without_gradient(self) -> bool:
        """Whether it certainly computes without gradients, by a decorator."""
        is_decorated_so = any(map(is_without_gradient, self.definition.decorator_list))
        return is_decorated_so and not enables_gradient([self.definition])

    def arguments(self, call: ast.Call) -> Mapping[str, ast.expr]:
        """The arguments of a call by parameter, without those of ``**arguments``."""
        positional = dict(zip(self.parameters[self.is_bound :], call.args, strict=False))
        return positional | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


@dataclass(frozen=True, slots=True)
class KnownObject:
    """An object of a user's class, by the path that its role has for it, such as ``self.loss``.

    A namespace is the class itself. ``root`` is the class of the role, and ``given`` are the values that its own
    constructor keeps of its arguments, by attribute.
    """

    kind: type
    path: str
    root: type
    is_namespace: bool = False
    given: tuple[tuple[str, KeptValue], ...] = ()

    def method(self, name: str, after: Callable[..., Any] | None = None) -> CalledFunction | None:
        """The method that a call runs; ``after`` one that calls ``super()``, that of the next class."""
        bases = [*self.kind.__mro__]
        if after is not None:
            own = [base for base in bases if getattr(vars(base).get(after.__name__), "__func__", None) is after]
            own += [base for base in bases if vars(base).get(after.__name__) is after]
            bases = bases[bases.index(own[0]) + 1 :] if own else []
        kept = kept_values(self.kind)
        if name in self._patched() or kept is None or (name in kept and after is None):
            return None
        member = next((vars(base)[name] for base in bases if name in vars(base)), None)
        return self._called(member)

    def _called(self, member: object) -> CalledFunction | None:
        function = getattr(member, "__func__", member)
        is_static = isinstance(member, staticmethod)
        needs_self = self.is_namespace and isinstance(member, FunctionType)
        if not isinstance(function, FunctionType) or needs_self or not is_of_user(function.__module__):
            return None
        definition = None if is_decorated(function) else definition_of(function)
        owner = replace(self, is_namespace=True) if isinstance(member, classmethod) else self
        return (
            None
            if definition is None
            else CalledFunction(function, definition, not is_static, None if is_static else owner)
        )

    def result_of_call(self) -> CalledFunction | None:
        """The method that a call of the object itself runs: of a model of torch, ``forward``."""
        if self.is_namespace:
            return None
        return self.method("__call__") or (self.method("forward") if _is_model(self.kind) else None)

    def attribute(self, name: str) -> KnownObject | CalledFunction | None:
        """The object, or the function, that the object keeps under a name."""
        kept = kept_values(self.kind)
        if kept is None or self.is_namespace or name in self._patched():
            return None
        value = kept.get(name) or dict(self.given).get(name)
        if isinstance(value, type):
            return KnownObject(value, f"{self.path}.{name}", self.root)
        return value if isinstance(value, CalledFunction) else None

    def choices(self, name: str) -> FunctionChoice:
        """The functions of a table of which the object keeps one under a name."""
        value = None if self.is_namespace or name in self._patched() else (kept_values(self.kind) or {}).get(name)
        return value if isinstance(value, FunctionChoice) else NO_CHOICE

    def _patched(self) -> frozenset[str]:
        """The attributes that the role sets of objects; of itself it is said in what it keeps."""
        return frozenset() if self.kind is self.root else _set_elsewhere(self.root)


class FunctionChoice(NamedTuple):
    """The functions of which a call runs one."""

    functions: tuple[CalledFunction, ...]


NO_CHOICE: Final = FunctionChoice(())
"""No function that is known."""

KeptValue: TypeAlias = type | CalledFunction | FunctionChoice | None
"""The class of an object that is kept, a function, or the functions of which one is; None if something unknown is."""


def class_of_call(node: ast.expr, resolve: Callable[[ast.expr], object]) -> type | None:
    """The user's class of which an expression makes an object; ``resolve`` knows names of the module."""
    match node:
        case ast.Call(ast.Attribute(owner, method)) if method in SAME_OBJECT:
            kind = class_of_call(owner, resolve)
            return kind if kind is not None and _is_model(kind) else None
        case ast.Call(function):
            called = resolve(function)
            return called if isinstance(called, type) and is_followed(called) else None
    return None


def _is_model(kind: type) -> bool:
    """Whether objects of a class are modules of torch."""
    return any(base.__module__ == "torch.nn.modules.module" for base in kind.__mro__)


@lru_cache(maxsize=256)
def is_followed(kind: type) -> bool:
    """Whether a class is the user's own, and makes objects of itself alone."""
    is_plain = all(
        name not in vars(base)
        for base in kind.__mro__
        for name in ("__getattribute__", "__getattr__", "__new__")
        if is_of_user(base.__module__)
    )
    return is_of_user(kind.__module__) and type(kind).__module__ in ("abc", "builtins", "typing") and is_plain


@lru_cache(maxsize=256)
def kept_values(kind: type) -> Mapping[str, KeptValue] | None:
    """By attribute the class of the object, or the function, that objects of a class keep; all that they set.

    None if it sets some by names that the code does not write.
    """
    kept, set_twice = dict[str, KeptValue](), set[str]()
    for function, definition in _functions(kind):
        if not BY_NAME.isdisjoint(_names(definition)):
            return None
        kept_by_target = {
            id(target): _kept_value(function, definition, value)
            for node in nodes_of(definition)
            for target, value in _assignment(node)
        }
        for node in nodes_of(definition):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and _is_own(node):
                value = kept_by_target.get(id(node))
                if kept.setdefault(node.attr, value) != value:
                    set_twice.add(node.attr)
    return kept | dict.fromkeys(set_twice)


def _assignment(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign([target], value) | ast.AnnAssign(target, _, ast.expr() as value):
            yield target, value


def _kept_value(body: Callable[..., Any], definition: Function, node: ast.expr) -> KeptValue:
    """The class of the object that a constructor makes, or the function that it names."""
    kind = class_of_call(node, partial(resolved, body, definition))
    choice = choice_of(node, partial(resolved, body, definition)) if kind is None else NO_CHOICE
    if choice.functions:
        return choice
    if kind is not None or not isinstance(node, (ast.Name, ast.Attribute)):
        return kind
    return function_of_user(resolved(body, definition, node))


def function_of_user(value: object) -> CalledFunction | None:
    """A user's function, as a call runs it."""
    if not isinstance(value, FunctionType) or not is_of_user(value.__module__) or is_decorated(value):
        return None
    definition = definition_of(value)
    return None if definition is None else CalledFunction(value, definition)


def choice_of(node: ast.expr, resolve: Callable[[ast.expr], object]) -> FunctionChoice:
    """The functions that an entry of a table may be, also as a user's function returns it.

    All, if its key is no literal; none if one is not the user's.
    """
    match node:
        case ast.Subscript(owner, key) | ast.Call(ast.Attribute(owner, "get"), [key]):
            return _entries(resolve(owner), key)
        case ast.Call(function) if (getter := function_of_user(resolve(function))) is not None:
            match [part.value for part in nodes_of(getter.definition) if isinstance(part, ast.Return)]:
                case [ast.Subscript(owner, key)]:
                    return _entries(resolved(getter.body, getter.definition, owner), key)
    return NO_CHOICE


def _entries(table: object, key: ast.expr) -> FunctionChoice:
    """The functions that a table may have under a key."""
    if not isinstance(table, dict):
        return NO_CHOICE
    entries = [table.get(key.value)] if isinstance(key, ast.Constant) else [*table.values()]
    functions = [function_of_user(entry) for entry in entries]
    return NO_CHOICE if None in functions else FunctionChoice(tuple(f for f in functions if f is not None))


def given_values(role: type, arguments: Mapping[str, object]) -> Mapping[str, KeptValue]:
    """By attribute the class of an object, or the function, that a role keeps of the arguments of its constructor.

    Those that it sets once, to an argument that the constructor does not change.
    """
    constructor: Any = vars(role).get("__init__")
    definition = definition_of(constructor) if isinstance(constructor, FunctionType) else None
    if definition is None:
        return {}
    nodes = [node for _, code in _functions(role) for node in nodes_of(code)]
    stores = [node.attr for node in nodes if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)]
    values = dict[str, KeptValue]()
    for target, value in (pair for node in nodes_of(definition) for pair in _assignment(node)):
        if isinstance(target, ast.Attribute) and _is_own(target) and isinstance(value, ast.Name):
            is_certain = stores.count(target.attr) == 1 and value.id not in assigned_names(definition)
            values[target.attr] = _given(arguments.get(value.id)) if is_certain else None
    return {name: value for name, value in values.items() if value is not None}


def _given(value: object) -> KeptValue:
    """The class of an object that a constructor is given, or a function."""
    kind: type = type(value)
    has_own_methods = any(callable(getattr(kind, name, None)) for name in getattr(value, "__dict__", {}))
    return kind if is_followed(kind) and not has_own_methods else function_of_user(value)


def _functions(kind: type) -> Iterator[tuple[FunctionType, Function]]:
    """The methods of a class and its bases that are the user's, also those that others override."""
    for base in kind.__mro__:
        for member in vars(base).values() if is_of_user(base.__module__) else ():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            definition = definition_of(function) if isinstance(function, FunctionType) else None
            if definition is not None:
                yield function, definition


@lru_cache(maxsize=256)
def _set_elsewhere(root: type) -> frozenset[str]:
    """The attributes that a role sets of anything but itself."""
    nodes = (node for _, definition in _functions(root) for node in nodes_of(definition))
    stores = (n for n in nodes if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load) and not _is_own(n))
    return frozenset(node.attr for node in stores)


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


@lru_cache(maxsize=256)
def _names(definition: Function) -> frozenset[str]:
    """All names and attributes in a function."""
    nodes = [*nodes_of(definition)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return frozenset(names | {node.attr for node in nodes if isinstance(node, ast.Attribute)})
