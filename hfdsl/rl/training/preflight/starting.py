"""Refusals of a run as it starts: of batches that it cannot feed, steps it cannot take, states it cannot save."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.graph.program import RoleCall
from hfdsl.graph.stages import queues_of
from hfdsl.rl.training.feeds import other_batches, responses_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.typed import joined
from hfdsl.runtime.saving.loaded_states import unsaved_states


def batches_can_be_fed(subject: Subject) -> Iterator[Finding]:
    """The dataflows take batches that a run forms of its data; those of an update are the rows of rounds."""
    for table, graph in subject.graphs.items():
        if table != "update" and responses_of(graph) is None:
            yield subject.finding("HF901", other_batches(graph), joined(table, "algorithm"))


def steps_come_one_at_a_time(subject: Subject) -> Iterator[Finding]:
    """A dataflow with queues has no option that needs one step at a time."""
    config = subject.config
    for field, is_set in (("record", bool(config.record)), ("update", config.update is not None)):
        if is_set and queues_of(subject.graphs[""]):
            text = f"'{field}': a dataflow with queues has several steps in progress, but this needs one at a time"
            yield subject.finding("HF901", text, field, notes=("leave it out, or name an algorithm without queues",))


def weights_in_flight_have_no_retries(subject: Subject) -> Iterator[Finding]:
    """A run on Ray that sends weights in flight repeats no steps after a loss of processes."""
    config, graph = subject.config, subject.graphs[""]
    in_flight = [node.op.role for node in graph.nodes if isinstance(node.op, RoleCall) and node.op.during]
    if in_flight and queues_of(graph) and config.faults.on(config.backend) is not None:
        yield subject.finding(
            "HF765",
            f"'{graph.name}' sends weights in flight to '{in_flight[0]}': a run that repeats steps after a loss of "
            f"processes, with retries = {config.faults.retries}, cannot repeat when they arrived",
            "faults.retries",
            changes=(SetField("faults.retries", 0),),
            notes=("without retries a loss ends the run, and --resume continues from its last checkpoint",),
        )


def recorded_steps_are_taken(subject: Subject) -> Iterator[Finding]:
    """The steps to record are steps of the run; ``--set steps=`` may shorten it for a trial."""
    config, places = subject.config, subject.loaded.places
    if places is not None and places.change("steps"):
        return
    for i, step in enumerate(config.record):
        if step > config.steps:
            yield subject.finding(
                "HF722",
                f"step {step} is to be recorded, and the run ends after step {config.steps}",
                f"record[{i}]",
                related={"steps": f"{config.steps} steps"},
            )


def states_can_be_saved(subject: Subject) -> Iterator[Finding]:
    """Every role keeps the states that a run which continues from a checkpoint reads."""
    placements, reported = subject.deployment.placements, set[str]()
    placed = [graph for graph in subject.graphs.values() if graph.roles.keys() <= placements.keys()]  # others are HF507
    for role, message in unsaved_states(placed, subject.deployment):
        if role not in reported:
            reported.add(role)
            place = f"deployment.roles.{role}" if role in subject.config.deployment.roles else "deployment.default"
            yield subject.finding("HF908", message, f"roles.{role}" if role in subject.config.roles else place)
