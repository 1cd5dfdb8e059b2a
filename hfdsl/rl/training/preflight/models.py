"""Models against the tokenizer and the sizes of a run, as far as JSON files tell."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.rl.hub import local_folder
from hfdsl.rl.training.preflight.folders import facts_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.preflight.tokenizers import mismatches
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.linear_layers import linear_layers
from hfdsl.rl.workers.slicing import model_config
from hfdsl.rl.workers.state_bytes import saved_shapes


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
        yield subject.finding(
            mismatch.code,
            mismatch.message,
            mismatch.field,
            related=mismatch.against,
            changes=() if mismatch.value is None else (SetField(mismatch.field, mismatch.value),),
        )


def weights_fit_configurations(subject: Subject) -> Iterator[Finding]:
    """The linear layers in a model's files have the shapes of its configuration."""
    checked: list[ModelConfig] = []  # "$actor.model" repeats a model, and not its mistakes
    for field, model in subject.parts(ModelConfig):
        role, layers = subject.role_of(field), linear_layers(model)
        if role is None or model.path is None or model in checked or layers is None:
            continue
        checked.append(model)
        if "quantization_config" in model_config(model):
            continue  # packed
        saved = saved_shapes(local_folder(model.path))
        for path, sides in layers.items():
            shape = saved.get(f"{path}.weight", list(sides))
            if shape != list(sides):
                yield subject.finding(
                    "HF964",
                    f"the files of the model of '{role}' have '{path}.weight' of shape {tuple(shape)}, but its "
                    f"configuration has {sides}",
                    f"{field}.path",
                    notes=(f"{field}.config changes the sizes that the files have",)
                    if model.config
                    else (f"'{model.path}' has the files of two models: save one of them again with save_pretrained",),
                )
                break
