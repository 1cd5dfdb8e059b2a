"""Classes to construct on every rank, alone or several in one process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hfdsl.errors import DefinitionError, WiringError
from hfdsl.protocols.register import registered_methods
from hfdsl.single_controller.host import method_name, methods_of
from hfdsl.single_controller.ray_internals import TRACE_PARAMETER, actor_class, actor_options
from hfdsl.types.similar_names import closest


def plain_class(cls: Any) -> type:
    """The user's own class, without any ``@ray.remote`` around it; ``DefinitionError`` (HF118) for anything else."""
    cls = actor_class(cls)
    if not isinstance(cls, type):
        raise DefinitionError("HF118", f"a worker group runs a class, got {cls!r}")
    return cls


class RayClassWithInitArgs:
    """A class and the arguments of its constructor on every rank, where an ObjectRef arrives as its value.

    Raises ``WiringError`` (HF203) for arguments that the constructor does not take.
    """

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        self.cls = cls
        self.args = args
        self.kwargs = kwargs
        # The group overrides some of the options of ``@ray.remote(...)``.
        self.options: dict[str, Any] = actor_options(cls)
        owner = plain_class(cls)
        # The signature of __init__, not of the class: Worker's __new__ takes anything, and object's __init__ claims to.
        init: Any = owner.__init__  # type: ignore[misc]  # read, not called
        signature = inspect.Signature() if init is object.__init__ else bare_signature(init, skip_self=True)
        check_arguments(signature, owner.__name__, args, kwargs)

    @property
    def roles(self) -> Mapping[str, RayClassWithInitArgs]:
        """The roles that one process hosts, by name; a single class has an empty name."""
        return {"": self}

    @property
    def classes(self) -> dict[str, type]:
        """The user's class of every role."""
        return {role: plain_class(role_class.cls) for role, role_class in self.roles.items()}

    @property
    def name(self) -> str:
        """The name of the class, or of the classes that share the process."""
        return "_".join(cls.__name__ for cls in self.classes.values())

    def update_options(self, options: Mapping[str, Any]) -> None:
        """Add Ray options for the actors; the group itself sets name, placement and share of the devices."""
        self.options.update(options)


class ColocatedClasses(RayClassWithInitArgs):
    """Several roles that share one process per rank."""

    def __init__(self, roles: Mapping[str, RayClassWithInitArgs]) -> None:
        self._roles = dict(roles)
        self.cls, self.args, self.kwargs = type(self), (), {}
        self.options = {}
        for role_class in self._roles.values():
            self.options.update(role_class.options)

    @property
    def roles(self) -> Mapping[str, RayClassWithInitArgs]:
        """The roles by name."""
        return self._roles


def create_colocated_worker_cls(class_dict: Mapping[str, RayClassWithInitArgs]) -> RayClassWithInitArgs:
    """The class of a process per rank that hosts all these roles; ``group.spawn(names)`` returns a group for each.

    Raises ``DefinitionError``: HF112 for anything but roles, HF111 for two methods with the same name on the group.

    >>> class Actor:
    ...     def __init__(self, layers: int) -> None: ...
    >>> class Critic: ...
    >>> colocated = create_colocated_worker_cls(
    ...     {"actor": RayClassWithInitArgs(Actor, layers=2), "critic": RayClassWithInitArgs(Critic)}
    ... )
    >>> list(colocated.roles), colocated.name  # RayWorkerGroup(pool, colocated).spawn(["actor", "critic"])
    (['actor', 'critic'], 'Actor_Critic')
    """
    if not isinstance(class_dict, Mapping) or not class_dict:
        raise DefinitionError("HF112", f"colocated roles are a dict name -> RayClassWithInitArgs, got {class_dict!r}")
    for role, role_class in class_dict.items():
        if not isinstance(role, str) or not role.isidentifier():
            raise DefinitionError("HF112", f"a role's name is an identifier, got {role!r}")
        if not isinstance(role_class, RayClassWithInitArgs) or isinstance(role_class, ColocatedClasses):
            raise DefinitionError("HF112", f"role {role!r} is a RayClassWithInitArgs of one class, got {role_class!r}")
    owners: dict[str, str] = {}
    for role, role_class in class_dict.items():
        for method in registered_methods(plain_class(role_class.cls)):
            name = method_name(role, method)
            if name in owners:
                raise DefinitionError(
                    "HF111", f"roles {owners[name]!r} and {role!r} both have {name!r} on the group; rename a role"
                )
            owners[name] = role
    return ColocatedClasses(class_dict)


create_colocated_worker_cls_fused = create_colocated_worker_cls
"""The name in other libraries; roles share their processes in both."""


def check_arguments(signature: inspect.Signature, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``WiringError`` (HF202 for an unknown name, else HF203) for arguments that do not fit a signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = list(signature.parameters.values())
        for stray in [key for key in kwargs if key not in signature.parameters]:
            missing = [
                parameter.name
                for parameter in parameters[len(args) :]
                if parameter.default is parameter.empty and parameter.name not in kwargs
            ]
            hint = f"did you mean {missing[0]!r}?" if len(missing) == 1 else closest(stray, list(signature.parameters))
            raise WiringError("HF202", f"{name}{signature} has no argument {stray!r}; {hint}") from None
        raise WiringError("HF203", f"{name}{signature} is called with the wrong arguments: {error}") from None


@dataclass(frozen=True, slots=True)
class Target:
    """A method of a group, callable by name."""

    name: str
    role: str
    method: str
    owner: str
    function: Callable[..., Any]
    bare: inspect.Signature
    """The signature for callers, without ``self``."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""
        return tuple(self.bare.parameters)


def targets(role_class: RayClassWithInitArgs, only: str = "") -> dict[str, Target]:
    """All methods of a group by name; with ``only``, those of one role by their own names."""
    by_name = {}
    for role, cls in role_class.classes.items():
        if only and role != only:
            continue
        for method, function in methods_of(cls):
            name = method if only else method_name(role, method)
            free = inspect.ismethod(function) or isinstance(inspect.getattr_static(cls, method), staticmethod)
            bare = bare_signature(function, skip_self=not free)
            by_name[name] = Target(
                name=name, role=role, method=method, owner=cls.__name__, function=function, bare=bare
            )
    return by_name


def bare_signature(function: Callable[..., Any], *, skip_self: bool) -> inspect.Signature:
    """A function's signature for callers: without ``self``, and without the parameter of Ray's tracing."""
    signature = inspect.signature(function)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != TRACE_PARAMETER]
    return signature.replace(parameters=parameters[1:] if skip_self else parameters)
