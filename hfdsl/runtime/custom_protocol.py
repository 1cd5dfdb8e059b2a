"""Custom protocols, whose dispatch and collect functions run in the driver on whole values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.body_checks import check_result, check_widths
from hfdsl.graph.program import Ref
from hfdsl.graph.spans import NOWHERE, traceback_span
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import Reader, from_columns, to_columns
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.rank.body_results import check_collected_rows, planned_widths
from hfdsl.runtime.rank.store import PayloadContent

COLLECTED = "from its collect function"


class GroupView:
    """The part of a worker group that a protocol's functions may read."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.world_size = mesh, mesh.world_size
        self.workers = tuple(range(mesh.world_size))


def dispatched(step: Step, group: GroupView, reader: Reader) -> list[dict[str, Any]]:
    """The arguments that a dispatch function returns for whole values, one set per rank.

    Raises:
        WiringError: HF407 if it raises, or returns anything but one entry per rank for each argument.
    """
    values = {}
    for name, operand in step.arguments:
        port = step.signature.port(name)
        if port is not None:
            rows = reader.table.rows.get(operand.node, 0) if isinstance(operand, Ref) else 0
            values[name] = reader.value(operand, port.type, ((0, rows),))
    positional, keywords = _arguments(step, values)
    with _users_function(step, "dispatch"):
        returned = step.custom.dispatch_fn(group, *positional.values(), **keywords) if step.custom else ((), {})
    lists = _by_name(step, tuple(positional), returned)
    for name, entries in lists.items():
        _check_entries(step, group, name, entries)
    return [{name: entries[rank] for name, entries in lists.items()} for rank in range(group.world_size)]


def _arguments(step: Step, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values passed by position and by keyword, both in parameter order, regardless of how the call passed them.

    A parameter after one that is left to its default can only be passed by keyword.
    """
    positional, keywords = dict[str, Any](), dict[str, Any]()
    by_position = True
    for port in step.signature.ports:
        by_position = by_position and port.name in values and not port.keyword_only
        if port.name in values:
            (positional if by_position else keywords)[port.name] = values[port.name]
    return positional, keywords


def _by_name(step: Step, positional: Sequence[str], returned: Any) -> dict[str, Any]:
    """The result of a dispatch function, by the parameters that receive it."""
    match returned:
        case (tuple() | list() as args, Mapping() as kwargs):
            pass
        case _:
            returned_type = type(returned).__name__
            if isinstance(returned, (tuple, list)):
                returned_type = f"({', '.join(type(part).__name__ for part in returned)})"
            raise _dispatch_error(step, f"returned {returned_type}, but must return (args, kwargs)")
    if len(args) > len(positional):
        raise _dispatch_error(step, f"returned {len(args)} positional arguments, but received {len(positional)}")
    lists = dict(zip(positional, args, strict=False))
    for name, entries in kwargs.items():
        if name in lists:
            raise _dispatch_error(step, f"returned argument '{name}' twice, by position and by keyword")
        if step.signature.port(name) is None:
            raise _dispatch_error(step, f"returned argument '{name}', which the method does not have")
        lists[name] = entries
    for port in step.signature.ports:
        if port.required and port.name not in lists:
            raise _dispatch_error(step, f"returned nothing for argument '{port.name}'")
    return lists


def _check_entries(step: Step, group: GroupView, name: str, entries: Any) -> None:
    if isinstance(entries, (list, tuple)) and len(entries) == group.world_size:
        return
    entries_in_words = type(entries).__name__
    if isinstance(entries, (list, tuple)):
        entries_in_words = f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"
    needed = f"a list with an entry for each of {group.world_size} ranks is needed"
    raise _dispatch_error(step, f"returned {entries_in_words} for argument '{name}', where {needed}")


@contextmanager
def _users_function(step: Step, kind: str) -> Iterator[None]:
    """Report what a user's function raises as its call's error, with the line that raised it."""
    try:
        yield
    except Exception as error:
        raised, place = f"{type(error).__name__}: {error}", traceback_span(error)
        where = step.signature.span if place == NOWHERE else place
        text = f"the {kind} function of '{step.label}' raised {raised} ({where})"
        raise WiringError("HF407", text) from error


def _dispatch_error(step: Step, why: str) -> WiringError:
    return WiringError("HF407", f"the dispatch function of '{step.label}' {why} ({step.signature.span})")


def collected(plan: Plan, step: Step, group: GroupView, contents: Sequence[PayloadContent], table: RowTable) -> Any:
    """The result of a collect function for the outputs of all ranks.

    Raises:
        WiringError: HF407 if it raises; HF805 if that is not what the method declares, or has another number of rows
            or another width.
    """
    outputs = [from_columns(step.signature.returns, _columns(content)) for content in contents]
    with _users_function(step, "collect"):
        value = step.custom.collect_fn(group, outputs) if step.custom else None
    check_result(step.label, step.signature.returns, value, COLLECTED)
    check_widths(step.label, step.signature, {}, value, COLLECTED, planned_widths(plan, step))
    check_collected_rows(step, table, to_columns(value))
    return value


def _columns(content: PayloadContent) -> Mapping[str, Any]:
    return {key.column: value for key, value in content.items()}
