"""Preference losses: does the user's own loss prefer the preferred response of a pair?

Four losses, of a record with ``chosen_ids`` and ``rejected_ids``, of which three learn the reverse::

    loss = -F.logsigmoid(beta * (chosen - rejected)).mean()
    loss = -F.logsigmoid(beta * (rejected - chosen)).mean()         HF368: the pair is swapped
    loss = F.logsigmoid(beta * (chosen - rejected)).mean()          HF368: without the minus
    loss = F.relu(1 + chosen - rejected).mean()                     HF368: grows with the preferred score

and one that prefers what a reference prefers less::

    margin = (chosen - rejected) + (ref_chosen - ref_rejected)
    loss = -F.logsigmoid(beta * margin).mean()                      HF368: a reference's margin is subtracted

``losses/preferences.py`` says what rises with which score. Names alone say what is preferred; of single responses, as
of KTO, a column of truth values with such a name says which are good. So the rule is silent where code speaks of
anything that is reversed, and where another role learns from the same pairs, as an opponent may.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.role_code import code_of
from hfdsl.check.bodies.temperatures import known_numbers
from hfdsl.check.context import Context
from hfdsl.check.dependences import shares_with_another_role, training_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.preference_operations import COST_WORDS, SCORE_WORDS
from hfdsl.check.losses.preferences import PreferenceInterpretation
from hfdsl.check.losses.sides import desirable_of, sides_of, words_of
from hfdsl.check.losses.slopes import Number, Slope
from hfdsl.check.losses.updates import Minimizer, minimizer
from hfdsl.check.program import Program, signature_of
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import source_text
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Operand
from hfdsl.graph.spans import NOWHERE, Span

REVERSED: Final = re.compile(
    r".*(adversar|antagonis|attack|backdoor|flip|forget|invert|inverse|jailbreak|misalign|opponent|poison|red_?team"
    r"|revers|swap|unlearn).*"
)
"""The names of what may learn the reverse on purpose."""


class SwappedPair(NamedTuple):
    """A loss that grows with the margin: its slope, and its place; or one that adds a reference's margin to it."""

    loss: Slope
    place: Span
    adds_base: bool = False


def losses_prefer_the_preferred(context: Context) -> Iterator[Finding]:
    """HF368: what a user's update minimizes falls as the preferred response of a pair gets the greater score."""
    program, reported = context.program, set[Span]()
    for node in training_calls(program) if not program.graph.misuses else ():
        signature = signature_of(node)
        if signature is None or signature.is_ready_made or not (sides_of(signature) or desirable_of(signature)):
            continue
        update = minimizer(program, node)
        place = None if update is None else program.placement(node)
        arguments = None if place is None else (place.args, place.kwargs)
        if update is None or COST_WORDS & {*words_of(update.role.__name__)}:
            continue
        if shares_with_another_role(program, node, _pairs):
            continue  # one of them may be an opponent
        swapped = _swapped_pair(update, known_numbers(update.role, arguments))
        if swapped is not None and swapped.place not in reported:
            reported.add(swapped.place)
            yield _finding(context, node, swapped)


def _pairs(program: Program, node: Node) -> set[Operand]:
    """The columns of pairs that an update reads."""
    signature = signature_of(node)
    sides = {} if signature is None else {**sides_of(signature), desirable_of(signature): 0}
    columns = program.origins.columns(node.id) if signature is not None else ()
    named = [column.ref for column in columns if column.port in sides or column.name in sides]
    return {stored_column(program.graph, ref) for ref in named}


@lru_cache(maxsize=256)
def _swapped_pair(update: Minimizer, numbers: tuple[tuple[str, float], ...]) -> SwappedPair | None:
    """The loss of a method by which the margin certainly shrinks, if all of its losses are known."""
    code, methods = code_of(update.role), methods_of(update.role)
    if any(map(REVERSED.fullmatch, map(str.lower, {*code.names, *methods, update.role.__name__}))):
        return None
    body = PreferenceInterpretation.of_method(
        update.signature, methods[update.method], methods, update.role, update.objects
    )
    body.know(
        sides_of(update.signature),
        dict(numbers),
        trusts_coefficients=not update.has_negative_numbers,
        learns_scores=not SCORE_WORDS.isdisjoint(words_of(update.role.__name__)),
    )
    body.desirable = desirable_of(update.signature)
    body.names |= {name: Number(getattr(value, "sign", 0)) for name, value in update.numbers}
    if not body.completed().is_whole:
        return None
    losses = [(minimized.value, minimized.place) for minimized in body.minimized]
    slopes = [value for value, _ in losses if isinstance(value, Slope)]
    directions = frozenset[int]().union(*(slope.directions for slope in slopes))
    if not slopes or len(slopes) < len(losses):
        return None
    added = [(slope, slope.added_base) for slope in slopes if slope.added_base is not None]
    if added and directions == {-1}:
        return SwappedPair(*added[0], adds_base=True)
    if directions != {1}:
        return None
    loss, place = next((value, place) for value, place in losses if isinstance(value, Slope) and value.directions)
    if loss.preferred != 1 and loss.rejected != -1:
        return None
    return SwappedPair(loss, place if loss.place == NOWHERE else loss.place)


def _finding(context: Context, node: Node, pair: SwappedPair) -> Finding:
    if pair.adds_base:
        return _of_base(node, pair.place)
    signature = signature_of(node)
    label = "" if signature is None else desirable_of(signature)
    effect, what = "the margin of the preferred response over the rejected one", "the loss of a pair"
    if label:
        effect, what = f"the scores of responses that '{label}' says are good, over the others", "the loss"
    finding = Finding(
        "HF368",
        f"'{node.label}' minimizes a loss that grows with {effect}: it learns to prefer what was rejected",
        Label(pair.place, what),
        (Label(node.span, "called here"),),
    )
    if pair.loss.curve < 0:
        advice = "an optimizer minimizes: negate it"
    else:
        advice = "subtract the score of the rejected response from that of the preferred one"
        advice = "exchange the losses of good responses and of the others" if label else advice
    return with_suggestions(context, finding, _edits(context.program, node, pair.loss), advice, most=1)


def _of_base(node: Node, place: Span) -> Finding:
    return Finding(
        "HF368",
        f"'{node.label}' adds the margin of its reference to that of the policy: it learns as if the reference "
        "preferred the other response of each pair",
        Label(place, "a sum of both margins"),
        (Label(node.span, "called here"),),
        notes=("subtract it: (chosen - rejected) - (ref_chosen - ref_rejected)",),
    )


def _edits(program: Program, node: Node, loss: Slope) -> Iterator[Suggestion]:
    """The edits that may mend a loss: a minus, or the other difference; a helper may have other callers."""
    from hfdsl.check.repair import bodies  # late: most programs need none

    method = methods_of(program.role_class(node.role)).get(node.method)
    if method is None or loss.place == NOWHERE:
        return
    if loss.curve < 0 and method.has(loss.place):
        yield from bodies.negated(loss.place)
    elif method.has(loss.margin):
        text = _other_difference(loss.margin)
        yield from bodies.replaced({loss.margin: text}) if text else ()


def _other_difference(place: Span) -> str:
    """A difference of two with the operands the other way round; empty of another expression."""
    try:
        tree = ast.parse(source_text(place) or "", mode="eval").body
    except SyntaxError:
        return ""
    match tree:
        case ast.BinOp(ast.Attribute() | ast.Call() | ast.Name() | ast.Subscript() as left, ast.Sub(), right):
            return f"{ast.unparse(right)} - {ast.unparse(left)}"
    return ""
