"""LoRA adapters against their models, as far as a ``config.json`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.check.rules.call_obstacles import failing_calls
from hfdsl.rl.training.preflight.dataflows import ready_copies
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.values import FieldReference
from hfdsl.rl.workers.config import ModelConfig, SamplerConfig
from hfdsl.rl.workers.engine_adapters import adapter_problem
from hfdsl.rl.workers.linear_layers import linear_layers, targets_of
from hfdsl.rl.workers.lora import Lora, large_rank, matches, missing_target, nearest_target
from hfdsl.rl.workers.slicing import model_config

OUTPUT = "lm_head"
"""The output layer, which an adapter may name; loading the model decides whether it can have one."""


def adapters_fit_models(subject: Subject) -> Iterator[Finding]:
    """The targets of an adapter are layers of the model, and its rank is at most a side of their weights."""
    for field, model, lora in _adapted(subject):
        layers = linear_layers(model)
        if layers is None:
            continue
        for i, target in enumerate(targets_of(lora)):
            if not any(matches(path, target) for path in (*layers, OUTPUT)):
                yield subject.finding(
                    "HF962",
                    missing_target(target, layers, f"the model of '{subject.role_of(field)}'"),
                    f"{field}.targets",
                    changes=tuple(
                        SetField(f"{field}.targets", [*targets_of(lora)[:i], nearest, *targets_of(lora)[i + 1 :]])
                        for nearest in [nearest_target(target, sorted({path.rpartition(".")[2] for path in layers}))]
                        if nearest is not None
                    ),
                )
        targeted = {
            path: sides
            for path, sides in layers.items()
            if lora.targets == "all-linear" or any(matches(path, target) for target in targets_of(lora))
        }
        path = min(targeted, key=lambda path: min(targeted[path]), default=None)
        if path is not None and lora.rank > min(targeted[path]):
            largest = SetField(f"{field}.rank", min(targeted[path]))
            yield subject.finding(
                "HF962",
                f"'{subject.role_of(field)}': {large_rank(lora.rank, path, targeted[path])}",
                f"{field}.rank",
                changes=(largest,),
                advice=str(largest),
            )


def adapters_have_whole_models(subject: Subject) -> Iterator[Finding]:
    """A model with an adapter is not sliced."""
    for field, _ in subject.parts(Lora):
        role = subject.role_of(field)
        config = getattr(subject.config, role or "", None)
        if isinstance(config, SamplerConfig) and config.generation.engine == "vllm":
            continue  # an engine slices its adapter with its weights
        if role is not None and subject.mesh(role).tp > 1:
            yield subject.finding(
                "HF715",
                f"'{role}' has a LoRA adapter, and tp = {subject.mesh(role).tp} slices its model: the two cannot be "
                "combined",
                field,
                related={f"deployment.roles.{role}.mesh": f"tp = {subject.mesh(role).tp}"},
                notes=(f'{role}.training.sharding = "fsdp" shards a model with its adapter over dp',),
            )


def adapters_fit_engines(subject: Subject) -> Iterator[Finding]:
    """An engine whose adapter is to be apart from its weights supports it."""
    for field, model, lora in _adapted(subject):
        role = field.rpartition(".")[0]
        generation = getattr(getattr(subject.config, role, None), "generation", None)
        if generation is None or generation.engine != "vllm" or generation.adapter != "apart":
            continue
        values = model_config(model)
        problem = adapter_problem(lora, values) if "model_type" in values else None
        if problem is not None:
            yield subject.finding(
                "HF963",
                f"'{role}' has adapter = 'apart', and {problem}",
                f"{role}.generation.adapter",
                related={field: "the adapter"},
                changes=(SetField(f"{role}.generation.adapter", "merged"),),
                advice=f'set {role}.generation.adapter to "merged"',
            )


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


def _adapted(subject: Subject) -> Iterator[tuple[str, ModelConfig, Lora]]:
    """The models with an adapter, and the adapter with its field."""
    models = dict(subject.parts(ModelConfig))
    for field, lora in subject.parts(Lora):
        model = models.get(f"{field.rpartition('.')[0]}.model")
        if model is not None:
            yield field, model, lora
