"""Models in parts: features that need a process for every rank, or the whole model on each."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.findings import Finding
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import ActorConfig, GenerationConfig, ModelConfig, SamplerConfig, TrainingConfig
from hfdsl.rl.workers.slicing import group_problem, model_config, parts_problem, sliced
from hfdsl.types.numbers import divisors


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


def compiled_models_are_whole(subject: Subject) -> Iterator[Finding]:
    """A model is either compiled or sliced."""
    for field, model in subject.parts(ModelConfig):
        role = subject.role_of(field)
        if role is None or not model.compile:
            continue
        tp = subject.mesh(role).tp
        if tp > 1:
            yield subject.finding(
                "HF715",
                f"'{role}' compiles its model, and tp = {tp} slices it: the two cannot be combined",
                f"{field}.compile",
                related={_cause(subject, role): f"tp = {tp}"},
                changes=(SetField(f"{field}.compile", value=False),),
                advice=f"set {field}.compile to false",
            )


def engines_have_whole_models(subject: Subject) -> Iterator[Finding]:
    """A policy whose ranks hold parts of the model has an engine that samples from parts."""
    for field, generation in subject.parts(GenerationConfig):
        role, engine = subject.role_of(field), generation.engine
        if role is None or engine != "captured":
            continue
        tp = subject.mesh(role).tp
        if tp > 1 or _is_sharded(subject, role):
            cut = f"tp = {tp}" if tp > 1 else 'sharding = "fsdp"'
            yield subject.finding(
                "HF715",
                f"'{role}' generates with engine = \"{engine}\", which needs the whole model on every rank, "
                f"and {cut} gives a part to each",
                f"{field}.engine",
                related={_cause(subject, role): cut},
                changes=(SetField(f"{field}.engine", "plain"),),
                advice=f'set {field}.engine to "plain"',
            )


def engines_fit_their_ranks(subject: Subject) -> Iterator[Finding]:
    """The ranks that share an engine fit the mesh, and the model can be cut into as many parts."""
    for field, generation in subject.parts(GenerationConfig):
        role = subject.role_of(field)
        config = getattr(subject.config, role or "", None)
        if role is None or generation.engine != "vllm" or not isinstance(config, (ActorConfig, SamplerConfig)):
            continue
        mesh, engine_tp = subject.mesh(role), generation.engine_tp
        parts = engine_tp or mesh.gen_tp_size
        if mesh.tp > 1 and any(size % mesh.tp for size in sliced(config).values()):
            continue  # HF813
        problem = group_problem(mesh, engine_tp) or parts_problem(model_config(config.model), parts)
        if problem is not None:
            fitting = [size for size in divisors(mesh.dp) if parts_problem(model_config(config.model), size) is None]
            smaller = [size for size in fitting if mesh.tp == 1 and engine_tp is not None and size < engine_tp]
            yield subject.finding(
                "HF957",
                f"'{role}': {problem}",
                f"{field}.{'engine' if engine_tp is None else 'engine_tp'}",
                related={f"deployment.roles.{role}.mesh": f"tp = {mesh.tp}"} if mesh.tp > 1 else {},
                changes=tuple(SetField(f"{field}.engine_tp", size) for size in smaller[-1:]),
                advice=f"set {field}.engine_tp to {smaller[-1]}" if smaller else "",
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


def _cause(subject: Subject, role: str) -> str:
    """The field that divides the model of a role."""
    return f"deployment.roles.{role}.mesh" if subject.mesh(role).tp > 1 else f"{role}.training.sharding"
