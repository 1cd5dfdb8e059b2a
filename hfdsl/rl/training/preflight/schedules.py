"""Learning: schedules against the updates of the run, and dtypes in which small steps are lost."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.schedules import updates_in_step
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import ModelConfig, OptimizerConfig, TrainingConfig
from hfdsl.rl.workers.lora import Lora

LOST_BELOW = 1e-4
"""AdamW changes a weight by about the learning rate. bfloat16 rounds a weight of 0.05 to multiples of 2.4e-4, float16
to 3e-5, so smaller changes are rounded away."""


def schedules_fit_the_run(subject: Subject) -> Iterator[Finding]:
    """The learning rate is above 0, reaches its peak, and does not end at 0 long before the run."""
    for field, optimizer in subject.parts(OptimizerConfig):
        role = subject.role_of(field)
        updates = None if role is None else _updates(subject, role)
        if role is not None and not optimizer.learning_rate:
            message = f"the learning rate of '{role}' is 0: its updates change no parameter"
            yield subject.finding("HF716", message, f"{field}.learning_rate")
            continue
        if updates is None:
            continue
        warmup, total = optimizer.warmup_steps, optimizer.total_steps
        falls = optimizer.schedule != "constant" and total is not None
        if falls and total is not None and warmup >= total:
            message = f"'{role}' warms up over {warmup} updates, and its schedule ends at update {total}"
        elif warmup >= updates:
            message = f"'{role}' warms up over {warmup} updates, and the run has {updates}: it never reaches its rate"
        else:
            if falls and total is not None and total < updates and not optimizer.min_lr_ratio:
                yield subject.finding(
                    "HF716",
                    f"the learning rate of '{role}' is 0 from update {total} on, and the run has {updates}",
                    f"{field}.total_steps",
                    related={"steps": f"{updates} updates"},
                    changes=(SetField(f"{field}.total_steps", updates),),
                )
            continue
        yield subject.finding("HF716", message, f"{field}.warmup_steps", related={"steps": f"{updates} updates"})


def _updates(subject: Subject, role: str) -> int | None:
    """The updates of a role in the run; None if they are unknown, or ``--set steps=`` shortens the run for a trial."""
    places, graphs = subject.loaded.places, subject.graphs
    if "update" in graphs and updates_in_step(graphs[""], role):
        return None  # one for each round
    if places is not None and places.change("steps"):
        return None
    return subject.config.steps * updates_in_step(graphs.get("update", graphs[""]), role) or None


def small_steps_count(subject: Subject) -> Iterator[Finding]:
    """Parameters that learn have a dtype in which a step of the learning rate changes them."""
    models, adapters = dict(subject.parts(ModelConfig)), dict(subject.parts(Lora))
    for field, training in subject.parts(TrainingConfig):
        role, rate = subject.role_of(field), training.optimizer.learning_rate
        config = field.rpartition(".")[0]
        place = f"{config}.model"
        model = None if f"{config}.lora" in adapters else models.get(place)  # an adapter learns in float32
        if role is None or model is None or training.master_weights:
            continue
        if model.dtype == "float32" or not 0 < rate < LOST_BELOW:
            continue
        yield subject.finding(
            "HF719",
            f"'{role}' learns parameters in {model.dtype} at a rate of {rate:g}: most of its steps are rounded away",
            f"{place}.dtype",
            related={f"{field}.optimizer.learning_rate": f"{rate:g}"},
            notes=("autocast computes in bfloat16 while the parameters keep float32",),
            changes=(SetField(f"{place}.dtype", "float32"),),
            advice="set dtype to float32",
        )
