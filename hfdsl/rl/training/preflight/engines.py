"""Engines and samplers: the actor's model, room on their GPUs, and rows to sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from hfdsl.check.findings import Finding
from hfdsl.check.gpu_sizes import gpu_sizes
from hfdsl.check.rules.placement.caches import small_caches
from hfdsl.check.rules.weights.copied_models import other_model
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.pools import slot_ranges
from hfdsl.protocols import role_facts
from hfdsl.rl.batches import P, R
from hfdsl.rl.engines.versions import installed_version, untried
from hfdsl.rl.training.engine_choice import case_for_vllm, is_usable
from hfdsl.rl.training.preflight.dataflows import ready_copies, size_of
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import READY_ROLES, generating, is_ready_made
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.training.toml.values import FieldReference
from hfdsl.rl.workers.config import ActorConfig, SamplerConfig
from hfdsl.rl.workers.copied_settings import copied_settings
from hfdsl.rl.workers.gpu_memory import BLOCK_TOKENS, ENGINE_PROCESS, engine_bytes

GIB: Final = 2**30

INSTALL: Final = "it is not installed; pip install 'hfdsl[vllm]'"

HELD: Final = ("weights", "master weights", "moments")
"""The parts that a role certainly keeps while an engine samples; gradients are freed for it."""

AUTO_ENGINE: Final = 'engine = "auto" took vLLM, and "builtin" does not'

NO_ROOM: Final = "no cache fits: offload the other roles, use more GPUs, or give the engine a pool of its own"


def samplers_have_the_model(subject: Subject) -> Iterator[Finding]:
    """A copy of an actor's weights has the actor's architecture and its end tokens."""
    pairs = (pair for graph in subject.graphs.values() for pair in ready_copies(subject, graph))
    for actor, sampler in dict.fromkeys(pairs):
        learned, sampled = (copied_settings(getattr(subject.config, role)) for role in (actor, sampler))
        message = other_model(actor, sampler, learned, sampled)
        if message is not None:
            yield subject.finding(
                "HF960",
                message,
                f"{sampler}.model",
                related={f"{actor}.model": "the model that learns"},
                changes=(SetField(f"{sampler}.model", FieldReference(f"${actor}.model")),),
                advice=f'set {sampler}.model to "${actor}.model"',
            )


def caches_hold_a_row(subject: Subject) -> Iterator[Finding]:
    """The cache of an engine has room for a prompt and its response."""
    for table, program in subject.programs.items():
        fields = {dim: size_of(subject, table, dim.__name__) for dim in (P, R)}
        for small in small_caches(program, {dim: size for dim, (_, size) in fields.items() if size is not None}):
            field, (prompt_field, prompt) = f"{small.role}.generation.cache_tokens", fields[P]
            if subject.has(field):
                yield subject.finding(
                    "HF952",
                    small.message,
                    field,
                    related={prompt_field: f"P = {prompt}"},
                    notes=(f"set {field} to {small.longest} times the rows that are to be sampled at once",),
                )


def engines_fit_gpus(subject: Subject) -> Iterator[Finding]:
    """The GPUs of an engine have room for its weights and its cache beside the parts that roles keep there.

    Only parts with exact bytes count, so a cache that passes may still be too large.
    """
    places = subject.deployment.placements
    used = {role for graph in subject.graphs.values() for role in generating(graph)}
    for role in sorted(used & places.keys()):
        config, place = getattr(subject.config, role, None), places[role]
        if not isinstance(config, (ActorConfig, SamplerConfig)) or config.generation.engine != "vllm":
            continue
        size, engine = _gpu_size(subject, place), engine_bytes(place.mesh, config)
        if size is None or not engine or not is_ready_made(subject.loaded.roles[role]):
            continue
        sharing = [name for name, placement in places.items() if placement.pool == place.pool]
        resident = {name: _resident_bytes(places[name], samples=name == role) for name in sharing}
        weights, cache = engine["engine's weights"], engine["engine's cache"]
        room = size - weights - sum(resident.values())
        if cache <= room or sum(resident.values()) > size:  # without the engine, HF504 reports that
            continue
        tokens = config.generation.cache_tokens + BLOCK_TOKENS
        smaller = (int(room * tokens // cache) - BLOCK_TOKENS) // 1024 * 1024
        fits = smaller >= subject.config.dims.get("P", 0) + config.generation.max_tokens
        role_amounts = ", ".join(f"{_gib(amount)} of '{name}'" for name, amount in resident.items() if amount)
        beside = f", beside weights and optimizer states ({role_amounts})" if role_amounts else ""
        field = f"{role}.generation.cache_tokens"
        yield subject.finding(
            "HF959",
            f"the engine of '{role}' needs {_gib(weights)} for its weights and {_gib(cache)} for its cache{beside}, "
            f"and a GPU of pool '{place.pool.name}' has {_gib(size)}",
            field,
            notes=(AUTO_ENGINE,) if role in subject.loaded.auto_engines else (),
            changes=(SetField(field, smaller),) if fits else (),
            advice=f"at most {smaller:,} tokens fit" if fits else NO_ROOM,
        )


def engines_have_rows(subject: Subject) -> Iterator[Finding]:
    """An engine that starts with an actor samples in some dataflow of the run."""
    graphs = subject.graphs.values()
    used = {role for graph in graphs for role in generating(graph)}
    samplers = {actor: sampler for graph in graphs for actor, sampler in ready_copies(subject, graph)}
    for role in sorted(subject.deployment.placements.keys() - used):
        config = getattr(subject.config, role, None)
        if not isinstance(config, ActorConfig) or config.generation.engine != "vllm":
            continue
        if not subject.loaded.roles[role].__module__.startswith(READY_ROLES):
            continue  # its own methods may generate
        instead = f": '{samplers[role]}' generates" if role in samplers else ""
        shared = f", in a table that '{samplers[role]}' does not refer to" if role in samplers else ""
        yield subject.finding(
            "HF965",
            f"'{role}' starts an engine on each of its ranks, and no dataflow of the run samples with it{instead}",
            f"{role}.generation.engine",
            related={f"{samplers[role]}.generation": "samples instead"} if role in samplers else None,
            notes=(
                f"vLLM takes a minute to start, and while asleep keeps about {_gib(ENGINE_PROCESS)} of its GPU",
                f'set {role}.generation.engine to "auto"{shared}',
            ),
        )


def engines_suit_models(subject: Subject) -> Iterator[Finding]:
    """A role samples with vLLM where that was faster, unless ``"auto"`` was not what chose another engine."""
    loaded, places = subject.loaded, subject.deployment.placements
    used = {role for graph in subject.graphs.values() for role in generating(graph)}
    for role in sorted(used & places.keys()):
        config = getattr(subject.config, role, None)
        if not isinstance(config, (ActorConfig, SamplerConfig)) or not is_ready_made(loaded.roles[role]):
            continue
        is_missed = role in loaded.auto_engines and not is_usable() and config.generation.engine == "builtin"
        case = case_for_vllm(loaded, role) if is_missed or config.generation.engine == "captured" else None
        if case is None:
            continue
        field, install = f"{role}.generation.engine", untried(installed_version() or "") or INSTALL
        yield subject.finding(
            "HF966",
            f"'{role}' samples without vLLM, which was {case.vllm / case.captured:.1f} times as fast in the nearest "
            "measured case",
            field,
            notes=(
                str(case),
                *((f'engine = "auto" would take vLLM: {install}',) if is_missed else ()),
                '"builtin" keeps the engine whose log-probs are the trainer\'s',
            ),
            changes=(SetField(field, "vllm"),),
            advice="" if is_missed else f'set {field} to "vllm"',
        )


def _gpu_size(subject: Subject, place: Placement[Any]) -> Fraction | None:
    """The bytes of the largest GPU that every rank of a role may get; None without a description of the cluster."""
    if not place.pool.use_gpu:
        return None
    sizes = [gpu_sizes(subject.cluster, root, slots)[1] for root, slots in slot_ranges(place.pool)]
    return max((size * GIB for size in sizes if size is not None), default=None)


def _resident_bytes(place: Placement[Any], *, samples: bool) -> int:
    """The bytes that a role certainly keeps while an engine samples; for its own engine, its weights are there."""
    parts: Mapping[str, int] = role_facts.gpu_bytes.of(place).get("", {})
    offloaded = place.offload or (place.offload is None and place.gpu_memory is not None)
    names = HELD if not offloaded else HELD[:1] if samples else ()
    return sum(parts.get(name, 0) for name in names)


def _gib(size: int | Fraction) -> str:
    return f"{float(size) / GIB:.1f} GiB"
