"""Learning: schedules against the updates of the run, and dtypes in which small steps are lost."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.check.rules.learning.unusual import RATE, is_large, large_rate
from hfdsl.check.rules.learning.updates import FLOAT32, idle_schedule, loses_steps, lost_steps
from hfdsl.protocols import role_facts
from hfdsl.protocols.role_facts import Learning
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.schedules import updates_in_step
from hfdsl.rl.training.toml.changes import SetField

FIELDS = {"rate": "learning_rate", "warmup": "warmup_steps", "end": "total_steps"}
"""The field of the optimizer by the cause of an idle schedule."""


def schedules_fit_the_run(subject: Subject) -> Iterator[Finding]:
    """The learning rate is above 0, reaches its peak, and does not end at 0 long before the run."""
    for role, learning in _learning(subject):
        updates = _updates(subject, role)
        idle = idle_schedule(role, learning, updates)
        if idle is None:
            continue
        field = f"{role}.training.optimizer.{FIELDS[idle.cause]}"
        yield subject.finding(
            "HF716",
            idle.message,
            field,
            related={"steps": f"{updates} updates"} if updates is not None and idle.cause != "rate" else {},
            changes=(SetField(field, updates),) if idle.cause == "end" else (),
            advice=idle.advice,
        )


def _updates(subject: Subject, role: str) -> int | None:
    """The updates of a role in the run; None if unknown, or ``--set steps=`` shortens the run for a trial."""
    places, graphs = subject.loaded.places, subject.graphs
    if "update" in graphs and updates_in_step(graphs[""], role):
        return None  # one for each round
    if places is not None and places.change("steps"):
        return None
    return subject.config.steps * updates_in_step(graphs.get("update", graphs[""]), role) or None


def small_steps_count(subject: Subject) -> Iterator[Finding]:
    """Parameters that learn have a dtype in which a step of the learning rate changes them."""
    for role, learning in _learning(subject):
        if loses_steps(learning):
            dtype = f"{role}.model.dtype"
            yield subject.finding(
                "HF719",
                lost_steps(role, learning),
                dtype,
                related={f"{role}.training.optimizer.learning_rate": f"{learning.rate:g}"},
                notes=(FLOAT32,),
                changes=(SetField(dtype, "float32"),),
                advice="set dtype to float32",
            )


def rates_suit_saved_weights(subject: Subject) -> Iterator[Finding]:
    """The learning rate of saved weights does not overwrite them."""
    for role, learning in _learning(subject):
        if is_large(learning):
            rate = f"{role}.training.optimizer.learning_rate"
            yield subject.finding("HF947", large_rate(role, learning), rate, notes=(RATE,))


def _learning(subject: Subject) -> Iterator[tuple[str, Learning]]:
    """The ready-made roles that learn, and how."""
    for role, place in subject.deployment.placements.items():
        learning = role_facts.learning.of(place)
        if learning is not None and subject.has(f"{role}.training.optimizer"):
            yield role, learning
