"""Obstacles to the construction of roles, as the check of a dataflow finds them, at the keys that cause them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hfdsl.check.findings import Finding
from hfdsl.check.rules.placement.obstacles import message, obstructed
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.values import FieldReference

REFERENCES: Final[Mapping[str, tuple[object, ...]]] = {"tokenizer": (FieldReference("$data.tokenizer"),)}
"""The values of settings that a run has elsewhere."""


def roles_can_be_constructed(subject: Subject) -> Iterator[Finding]:
    """No role states an obstacle to its construction."""
    for role, _, obstacle in obstructed(subject.deployment):
        field = _field(subject, role, obstacle.setting)
        if subject.has(field):
            values = REFERENCES.get(obstacle.setting, obstacle.values)
            yield subject.finding(
                obstacle.code,
                message(role, obstacle),
                field,
                related={_field(subject, role, setting): text for setting, text in obstacle.conflicts},
                changes=[SetField(field, value) for value in values],
                advice=obstacle.help,
            )


def _field(subject: Subject, role: str, setting: str) -> str:
    """The field of a setting of a role, or of its mesh."""
    if setting == "mesh":
        return f"deployment.{f'roles.{role}' if role in subject.config.deployment.roles else 'default'}.mesh"
    return f"{role}.{setting}" if setting else role
