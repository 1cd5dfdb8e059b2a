"""Temperatures in bodies: does an update take log-probs at the temperature at which its tokens were sampled?

A worked example, of users' roles::

    token = torch.multinomial((logits / 0.7).softmax(-1), 1)            samples at 0.7
    now = logits.log_softmax(-1).gather(-1, ids)                        HF712: log-probs at 1
    loss = -((now - old).exp() * advantages).mean()                     of an update by a surrogate

Tokens of one distribution then train another one, and where the old log-probs are those of sampling, ratios do not
start at 1. The rule compares an update with the calls that sampled its tokens from its weights, and with those whose
log-probs it takes. The temperature that a role states by ``policy_temperature`` counts as its temperature. The rule
does not report updates without a surrogate, as an imitation may be at another temperature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hfdsl.check.bodies.kept_attributes import methods_of
from hfdsl.check.bodies.known_values import Known
from hfdsl.check.bodies.temperatures import TemperatureInterpretation, Uses, known_attributes
from hfdsl.check.context import Context
from hfdsl.check.dependences import sampling_calls, update_lines
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.names import LOG_PROB, REFERENCE, TEACHER
from hfdsl.check.losses.terms import is_surrogate, terms_of
from hfdsl.check.losses.updates import interpreted_update
from hfdsl.check.program import Program, call_numbers, signature_of
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.graph.origins import stored_column
from hfdsl.graph.program import Node, Ref, RoleCall
from hfdsl.graph.samples import is_float_column
from hfdsl.graph.spans import Span
from hfdsl.protocols import role_facts


class Tempered(NamedTuple):
    """A call that does something at a temperature, and where that is written: in a body, or a placement."""

    call: Node
    effect: str
    temperature: float
    place: Span
    is_stated: bool = False

    @property
    def label(self) -> Label:
        """The label of the place."""
        return Label(self.place, f"{self.effect} at {self.temperature:g}")


def updates_are_at_the_temperature_of_their_samples(context: Context) -> Iterator[Finding]:
    """HF712: log-probs of an update are of the distribution that its tokens, or its old log-probs, are of."""
    program, reported = context.program, set[Span]()
    if program.graph.misuses:
        return
    bodies, links = _Bodies(program), role_links(program)
    for update in update_lines(program):
        compared = [
            (call, effect)
            for call, effect, is_reference in _compared(program, update)
            if is_reference or update.role in linked_roles(links, call.role)
        ]
        learned = bodies.learned(update) if compared else None
        for call, effect in compared if learned is not None else ():
            other = bodies.tempered(call, effect)
            if learned is None or other is None or math.isclose(learned.temperature, other.temperature):
                continue
            if learned.place not in reported and not (learned.is_stated and other.is_stated):
                reported.add(learned.place)
                yield _finding(learned, other)


SAMPLES, TAKES = "samples", "takes log-probs"
"""What a call may do at a temperature."""


def _finding(learned: Tempered, other: Tempered) -> Finding:
    update, call = learned.call, other.call
    called = [Label(call.span, "called here")] if call.span != update.span else []
    return Finding(
        "HF712",
        f"'{call.label}' {other.effect} at temperature {other.temperature:g}, but '{update.label}' {learned.effect} at "
        f"{learned.temperature:g}: they are of different distributions",
        learned.label,
        (other.label, *called, Label(update.span, "learns from it")),
        notes=("divide the logits by one temperature wherever tokens are sampled and log-probs are taken",),
    )


def _compared(program: Program, update: Node) -> Iterator[tuple[Node, str, bool]]:
    """The calls that an update is compared with, by tokens and by their log-probs, and whether they are a reference's.

    Log-probs of another policy may be those of its own temperature.
    """
    yield from ((call, SAMPLES, False) for call in sampling_calls(program, update) if isinstance(call.op, RoleCall))
    for column in program.origins.columns(update.id):
        stored, name = stored_column(program.graph, column.ref), column.name or column.port
        if not isinstance(stored, Ref) or not is_float_column(column.spec) or not LOG_PROB.fullmatch(name):
            continue
        call = program.graph.nodes[stored.node]
        if isinstance(call.op, RoleCall) and not TEACHER.fullmatch(f"{call.role}.{name}"):
            yield call, TAKES, REFERENCE.fullmatch(f"{column.port}.{name}") is not None


@dataclass
class _Bodies:
    """The temperatures of the calls of a program, of which each is interpreted once."""

    program: Program
    uses: dict[int, Uses | None] = field(default_factory=dict)

    def learned(self, update: Node) -> Tempered | None:
        """The temperature of the log-probs in an update by a surrogate, or the one that its role states."""
        learned = self.tempered(update, TAKES)
        if learned is None or learned.is_stated:
            return learned
        body = interpreted_update(self.program, update)
        if body is None or body.by_name:  # log-probs of code that cannot be read
            return None
        terms = [term for loss in body.losses for term in terms_of(loss)]
        return learned if any(map(is_surrogate, terms)) else None

    def tempered(self, call: Node, effect: str) -> Tempered | None:
        """The temperature that a role states, or that of a body."""
        place = self.program.placement(call)
        stated = role_facts.policy_temperature.of(place)
        if place is not None and stated is not None:
            return Tempered(call, effect, stated, place.span, is_stated=True)
        if call.id not in self.uses:
            self.uses[call.id] = self._uses(call)
        uses = self.uses[call.id]
        use = None if uses is None else uses.samples if effect == SAMPLES else uses.picks
        if use is None or use.temperature is None:
            return None
        return Tempered(call, effect, use.temperature, use.place)

    def _uses(self, call: Node) -> Uses | None:
        """Where the body of a call samples and takes log-probs."""
        signature, role, place = signature_of(call), self.program.role_class(call.role), self.program.placement(call)
        methods = methods_of(role)
        if signature is None or signature.is_ready_made or call.method not in methods:
            return None
        body = TemperatureInterpretation.of_method(signature, methods[call.method], methods)
        body.attributes = known_attributes(role, None if place is None else (place.args, place.kwargs))
        body.names |= {name: Known(number) for name, number in call_numbers(call).items()}
        return body.completed().uses if body.is_whole else None
