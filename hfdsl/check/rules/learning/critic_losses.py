"""Losses of critics: does a critic learn returns, by the greater of two errors, with a clip around old values?

A worked example, of an update whose record has ``returns``, ``advantages`` and old ``values``::

    plain, clipped = (now - returns) ** 2, (held - returns) ** 2      held is within 0.2 of the old values
    loss = torch.max(plain, clipped).mean()
    loss = torch.min(plain, clipped).mean()            HF946: the smaller error has no gradient where the clip acts
    held = returns + (now - returns).clamp(-0.2, 0.2)                  HF348: whatever they are called
    held = now + (old - now).clamp(-0.2, 0.2)                          HF348: around the new values themselves
    loss = ((now - advantages) ** 2).mean()            HF351: advantages are returns less the critic's own values

The rule knows advantages by the names under which updates read them, and only if they depend on values of the critic:
another role may predict advantages. ``bodies/value_errors.py`` says to which column a loss takes an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.value_errors import CriticErrors, ErrorInterpretation
from hfdsl.check.context import Context
from hfdsl.check.dependences import training_calls, update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.updates import minimizes
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.rules.learning.mistaken_numbers import ADVANTAGE, float_columns
from hfdsl.check.rules.learning.value_targets import value_calls
from hfdsl.check.sources import argument_span
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Ref
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.signatures import Signature
from hfdsl.graph.spans import Span

READY_TARGET = "returns"
"""The column that the ready-made critic learns."""


def critics_take_the_greater_error(context: Context) -> Iterator[Finding]:
    """HF946: of the errors of values with a clip and without, a critic minimizes the greater one."""
    program, reported = context.program, set[Span]()
    for update in training_calls(program) if not program.graph.misuses else ():
        errors = _errors(program, update)
        losses = errors.losses if errors is not None and all(loss.sign > 0 for loss in errors.losses) else []
        for place in sorted({place for loss in losses for place in loss.smaller}, key=lambda place: place.line):
            if place not in reported:
                reported.add(place)
                finding = Finding(
                    "HF946",
                    f"'{update.label}' takes the smaller of the errors with a clip and without: values may leave the "
                    "old ones as far as they like, as long as the clipped ones do not",
                    Label(place, "the greater one is meant"),
                    (Label(update.span, "called here"),),
                )
                yield with_suggestions(context, finding, _other_extreme(place), "write torch.max", most=1)


def _other_extreme(place: Span) -> Iterator[Suggestion]:
    from hfdsl.check.repair import bodies  # late: most programs need none

    yield from bodies.other_extreme(place)


def critics_learn_no_advantages(context: Context) -> Iterator[Finding]:
    """HF351: a critic over whose values advantages are taken learns returns, and not these advantages."""
    program, reported = context.program, set[Span]()
    values = list(value_calls(program)) if not program.graph.misuses else []
    names = _names(program) if values else {}
    for update in update_lines(program) if values else ():
        own = [call for call in values if call.role == update.role and call.id < update.id]
        own_ids = {call.id for call in own}
        after = descendants(program.graph, own_ids) - own_ids
        for column in program.origins.columns(update.id) if own else ():
            stored = stored_column(program.graph, column.ref)
            is_target = f"{column.port}.{column.name}" in _targets(program, update)
            if not isinstance(stored, Ref) or stored.node not in after or not is_target or update.span in reported:
                continue
            is_renamed = stored.column != column.name in {*float_columns(program.graph.nodes[stored.node])}  # HF232
            if not is_renamed and any(map(ADVANTAGE.fullmatch, names.get(stored, set()) | {stored.column or ""})):
                reported.add(update.span)
                yield _learns_advantages(program, update, column, stored, own[0])


def critics_clip_around_old_values(context: Context) -> Iterator[Finding]:
    """HF348: the numbers around which a critic clips its values are not those that it learns, or advantages."""
    program, reported = context.program, set[Span]()
    values = list(value_calls(program)) if not program.graph.misuses else []
    returned = {name for call in values for name in float_columns(call)}  # the rule on mistaken numbers reports these
    names = _names(program) if values else {}
    for update in update_lines(program) if values else ():
        own, errors = next((call for call in values if call.role == update.role), None), _errors(program, update)
        columns = {f"{column.port}.{column.name}": column for column in program.origins.columns(update.id)}
        stored = {path: stored_column(program.graph, column.ref) for path, column in columns.items()}
        learned = [stored[path] for path in _targets(program, update) if path in stored]
        around_new = errors.around_new if errors is not None and own is not None else []
        if around_new and update.span not in reported:
            reported.add(update.span)
            yield _clips_around_new(update, around_new[0])
        for center in errors.centers if errors is not None and own is not None else ():
            numbers = stored.get(center)
            is_advantage = isinstance(numbers, Ref) and any(map(ADVANTAGE.fullmatch, names.get(numbers, set())))
            if (
                own is None
                or not isinstance(numbers, Ref)
                or columns[center].name in returned
                or update.span in reported
            ):
                continue
            if numbers in learned or is_advantage:
                reported.add(update.span)
                yield _clips_around(program, update, columns[center], numbers, own)


def _clips_around(program: Program, update: Node, column: RowColumn, stored: Ref, values: Node) -> Finding:
    maker = program.graph.nodes[stored.node]
    return Finding(
        "HF348",
        f"'{update.label}' clips its values around '{column.name}', which is '{stored.column}' of '{maker.label}' and "
        f"not what '{values.label}' returned: the clip never acts as meant",
        Label(argument_span(update.span, signature_of(update), column.port), f"read as '{column.name}'"),
        (program.producer_label(maker.id), Label(values.span, "returns the old values")),
        notes=(f"take the values of '{values.label}' for '{column.name}'",),
    )


def _clips_around_new(update: Node, place: Span) -> Finding:
    return Finding(
        "HF348",
        f"'{update.label}' holds old values near the new ones, and not the new ones near the old: new values learn "
        "from it only outside of the clip",
        Label(place, "a clip around the new values"),
        (Label(update.span, "called here"),),
        notes=("values = old + (new - old).clamp(-eps, eps)",),
    )


def _learns_advantages(program: Program, update: Node, column: RowColumn, stored: Ref, values: Node) -> Finding:
    maker = program.graph.nodes[stored.node]
    return Finding(
        "HF351",
        f"'{update.label}' learns '{stored.column}' of '{maker.label}', which are advantages over the values of "
        f"'{values.label}': they are 0 on average, and so are the values that it learns",
        Label(argument_span(update.span, signature_of(update), column.port), f"read as '{column.name}'"),
        (program.producer_label(maker.id), Label(values.span, "the values that they are over")),
        notes=("learn returns: those of the estimate, or advantages plus the old values",),
    )


def _names(program: Program) -> dict[Ref, set[str]]:
    """The names under which updates read each column."""
    names = dict[Ref, set[str]]()
    for update in update_lines(program):
        for column in program.origins.columns(update.id):
            stored = stored_column(program.graph, column.ref)
            if isinstance(stored, Ref):
                names.setdefault(stored, set()).add(column.name or column.port)
    return names


def _targets(program: Program, update: Node) -> frozenset[str]:
    """The columns, by their paths, to which an update certainly minimizes the error of its values."""
    signature = signature_of(update)
    if signature is not None and signature.is_ready_made:
        return frozenset(f"{port.name}.{READY_TARGET}" for port in signature.ports)
    errors = _errors(program, update)
    losses = [loss for loss in errors.losses if loss.sign > 0] if errors is not None else []
    return frozenset(path for loss in losses if len(loss.paths) == 1 for path in loss.paths)


def _errors(program: Program, update: Node) -> CriticErrors | None:
    """The errors of values in an update; None if it may not minimize."""
    signature, role = signature_of(update), program.role_class(update.role)
    if signature is None or signature.is_ready_made or not minimizes(role, update.method):
        return None
    return _body_errors(signature, role, update.method)


@lru_cache(maxsize=256)
def _body_errors(signature: Signature, role: type, method: str) -> CriticErrors | None:
    methods = methods_of(role)
    body = ErrorInterpretation.of_method(signature, methods[method], methods, role).completed()
    return body.errors if body.is_whole else None
