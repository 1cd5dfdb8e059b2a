"""The graph: nodes in program order, and what each reads."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from hfdsl.graph.signatures import PortType, Signature
from hfdsl.graph.spans import Span
from hfdsl.types.batches import Batch


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program: what a node makes, or one column of it."""

    node: int
    column: str | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A plain Python value written in the dataflow."""

    value: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """A value that a mistake stands in for: it fits everywhere, so that one mistake is told once."""


Operand: TypeAlias = Ref | Constant | Broken


@dataclass(frozen=True, slots=True)
class Input:
    """A record that the caller of the dataflow gives."""

    name: str
    record: type[Batch]


@dataclass(frozen=True, slots=True)
class RoleCall:
    """A role method; ``call`` numbers the calls of roles and functions, which random streams are derived from."""

    role: str
    signature: Signature
    call: int


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A stateless function, run where its rows are."""

    signature: Signature
    call: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Every row ``times`` times in a row: groups of ``times`` consecutive rows."""

    times: int


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The ``index``-th of ``count`` equal runs of consecutive rows."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Filter:
    """The rows for which the column ``keep`` is true, in order; runs of ``group`` rows are kept or dropped together."""

    group: int


@dataclass(frozen=True, slots=True)
class Take:
    """The first ``rows`` rows; with ``fill`` the rows start over where there are fewer."""

    rows: int
    fill: bool


@dataclass(frozen=True, slots=True)
class Pack:
    """A record put together from columns: every argument is one column of ``record``."""

    record: type[Batch]


@dataclass(frozen=True, slots=True)
class Present:
    """An optional column, its only argument, as one that is there; where it is absent, reading it fails."""


Op: TypeAlias = Input | RoleCall | FunctionCall | Repeat | MiniBatch | Filter | Take | Pack | Present


@dataclass(frozen=True, slots=True)
class Node:
    """One operation: its arguments by port, the declared type of its result, and the user's line."""

    id: int
    op: Op
    arguments: tuple[tuple[str, Operand], ...]
    result: PortType
    span: Span

    @property
    def label(self) -> str:
        """A name for people: ``actor.generate``, ``repeat``, ``prompts``."""
        match self.op:
            case RoleCall(role, signature):
                return f"{role}.{signature.name}"
            case FunctionCall(signature):
                return signature.name
            case Input(name):
                return name
            case Pack(record):
                return record.__name__
            case Repeat():
                return "repeat"
            case MiniBatch(index, count):
                return f"minibatch {index + 1}/{count}"
            case Filter():
                return "filter"
            case Take(_, fill):
                return "fill" if fill else "take"
            case Present():
                return "present"

    @property
    def batch(self) -> Ref | None:
        """The value whose rows an operation on rows gives: its first argument."""
        ref = self.arguments[0][1]
        return ref if isinstance(ref, Ref) else None

    @property
    def refs(self) -> Iterator[Ref]:
        """The values that this node reads."""
        return (operand for _, operand in self.arguments if isinstance(operand, Ref))


class MisuseKind(Enum):
    """What can go wrong while a dataflow is traced."""

    NO_COLUMN = "no column of that name"
    NO_METHOD = "no registered method of that name"
    NO_PORT = "no port of that name"
    TWICE = "a port is wired twice"
    MISSING_PORT = "a port is not wired"
    KEYWORD_ONLY = "a keyword-only port is given by position"
    TOO_MANY = "more positional arguments than ports"
    CONTROL = "a symbolic value decides control flow"
    COMPUTE = "arithmetic on a symbolic value"
    ASSIGN = "a column of a symbolic value is set"
    FOREIGN = "a value of another trace"
    BAD_COUNT = "a repeat or mini-batch count that is not a positive int"
    MERGE_MISSING = "a merge lacks a column"
    MERGE_TWICE = "a merge has two producers of one column"
    DEFINITION = "a declaration that the dataflow uses has no meaning"
    RAISED = "the dataflow raised"
    NOT_A_RESULT = "the dataflow returns something that is no value of the graph"
    CONTAINER = "a list, tuple or dict of symbolic values is passed to a call"
    NOT_A_RECORD = "an operation on rows was given something else"
    NO_SYNC = "a sync between roles that share no state"
    VARIADIC = "a parameter of the dataflow takes any number of values"
    NOT_A_COLUMN = "what takes an optional column was given something else"
    PARAMETER = "a parameter of the dataflow is neither a record nor a role"
    ROLE = "a role is used as a value"
    OUTSIDER = "a worker that is no parameter of the dataflow is called or made"


@dataclass(frozen=True, slots=True)
class Misuse:
    """A mistake met while tracing: where, about which thing, in which candidates it should have been found."""

    kind: MisuseKind
    span: Span
    subject: str
    name: str = ""
    candidates: tuple[str, ...] = ()
    producer: int | None = None
    signature: Signature | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """The shape of what a dataflow returns: a value, or outputs in a ``container`` (tuple, list, ...) or a dict."""

    value: Operand | tuple[Output, ...] | dict[Any, Output]
    container: type = tuple

    def refs(self) -> Iterator[Ref]:
        """The values returned, depth first."""
        if isinstance(self.value, (tuple, dict)):
            for inner in self.value.values() if isinstance(self.value, dict) else self.value:
                yield from inner.refs()
        elif isinstance(self.value, Ref):
            yield self.value


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced dataflow. ``roles`` are its role parameters with their classes, in order.

    ``returns`` is the annotation of its result (``inspect.Signature.empty`` where it has none). ``optional_reads`` are
    the places that read an optional column, each with what it is called and declared as.
    """

    name: str
    nodes: tuple[Node, ...]
    roles: dict[str, type]
    output: Output
    misuses: tuple[Misuse, ...]
    span: Span
    returns: Any = inspect.Signature.empty
    optional_reads: tuple[tuple[Span, str, PortType], ...] = ()

    @property
    def inputs(self) -> Iterator[Node]:
        """The nodes that the caller feeds."""
        return (node for node in self.nodes if isinstance(node.op, Input))

    @property
    def calls(self) -> Iterator[Node]:
        """The nodes that run a body: role methods and functions."""
        return (node for node in self.nodes if isinstance(node.op, (RoleCall, FunctionCall)))
