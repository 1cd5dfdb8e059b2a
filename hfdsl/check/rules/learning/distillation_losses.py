"""Distillation losses: does a student that minimizes the user's own loss become like its teacher?

A worked example, of a record with ``teacher_logits``, of which the last three learn the reverse::

    s, t = self.model(ids).logits.log_softmax(-1), batch.teacher_logits.tensor.log_softmax(-1)
    loss = (t.exp() * (t - s)).sum(-1).mean()
    loss = (t.exp() * (s - t)).sum(-1).mean()                           HF353: the gap is turned
    loss = -F.kl_div(s, t, log_target=True)                             HF353: negated
    loss = ((teacher - now).detach() * now).mean()                      HF353: the gap is turned, on sampled tokens

``losses/divergences.py`` says what rises as both grow apart. The rule is silent where code speaks of anything that is
to differ from its teacher on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.role_code import code_of
from hfdsl.check.bodies.temperatures import known_numbers
from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls, training_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.distillation import TEACHER, DistillationInterpretation
from hfdsl.check.losses.divergences import TeacherDivergence, TeacherGap
from hfdsl.check.losses.sides import words_of
from hfdsl.check.losses.updates import Minimizer, minimizer
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.graph.program import Node
from hfdsl.graph.spans import NOWHERE, Span

REVERSED: Final = re.compile(
    r".*(adversar|amateur|anti|attack|contrast|discrepan|divers|forget|generator|negative|opponent|poison|repel|repuls"
    r"|revers(?!e_?kl)|teacher_?forc|teacher_?opt|opt(imizer)?_?teacher|unlearn|worse|bad_).*"
)
"""The names of what may grow apart from a teacher on purpose."""


class Departure(NamedTuple):
    """A loss that falls as a student grows apart from its teacher, or a gap that has this sign; and its place."""

    value: TeacherDivergence | TeacherGap
    place: Span


def students_become_like_teachers(context: Context) -> Iterator[Finding]:
    """HF353: what a student minimizes rises as it grows apart from its teacher."""
    program, reported = context.program, set[Span]()
    for node in training_calls(program) if not program.graph.misuses else ():
        update = minimizer(program, node)
        if update is None or TEACHER in words_of(update.role.__name__):
            continue
        place = program.placement(node)
        numbers = known_numbers(update.role, None if place is None else (place.args, place.kwargs))
        departure = _departure(update, numbers)
        is_own = any(call.role == node.role for call in sampling_calls(program, node))
        if departure is None or departure.place in reported or (isinstance(departure.value, TeacherGap) and is_own):
            continue
        reported.add(departure.place)
        yield _finding(context, node, departure)


@lru_cache(maxsize=256)
def _departure(update: Minimizer, numbers: tuple[tuple[str, float], ...]) -> Departure | None:
    """The loss of a method by which a student certainly grows apart from its teacher."""
    code, methods = code_of(update.role), methods_of(update.role)
    names = {*map(str.lower, code.names)}
    columns = {port.name for port in update.signature.ports}
    if not any(TEACHER in name for name in names) or any(
        map(REVERSED.fullmatch, {*names, *columns, *methods, update.role.__name__.lower()})
    ):
        return None
    body = DistillationInterpretation.of_method(
        update.signature, methods[update.method], methods, update.role, update.objects
    )
    body.numbers, body.trusts_coefficients = dict(numbers), not update.has_negative_numbers
    if not body.completed().is_whole:
        return None
    losses = [
        Departure(value, place if value.place == NOWHERE else value.place)
        for value, place in body.minimized
        if isinstance(value, (TeacherDivergence, TeacherGap))
    ]
    signs = frozenset[int]().union(*(_signs(loss.value) for loss in losses))
    return losses[0] if signs == {-1} else None


def _signs(value: object) -> frozenset[int]:
    """The signs of divergences; minimized alone, the log-probs of tokens less a teacher's make these tokens rarer."""
    match value:
        case TeacherDivergence(signs):
            return signs
        case TeacherGap(sign, "log_probs", True, False):
            return frozenset({-sign} if sign > 0 else ())
    return frozenset()


def _finding(context: Context, node: Node, departure: Departure) -> Finding:
    effect = "falls as it grows apart from its teacher: it is rewarded for leaving it"
    if isinstance(departure.value, TeacherGap):
        effect = "rises with the log-probs of its tokens: it learns to make them rarer, whatever its teacher says"
    finding = Finding(
        "HF353",
        f"'{node.label}' minimizes a loss that {effect}",
        Label(departure.place, "what it minimizes"),
        (Label(node.span, "called here"),),
    )
    edits = _edits(context, node, departure)
    return with_suggestions(context, finding, edits, "a KL and a cross entropy are minimized, with their sign", most=1)


def _edits(context: Context, node: Node, departure: Departure) -> Iterator[Suggestion]:
    """The edit that may mend a loss: a minus; a helper may have other callers."""
    from hfdsl.check.repair import bodies  # late: most programs need none

    method = methods_of(context.program.role_class(node.role)).get(node.method)
    if method is not None and method.has(departure.place) and isinstance(departure.value, TeacherDivergence):
        yield from bodies.negated(departure.place)
