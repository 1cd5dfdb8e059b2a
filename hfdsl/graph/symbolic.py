"""Symbolic values and roles: their placeholders while a dataflow is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfdsl.graph.active import Tracing
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.program import ErrorValue, Operand, Ref
from hfdsl.graph.pythonic import Pythonic, PythonicRole
from hfdsl.graph.signatures import PortType, RecordType
from hfdsl.graph.spans import caller_span
from hfdsl.types.batches import Batch, schema


class Symbolic(Pythonic):
    """Stands for a value while a dataflow is traced: it can be passed on, and nothing else."""

    __slots__ = ("_operand", "_shown", "_tracer", "_type")
    _operand: Operand
    _shown: str
    _tracer: Tracing
    _type: PortType | None

    def __init__(self, tracer: Tracing, operand: Operand, type_: PortType | None, shown: str) -> None:
        set_attribute = object.__setattr__  # its own reports what a user sets
        set_attribute(self, "_tracer", tracer)
        set_attribute(self, "_operand", operand)
        set_attribute(self, "_type", type_)
        set_attribute(self, "_shown", shown)

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(self._operand, ErrorValue):
            self._tracer.record_misuse(MisuseKind.ASSIGN, self._shown, name, producer=self)

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # protocols such as pickling and copying probe for these
        if isinstance(self._operand, ErrorValue):
            return self
        if isinstance(self._type, RecordType):
            fields = schema(self._type.record).fields
            if name in fields and isinstance(self._operand, Ref):
                if fields[name].optional:
                    self._tracer.optional_reads.append((caller_span(), f"{self._shown}.{name}", fields[name]))
                return Symbolic(self._tracer, Ref(self._operand.node, name), fields[name], f"{self._shown}.{name}")
            return self._tracer.record_misuse(
                MisuseKind.NO_COLUMN, self._type.record.__name__, name, tuple(fields), self
            )
        return self._tracer.record_misuse(MisuseKind.COMPUTE, self._shown, f".{name}", producer=self)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Report that a value is not a function, unless it stands for a mistake that was reported."""
        if isinstance(self._operand, ErrorValue):
            return self  # a misspelled method, reported where it was read
        return self._tracer.record_misuse(MisuseKind.COMPUTE, self._shown, "()", producer=self)

    def __hf_pack__(self, record: type[Batch], columns: Mapping[str, Any]) -> Any:
        """The symbolic record of class ``record`` with these columns, including this value."""
        fields = schema(record).fields
        stray = [name for name in columns if name not in fields]
        for name in stray:
            self._tracer.record_misuse(MisuseKind.NO_COLUMN, record.__name__, name, tuple(fields))
        for name in fields if not stray else ():  # a misspelled column is the cause of the missing one
            if name not in columns and name not in schema(record).spare:
                self._tracer.record_misuse(MisuseKind.MERGE_MISSING, record.__name__, name)
        return self._tracer.pack(record, columns)


def error_value(tracer: Tracing) -> Symbolic:
    """A value that a mistake hides."""
    return Symbolic(tracer, ErrorValue(), None, "<broken>")


def is_error(value: object) -> bool:
    """Whether a mistake hides a value, which was reported where the value comes from."""
    return isinstance(value, Symbolic) and isinstance(value._operand, ErrorValue)


class SymbolicRole(PythonicRole):
    """A role parameter: its registered methods can be called."""

    __slots__ = ("_called", "_declared", "_name", "_role", "_tracer")
    _name: str
    _role: type
    _declared: type  # a base of its class, as an inner dataflow's parameter says: the methods that can be called
    _tracer: Tracing
    _called: dict[str, Any]  # its methods that were called: an unrolled loop calls few of them many times

    def __init__(self, tracer: Tracing, name: str, role: type, declared: type | None = None) -> None:
        values = {"_tracer": tracer, "_name": name, "_role": role, "_declared": declared or role, "_called": {}}
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__") and method.endswith("__"):
            raise AttributeError(method)
        if method in self._called:
            return self._called[method]
        signatures = self._tracer.signatures(self._declared)
        if method not in signatures:
            return self._tracer.record_misuse(MisuseKind.NO_METHOD, self._declared.__name__, method, tuple(signatures))
        inherited = getattr(self._role, method) is getattr(self._declared, method)
        signature = (self._tracer.signatures(self._role) if inherited else signatures)[method]
        if signature is None:
            return Symbolic(self._tracer, ErrorValue(), None, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._tracer.call_role(self._name, signature, args, kwargs)

        call.__name__ = f"{self._name}.{method}"  # for the message if it is not called
        self._called[method] = call
        return call
