"""LoRA adapters against their models, as far as a ``config.json`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.check.rules.placement.call_obstacles import failing_calls
from hfdsl.rl.training.preflight.dataflows import ready_copies
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.values import FieldReference
from hfdsl.rl.workers.config import ModelConfig


def adapters_reach_samplers(subject: Subject) -> Iterator[Finding]:
    """A sampler loads what its actor sends by ``hf.sync``: an adapter or all weights."""
    pairs = (pair for graph in subject.graphs.values() for pair in ready_copies(subject, graph))
    for actor, sampler in dict.fromkeys(pairs):
        actor_config, sampler_config = getattr(subject.config, actor), getattr(subject.config, sampler)
        lora = actor_config.lora
        sent_adapter = lora if lora is not None and lora.exports == "adapter" else None
        if sent_adapter is None and sampler_config.lora is not None:
            merged = "all weights, with the adapter merged" if lora is not None else "all weights"
            send_adapter = (SetField(f"{actor}.lora.exports", "adapter"),) if lora is not None else ()
            yield subject.finding(
                "HF963",
                f"'{sampler}' loads an adapter alone, and '{actor}' sends {merged}",
                f"{sampler}.lora",
                related={f"{actor}.lora" if lora is not None else actor: "what is sent"},
                changes=(SetField(f"{sampler}.lora", "none"), *send_adapter),
                advice=f"leave out {sampler}.lora",
            )
        elif sent_adapter is not None and sampler_config.lora != sent_adapter:
            problem = "has no lora" if sampler_config.lora is None else "has a different one"
            yield subject.finding(
                "HF963",
                f"'{actor}' sends its adapter alone, and '{sampler}' {problem}",
                f"{sampler}.lora" if sampler_config.lora is not None else sampler,
                related={f"{actor}.lora": 'exports = "adapter"'},
                changes=(
                    SetField(f"{sampler}.lora", FieldReference(f"${actor}.lora")),
                    SetField(f"{actor}.lora.exports", "merged"),
                ),
                advice=f'set {sampler}.lora to "${actor}.lora"',
            )
        elif sent_adapter is not None and _base(actor_config.model) != _base(sampler_config.model):
            yield subject.finding(
                "HF963",
                f"'{actor}' sends its adapter alone, and '{sampler}' adds it to a different model than '{actor}' does",
                f"{sampler}.model",
                related={f"{actor}.model": "the model that the adapter learns for"},
                changes=(SetField(f"{sampler}.model", FieldReference(f"${actor}.model")),),
                advice=f'set {sampler}.model to "${actor}.model"',
            )


def _base(model: ModelConfig) -> tuple[object, ...]:
    """The settings that determine the initial weights of a role's model."""
    return model.path, model.config, None if model.path is not None else model.seed


def base_policies_have_adapters(subject: Subject) -> Iterator[Finding]:
    """An actor that is its own reference has an adapter to leave out."""
    for call, message in (failing for program in subject.programs.values() for failing in failing_calls(program)):
        if subject.has(f"{call.role}.lora"):
            yield subject.finding("HF812", message, call.role)
