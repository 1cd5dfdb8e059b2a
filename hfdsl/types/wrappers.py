"""Errors for bodies that use a column as if it were its tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NoReturn

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHER = ("neg", "abs", "invert", "lt", "le", "gt", "ge", "getitem", "float", "int")


class Wrapper:
    """A wrapper of a column's values.

    Arithmetic on it, or an attribute of its values, raises an error that names the property that holds them.
    Type checkers report the same mistakes statically, since they see none of these methods.
    """

    __slots__ = ()
    holds: ClassVar[str]
    """The property that returns the wrapped value."""


def _lacks(wrapper: Wrapper, member: str) -> str:
    return f"{type(wrapper).__name__} has no {member}: its value is in .{wrapper.holds}"


def _trap(operator: str) -> Callable[..., NoReturn]:
    def refuse(self: Wrapper, *_: object) -> NoReturn:
        raise TypeError(_lacks(self, f"operator '{operator}'"))

    return refuse


def _no_attribute(self: Wrapper, name: str) -> NoReturn:
    raise AttributeError(_lacks(self, f"'{name}'"), name=name, obj=self)


if not TYPE_CHECKING:
    Wrapper.__getattr__ = _no_attribute
    for _name in (*_BINARY, *_OTHER, *(f"r{name}" for name in _BINARY)):
        setattr(Wrapper, f"__{_name}__", _trap(_name))
