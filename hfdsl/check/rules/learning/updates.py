"""Learning: do the updates of a role change its parameters, by its learning rate and by its dtype?

Roles state both by ``learning``. A dataflow does not say how many updates a run has, so the rule compares only a
schedule's own numbers. The check of a configured run, which knows its steps, covers the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hfdsl.check.context import Context
from hfdsl.check.dependences import training_calls
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.protocols import role_facts
from hfdsl.protocols.role_facts import Learning

LOST_BELOW = 1e-4
"""AdamW changes a weight by about the learning rate. bfloat16 rounds a weight of 0.05 to multiples of 2.4e-4, float16
to 3e-5, so smaller changes are rounded away."""

LEAST_FLOAT16 = 2.0**-24
"""The least number of float16 above 0; half of it is rounded to 0."""

FLOAT32 = "autocast computes in bfloat16 while the parameters keep float32"
"""The advice for parameters of 16 bits."""


@dataclass(frozen=True, slots=True)
class IdleSchedule:
    """A learning rate that is 0, or never its peak: the number that makes it so, why, and what to do."""

    cause: Literal["rate", "warmup", "end"]
    message: str
    advice: str


def learning_rates_change_parameters(context: Context) -> Iterator[Finding]:
    """HF716: the learning rate of a role that is trained is above 0, and its warmup ends before its schedule."""
    for role, learning, update, placed in _trained(context.program):
        if idle := idle_schedule(role, learning, updates=None):
            yield Finding("HF716", idle.message, placed, (update,), notes=(idle.advice,))


def steps_are_not_rounded_away(context: Context) -> Iterator[Finding]:
    """HF719: parameters that learn have a dtype in which a step of the learning rate is a number, and changes them."""
    for role, learning, update, placed in _trained(context.program):
        if loses_steps(learning):
            yield Finding("HF719", lost_steps(role, learning), placed, (update,), notes=(FLOAT32,))


def idle_schedule(role: str, learning: Learning, updates: int | None) -> IdleSchedule | None:
    """The mistake in the learning rate of a run with ``updates`` updates; ``updates`` is None if unknown."""
    warmup, end = learning.warmup, learning.end
    if not learning.rate:
        problem = f"the learning rate of '{role}' is 0: its updates change no parameter"
        return IdleSchedule("rate", problem, "set a rate above 0, or use a reference for a model that does not learn")
    if end is not None and warmup >= end:
        problem = f"'{role}' warms up over {warmup} updates, but its schedule ends at update {end}"
        return IdleSchedule("warmup", problem, f"warm up over fewer than {end} updates")
    if updates is None:
        return None
    if warmup >= updates:
        problem = f"'{role}' warms up over {warmup} updates, but the run has {updates}: it never reaches its peak rate"
        return IdleSchedule("warmup", problem, f"warm up over fewer than {updates} updates, or run more steps")
    if end is not None and end < updates and not learning.least_rate:
        problem = f"the learning rate of '{role}' is 0 from update {end} on, and the run has {updates}"
        return IdleSchedule("end", problem, f"let the schedule end at update {updates}")
    return None


def loses_steps(learning: Learning) -> bool:
    """Whether most steps of the learning rate are rounded away, or are no numbers."""
    return learning.rate > 0 and (
        _divides_by_zero(learning) or (learning.dtype in ("bfloat16", "float16") and learning.rate < LOST_BELOW)
    )


def _divides_by_zero(learning: Learning) -> bool:
    """Whether AdamW, which keeps its averages in the dtype of the parameters, may divide by 0.

    The least number of float16 is 6e-8, so the square of a gradient of 1e-4 is 0 there, as is an epsilon of 1e-8.
    """
    return learning.dtype == "float16" and learning.epsilon is not None and learning.epsilon < LEAST_FLOAT16 / 2


def lost_steps(role: str, learning: Learning) -> str:
    """The message of the finding on such a role."""
    if _divides_by_zero(learning):
        return (
            f"'{role}' learns parameters in float16: squares of small gradients and an epsilon of {learning.epsilon:g} "
            "are 0 there, so its updates become NaN"
        )
    rate = f"{learning.rate:g}"
    return f"'{role}' learns parameters in {learning.dtype} at a rate of {rate}: rounding discards most of its updates"


def _trained(program: Program) -> Iterator[tuple[str, Learning, Label, Label]]:
    """The roles that the dataflow trains and that state how they learn, with the first update and their place."""
    first = {node.role: node for node in reversed(training_calls(program))}
    for role, update in first.items():
        place = program.placement(update)
        learning = role_facts.learning.of(place)
        if place is not None and learning is not None:
            yield role, learning, Label(update.span, "trains it"), Label(place.span, "configured here")
