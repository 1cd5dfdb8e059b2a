"""Models against the tokenizer and the sizes of a run, as far as JSON files tell."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.rl.training.changes import SetField
from hfdsl.rl.training.models import mismatches
from hfdsl.rl.training.preflight.folders import facts_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.workers.config import ModelConfig


def models_fit_tokens(subject: Subject) -> Iterator[Finding]:
    """A model has an embedding for every token, and room for a prompt with its response."""
    facts, config = facts_of(subject.config.data.tokenizer), subject.config
    roles: list[str] = []
    models: list[ModelConfig] = []
    for field, model in subject.parts(ModelConfig):
        role = subject.role_of(field)
        if role is not None and model not in models:  # "$actor.model" repeats a model, and not its mistakes
            roles.append(role)
            models.append(model)
    for mismatch in mismatches(config, roles, facts.tokens, facts.end):
        related = {mismatch.against: mismatch.because} if mismatch.against else None
        changes = () if mismatch.value is None else (SetField(mismatch.field, mismatch.value),)
        yield subject.finding(mismatch.code, mismatch.message, mismatch.field, related=related, changes=changes)
