"""LoRA adapters against the models that they are for, as far as a ``config.json`` tells."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.rl.training.changes import SetField
from hfdsl.rl.training.preflight.numbers import calls
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.workers.config import ActorConfig, ModelConfig
from hfdsl.rl.workers.linear_layers import linear_layers, targets_of
from hfdsl.rl.workers.lora import Lora, large_rank, matches, missing_target, nearest_target

OUTPUT = "lm_head"
"""The output layer, which an adapter may name; whether this model's can have one, is found when it is loaded."""


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
                        SetField(f"{field}.targets", [*targets_of(lora)[:i], near, *targets_of(lora)[i + 1 :]])
                        for near in [nearest_target(target, sorted({path.rpartition(".")[2] for path in layers}))]
                        if near is not None
                    ),
                )
        chosen = {
            path: sides
            for path, sides in layers.items()
            if lora.targets == "all-linear" or any(matches(path, target) for target in targets_of(lora))
        }
        path = min(chosen, key=lambda path: min(chosen[path]), default=None)
        if path is not None and lora.rank > min(chosen[path]):
            yield subject.finding(
                "HF962",
                large_rank(lora.rank, path, chosen[path]),
                f"{field}.rank",
                changes=(SetField(f"{field}.rank", min(chosen[path])),),
            )


def adapters_have_whole_models(subject: Subject) -> Iterator[Finding]:
    """A model with an adapter is not sliced."""
    for field, _ in subject.parts(Lora):
        role = subject.role_of(field)
        if role is not None and subject.mesh(role).tp > 1:
            yield subject.finding(
                "HF715",
                f"'{role}' has a LoRA adapter, and tp = {subject.mesh(role).tp} slices its model: the two do not go "
                "together",
                field,
                related={f"deployment.roles.{role}.mesh": f"tp = {subject.mesh(role).tp}"},
                notes=(f'{role}.training.sharding = "fsdp" shards a model with its adapter over dp',),
            )


def base_policies_have_adapters(subject: Subject) -> Iterator[Finding]:
    """An actor that is its own reference has an adapter to leave out."""
    for graph in subject.graphs.values():
        for op, node in calls(graph, "base_log_probs"):
            config = getattr(subject.config, op.role, None)
            if isinstance(config, ActorConfig) and config.lora is None:
                yield subject.finding(
                    "HF812",
                    f"'{node.label}' leaves out an adapter, and '{op.role}' has none: its whole model learns",
                    op.role,
                    notes=(f"set {op.role}.lora, or place a Reference",),
                )


def _adapted(subject: Subject) -> Iterator[tuple[str, ModelConfig, Lora]]:
    """The models with an adapter, and the adapter's field."""
    models = dict(subject.parts(ModelConfig))
    for field, lora in subject.parts(Lora):
        model = models.get(f"{field.rpartition('.')[0]}.model")
        if model is not None:
            yield field, model, lora
