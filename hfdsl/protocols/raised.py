"""The error of a role's body is also an error of the type that the body raised, so that a caller can catch either.

A body raises ``QuotaError("alice", limit=3)`` in a worker. The caller gets an object of a class that derives from
``RoleError`` and ``QuotaError``: ``except QuotaError as error`` catches it, ``error.limit`` is 3, and its text names
role, method and rank and ends with the worker's traceback.

Nothing of the user's class runs on the way: constructors may take what they like, so the object is made by the
``__new__`` of the built-in base, and what the original held is copied. Each piece is pickled on its own, and one that
does not pickle is left out. Where a class cannot be sent, or cannot be imported by the caller, its nearest base that
can stands in for it; in the end that is ``Exception``, and the error is a ``RoleError`` alone. So it is for
``SystemExit`` and others that are no ``Exception``, which would end the caller. What Ray raises in a body to end its
process is not an error of the body: it propagates to Ray, and the caller learns that the process is gone.
"""

from __future__ import annotations

import pickle
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from hfdsl.errors import RoleError

HEAP_TYPE = 1 << 9
"""The flag of classes that Python code defines: the first base without it is a built-in exception."""

NOT_COPIED = frozenset({"args", "code", "message", "with_traceback", "add_note", "__notes__"})
"""Attributes that are not copied: the error has its own, or its text says it."""


MESSAGE_CHARACTERS, TRACE_CHARACTERS = 2_000, 16_000
"""The most characters of a body's message, and of its traceback, in an error; longer ones lose their middle."""

MISSING = object()
"""An attribute that the caller cannot unpickle."""


class RaisedError(RoleError):
    """The base of errors that also have a user's type."""

    raised: type[BaseException]
    """The user's type of the error."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        classes = [data for cls in _exceptions(self.raised) if (data := _pickled(cls)) is not None]
        state = {name: data for name, value in _state(self).items() if (data := _pickled(value)) is not None}
        return _restored, (self.code, self.message, classes, _pickled(self.args), state)


def as_raised(error: RoleError, original: BaseException) -> RoleError:
    """The error in a class that also derives from the original's type, or from its nearest base that allows it.

    >>> error = as_raised(RoleError("HF806", "Actor.act raised KeyError on rank 0"), KeyError("x"))
    >>> isinstance(error, KeyError), error.args, str(error)
    (True, ('x',), 'HF806: Actor.act raised KeyError on rank 0')
    """
    if not isinstance(original, Exception):
        return error
    for cls in _exceptions(type(original)):
        with suppress(Exception):  # a class that is final, or whose metaclass or slots do not combine with others
            return _combined(cls, error.code, error.message, original.args, _state(original))
    return error


def described(error: BaseException) -> str:
    """The type and message of an error; the message may be very long, and computing it may raise.

    >>> described(ValueError("bad rows")), len(described(ValueError("x" * 10**7))) < 2_100
    ('ValueError: bad rows', True)
    """
    try:
        text = str(error)
    except BaseException as failure:  # noqa: BLE001  # the user's own __str__, which may raise anything
        text = f"(its message raises {type(failure).__name__})"
    return f"{type(error).__name__}: {shortened(text, MESSAGE_CHARACTERS)}"


def ends_process(error: BaseException) -> bool:
    """Whether Ray raised an error to end the process, as after SIGTERM; one that a body raises does not end it.

    >>> ends_process(SystemExit(1))
    False
    """
    return isinstance(error, SystemExit) and hasattr(error, "ray_terminate_msg")


def trace_of(error: BaseException, frame: types.TracebackType | None) -> str:
    """The traceback of an error from a frame on."""
    return shortened("".join(traceback.format_exception(type(error), error, frame)).rstrip(), TRACE_CHARACTERS)


def shortened(text: str, most: int) -> str:
    """Shorten a text to ``most`` characters by leaving out its middle.

    >>> shortened("abcdefghijkl", 6)
    'abc [6 characters left out] jkl'
    """
    left_out = len(text) - most
    end = len(text) - most // 2
    return text if left_out <= 0 else f"{text[: end - left_out]} [{left_out} characters left out] {text[end:]}"


def _exceptions(cls: type) -> Iterator[type[BaseException]]:
    """A class and its bases, as far as a ``RoleError`` is not one of them anyway."""
    return (base for base in cls.__mro__ if issubclass(base, BaseException) and not issubclass(RaisedError, base))


def _combined(
    cls: type[BaseException], code: str, message: str, args: tuple[Any, ...], state: Mapping[str, Any]
) -> RaisedError:
    names = {"code": code, "message": message, "raised": cls, "__module__": RoleError.__module__}
    kind: Any = types.new_class(f"RoleError({cls.__name__})", (RaisedError, cls), exec_body=lambda ns: ns.update(names))
    builtin: Any = next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE)
    error: Any = _new(builtin.__new__, kind, args)
    BaseException.args.__set__(error, args)  # type: ignore[attr-defined]  # a descriptor, unless a subclass hides it
    for name, value in state.items():
        with suppress(AttributeError, TypeError):  # read-only
            object.__setattr__(error, name, value)
    return error  # type: ignore[no-any-return]  # of the class made above


def _new(make: Callable[..., Any], kind: type, args: tuple[Any, ...]) -> Any:
    try:
        return make(kind, *args)  # an ExceptionGroup takes nothing less
    except (TypeError, ValueError):
        return make(kind)


def _state(error: BaseException) -> dict[str, Any]:
    """The attributes of an error: those of its ``__dict__``, of slots, and of built-in classes, such as ``errno``."""
    state: dict[str, Any] = {}
    descriptors = (types.MemberDescriptorType, types.GetSetDescriptorType)
    for cls in type(error).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, descriptors) and not name.startswith("__"):
                with suppress(AttributeError):
                    state[name] = getattr(error, name)
    state |= getattr(error, "__dict__", {})
    return {name: value for name, value in state.items() if name not in NOT_COPIED}


def _pickled(value: object) -> bytes | None:
    # Ray's own pickles classes of a notebook by value; in a process that has not loaded Ray nothing leaves it.
    pickler: Any = getattr(sys.modules.get("ray"), "cloudpickle", pickle)
    try:
        data: bytes = pickler.dumps(value)
        pickle.loads(data)  # what cannot be read is no use to the caller
    except BaseException:  # noqa: BLE001  # the user's own classes may raise anything
        return None
    return data


def _restored(
    code: str, message: str, classes: list[bytes], pickled_args: bytes | None, pickled_state: Mapping[str, bytes]
) -> RoleError:
    args = _loaded(pickled_args) if pickled_args is not None else ()
    state = {name: value for name, data in pickled_state.items() if (value := _loaded(data)) is not MISSING}
    for data in classes:
        cls: Any = _loaded(data)  # MISSING where the caller cannot import its module
        with suppress(Exception):
            return _combined(cls, code, message, args if isinstance(args, tuple) else (), state)
    return RoleError(code, message)


def _loaded(data: bytes) -> Any:
    try:
        return pickle.loads(data)  # what a worker of the same run has pickled
    except Exception:  # noqa: BLE001  # a module that is missing here, or a class that differs
        return MISSING
