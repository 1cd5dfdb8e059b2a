"""Models in shards, which need a process for every rank."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import TrainingConfig


def shards_have_processes(subject: Subject) -> Iterator[Finding]:
    """FSDP runs on a backend that has a process for every rank."""
    if subject.config.backend != "local":
        return
    for role, _ in _trainings(subject):
        if _is_sharded(subject, role):
            yield subject.finding(
                "HF715",
                f"'{role}' shards its model over dp = {subject.mesh(role).dp}, which needs a process for every rank; "
                'backend = "local" simulates all ranks in one',
                f"{role}.training.sharding",
                related={"backend": 'backend = "local"'},
                changes=(SetField(f"{role}.training.sharding", "none"), SetField("backend", "ray")),
                advice=f'set backend to "ray", or {role}.training.sharding to "none"',
            )


def _trainings(subject: Subject) -> Iterator[tuple[str, TrainingConfig]]:
    """The roles that train, with their training configurations."""
    for field, training in subject.parts(TrainingConfig):
        role = subject.role_of(field)
        if role is not None:
            yield role, training


def _is_sharded(subject: Subject, role: str) -> bool:
    """Whether each rank of a role holds a shard; with one rank of ``dp``, FSDP does not shard the model."""
    training = dict(_trainings(subject)).get(role)
    return training is not None and training.sharding == "fsdp" and subject.mesh(role).dp > 1
