"""Python operations on a symbolic value: printing it is harmless, branching on it or computing with it is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from hfdsl.graph.active import Traced, Tracing
from hfdsl.graph.fits import python_class
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.program import ErrorValue
from hfdsl.graph.signatures import PortType, RecordType
from hfdsl.types.batches import schema

_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_OTHER = (
    *("neg", "pos", "abs", "invert", "round", "lt", "le", "gt", "ge", "eq", "ne", "getitem", "setitem", "contains"),
    *("array", "array_ufunc", "floor", "ceil", "trunc", "delitem", "enter"),
)


class Pythonic(Traced):
    """The part of a symbolic value that answers Python itself.

    The answers to what decides or computes only let the trace continue to find more.
    """

    __slots__ = ()

    @property  # type: ignore[misc]  # isinstance(x, Rollout) holds as it does when the dataflow runs eagerly
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # read only
        return python_class(self._type) or type(self)

    def __repr__(self) -> str:
        return f"<{self._type or 'value'} '{self._shown}'>"

    def __format__(self, spec: str) -> str:
        if spec:
            self._decides("formatting")
        return repr(self)

    def __copy__(self) -> Any:
        return self  # a value never changes: a copy is the value

    def __deepcopy__(self, _: object) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        self._decides("pickling")
        return str, (repr(self),)

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        return self.__reduce__()

    def __bool__(self) -> bool:
        self._decides("if")
        return self._tracer.is_first_decision()

    def __len__(self) -> int:
        self._decides("len()")
        return int(self._tracer.is_first_decision())

    def __iter__(self) -> Iterator[Any]:
        return iter((self._decides("iteration"),))

    def __next__(self) -> Any:
        return self._decides("iteration")

    def __exit__(self, *_: object) -> None:
        """Nothing: the misuse was reported when the block was entered."""

    def __float__(self) -> float:
        self._decides("float()")
        return 1.0

    def __complex__(self) -> complex:
        self._decides("complex()")
        return 1.0

    def __int__(self) -> int:
        self._decides("int()")
        return 1

    __index__ = __int__
    __hash__ = object.__hash__

    def _decides(self, conversion: str) -> Any:
        self._tracer.count_decision()
        if isinstance(self._operand, ErrorValue):
            return self
        return self._tracer.record_misuse(MisuseKind.CONTROL, self._shown, conversion, producer=self)

    @classmethod
    def __torch_function__(cls, function: Any, _: object, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Called by torch for a value among the arguments of its functions: ``torch.exp(x)``, ``torch.cat([x, y])``."""
        flat = [
            inner for a in (*args, *(kwargs or {}).values()) for inner in (a if isinstance(a, (list, tuple)) else [a])
        ]
        value = next(value for value in flat if isinstance(value, Pythonic))
        return _trap(f"torch.{getattr(function, '__name__', function)}")(value)


class PythonicRole:
    """The part of a role that answers Python itself: it is not a value, and only its methods are called."""

    __slots__ = ()
    _name: str
    _role: type
    _tracer: Tracing

    @property  # type: ignore[misc]  # isinstance(actor, Actor) holds as it does when the dataflow runs eagerly
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]  # read only
        return self._role

    def __repr__(self) -> str:
        return f"<role '{self._name}' of class {self._role.__name__}>"

    def __setattr__(self, name: str, value: object) -> None:
        self._is_value(f".{name} =")

    def __call__(self, *_: object, **__: object) -> Any:
        """A role is not a function: a misuse."""
        return self._is_value("()")

    def __getitem__(self, _: object) -> Any:
        return self._is_value("[...]")

    def __iter__(self) -> Iterator[Any]:
        return iter((self._is_value("iteration"),))

    def _is_value(self, access: str) -> Any:
        return self._tracer.record_misuse(MisuseKind.ROLE, self._name, access, (self._role.__name__,))


def uncalled(value: object) -> str:
    """Name a function or method that was not called, for a message; empty for another value."""
    name = getattr(value, "__name__", None)
    return f"the uncalled function '{name}'" if callable(value) and name and not isinstance(value, type) else ""


def _columns(kind: PortType | None) -> Collection[str]:
    return schema(kind.record).fields if isinstance(kind, RecordType) else ()


def _trap(operator: str) -> Callable[..., Any]:
    def compute(self: Any, *others: object, **_: object) -> Any:
        if isinstance(self._operand, ErrorValue):
            return self
        if operator == "getitem" and isinstance(others[0], Pythonic) and isinstance(others[0]._operand, ErrorValue):
            return others[0]  # indexed by the keys that ``**`` asked for, which was reported
        if operator == "getitem" and isinstance(others[0], str) and others[0] in _columns(self._type):
            return self._tracer.record_misuse(MisuseKind.ITEM, self._shown, others[0], producer=self)
        return self._tracer.record_misuse(MisuseKind.COMPUTE, self._shown, operator, producer=self)

    return compute


for _name in (*_BINARY, *_OTHER):
    setattr(Pythonic, f"__{_name}__", _trap(_name))
for _name in _BINARY:
    setattr(Pythonic, f"__r{_name}__", _trap(_name))
