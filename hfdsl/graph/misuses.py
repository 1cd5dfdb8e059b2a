"""Misuses: uses of symbolic values that no plan can express, such as ``if x:``, as a trace records them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span
from hfdsl.types.numbers import brief


class MisuseKind(Enum):
    """Mistakes that a trace can report."""

    NO_COLUMN = "no column of that name"
    NO_METHOD = "no registered method of that name"
    NO_PORT = "no port of that name"
    TWICE = "a port is wired twice"
    MISSING_PORT = "a port is not wired"
    KEYWORD_ONLY = "a keyword-only port is given by position"
    TOO_MANY = "more positional arguments than ports"
    CONTROL = "a symbolic value decides control flow"
    COMPUTE = "arithmetic on a symbolic value"
    ITEM = "a column is read as an item"
    ASSIGN = "a column of a symbolic value is set"
    FOREIGN = "a value of another trace"
    BAD_COUNT = "a repeat or mini-batch count that is not a positive int"
    MERGE_MISSING = "a merge lacks a column"
    MERGE_TWICE = "a merge has two producers of one column"
    DEFINITION = "a declaration that the dataflow uses has no meaning"
    RAISED = "the dataflow raised"
    NOT_A_RESULT = "the dataflow returns something that is not a value of the graph"
    CONTAINER = "a list, tuple or dict of symbolic values is passed to a call"
    NOT_A_RECORD = "an operation on rows was given a column"
    NOT_ROWS = "an operation on rows was given something without rows"
    LIST_OF_ROWS = "an operation on rows was given a list with one record per rank"
    NO_SYNC = "a sync between roles that share no state"
    VARIADIC = "a parameter of the dataflow takes any number of values"
    NOT_A_COLUMN = "what takes an optional column was given something else"
    PARAMETER = "a parameter of the dataflow is neither a record nor a role"
    ROLE = "a role is used as a value"
    ARGUMENT = "an argument that an inner dataflow does not take"
    RETURNED = "an inner dataflow returns something else than its annotation says"
    BOUNDS = "a number outside of what its port declares"
    GROUP = "a group that is smaller than its function declares"
    OUTSIDER = "a worker that is not a parameter of the dataflow is called or made"


@dataclass(frozen=True, slots=True)
class Misuse:
    """A mistake met while tracing: its place, its subject, and the candidates for the name that was not found."""

    kind: MisuseKind
    span: Span
    subject: str
    name: str = ""
    candidates: tuple[str, ...] = ()
    producer: int | None = None
    signature: Signature | None = None


def no_record(value: object) -> str:
    """The problem with a value in the place of a class of records, the first argument of a merge."""
    return f"hf.merge takes a class of records first, as in hf.merge(Experience, rollout), got {brief(value)}"
