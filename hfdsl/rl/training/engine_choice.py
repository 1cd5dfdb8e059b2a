"""The engine for which ``engine = "auto"`` stands, decided once: when a configuration is read.

An actor of 1.26 billion parameters in bfloat16 that samples 512 rows of 1,024 tokens on 8 GPUs, 64 rows on each::

    vLLM is installed                        "vllm", since the nearest measured case is won by vLLM
    vLLM is not installed                    "builtin", and HF966 says what vLLM would gain
    the actor is on CPUs, or computes in float32, or its model is a mixture of experts     "builtin"
    a sampler takes weights in flight where the actor's engine would be "builtin"          "plain"

So what a run computes depends on the packages of the machine that reads its configuration, and on nothing that happens
later. The engine replaces ``"auto"`` in the configuration: every check and plan is about it, the folder of the run has
it, and a run that starts again in its folder keeps it, whatever is installed by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, Protocol, TypeAlias

import hfdsl as hf
from hfdsl.deploy.deployment import Placement
from hfdsl.errors import HfError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.infer import infer
from hfdsl.graph.program import Graph
from hfdsl.plan.sizes import row_count, rows_in
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.rl.engines.measured import MeasuredCase, nearest_case
from hfdsl.rl.engines.versions import installed_version, untried
from hfdsl.rl.training.preflight.requirements import is_installed
from hfdsl.rl.training.ready import calls, is_ready_made
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.workers.config import ActorConfig, SamplerConfig, computes, in_flight_obstacle
from hfdsl.rl.workers.engine_adapters import adapter_problem
from hfdsl.rl.workers.gpu_memory import parameter_count
from hfdsl.rl.workers.linear_layers import KNOWN
from hfdsl.rl.workers.sampler import InFlightSampler
from hfdsl.rl.workers.slicing import group_problem, model_config, parts_problem

AUTO: Final = "auto"

AutoEngine: TypeAlias = Literal["vllm", "builtin", "plain"]


class ConfiguredRun(Protocol):
    """The parts of a ``Loaded`` of ``hfdsl.rl.training.config`` that decide about an engine."""

    @property
    def config(self) -> RunConfig:
        """The configuration."""
        ...

    @property
    def algorithm(self) -> Dataflow[..., Any]:
        """The dataflow of the run."""
        ...

    @property
    def evaluation(self) -> Dataflow[..., Any] | None:
        """The dataflow of its evaluation."""
        ...

    @property
    def roles(self) -> Mapping[str, type[Worker]]:
        """The classes of the roles."""
        ...

    @property
    def auto_engines(self) -> tuple[str, ...]:
        """The roles whose ``"auto"`` has been replaced."""
        ...

    def deployment(self) -> hf.Deployment:
        """The deployment of all roles."""
        ...

    def sizes(self, changes: Mapping[str, int] | None = None) -> dict[type[hf.Dim], int]:
        """The sizes of the dims of the dataflows."""
        ...


def engines_of_auto(run: ConfiguredRun) -> Mapping[str, AutoEngine]:
    """The engine in place of each ``"auto"``, by ready-made role.

    A deployment that cannot be made decides nothing: the placement of the roles reports it.
    """
    policies = _policies(run).items()
    roles = [role for role, policy in policies if policy.generation.engine == AUTO and is_ready_made(run.roles[role])]
    has_vllm = bool(roles) and is_usable()
    try:
        return {role: _engine_of_auto(run, role, has_vllm=has_vllm) for role in roles}
    except HfError:
        return {}


def _engine_of_auto(run: ConfiguredRun, role: str, *, has_vllm: bool) -> AutoEngine:
    if has_vllm and case_for_vllm(run, role):
        return "vllm"
    return "plain" if _takes_in_flight(run, role) else "builtin"


def reasons(run: ConfiguredRun) -> Iterator[str]:
    """Why ``"auto"`` took vLLM, a line for each role."""
    for role, config in _policies(run).items():
        if role in run.auto_engines and config.generation.engine == "vllm":
            case = case_for_vllm(run, role)
            yield f"'{role}' samples with vLLM by engine = \"auto\"{f'; nearest measured: {case}' if case else ''}"


def is_usable() -> bool:
    """Whether a vLLM is installed with which hfdsl was tried; nothing is imported."""
    version = installed_version() if is_installed("vllm") else None
    return version is not None and untried(version) is None


def case_for_vllm(run: ConfiguredRun, role: str) -> MeasuredCase | None:
    """The measured case by which vLLM samples the rows of a ready-made role faster; None if none does, or vLLM refuses.

    Raises:
        HfError: as for ``Loaded.deployment`` and ``Loaded.sizes``.
    """
    config = _policies(run)[role]
    if computes(config) == "float32" or (count := parameter_count(config)) is None:
        return None  # the table is of 16 bits
    place = run.deployment().placements[role]
    if not place.pool.use_gpu or _is_refused(run, role, config, place):
        return None
    rows = _rows(run, role, place.mesh)
    case = nearest_case(count, rows, config.generation.max_tokens) if rows else None
    return case if case is not None and case.is_won_by_vllm else None


def _policies(run: ConfiguredRun) -> Mapping[str, ActorConfig | SamplerConfig]:
    configs = {role: getattr(run.config, role, None) for role in run.roles}
    return {role: config for role, config in configs.items() if isinstance(config, (ActorConfig, SamplerConfig))}


def _takes_in_flight(run: ConfiguredRun, role: str) -> bool:
    """Whether a role takes weights between tokens, which the engine "builtin" does not."""
    return issubclass(run.roles[role], InFlightSampler)


def _refuses_in_flight(config: ActorConfig | SamplerConfig) -> bool:
    """Whether vLLM would take no weights between tokens."""
    with_vllm = replace(config, generation=replace(config.generation, engine="vllm"))
    return isinstance(with_vllm, SamplerConfig) and in_flight_obstacle(with_vllm) is not None


def _is_refused(run: ConfiguredRun, role: str, config: ActorConfig | SamplerConfig, place: Placement[Any]) -> bool:
    """Whether vLLM would not sample for a role, or not what the trainer's model does."""
    generation, mesh, values = config.generation, place.mesh, model_config(config.model)
    longest = run.config.dims.get("P", 0) + generation.max_tokens
    return (
        values.get("model_type") not in KNOWN
        or (run.config.backend == "local" and mesh.world_size > 1)  # engines of several ranks would share a GPU
        or group_problem(mesh, generation.engine_tp) is not None
        or parts_problem(values, generation.engine_tp or mesh.gen_tp_size) is not None
        or generation.cache_tokens < longest
        or generation.top_p < 1  # its log-probs would be relative to the tokens that remain
        or generation.top_k > 0
        or (_takes_in_flight(run, role) and _refuses_in_flight(config))
        or (generation.adapter == "apart" and config.lora is not None and bool(adapter_problem(config.lora, values)))
    )


def _rows(run: ConfiguredRun, role: str, mesh: Mesh) -> int | None:
    """The most rows that each replica of a role generates in a call; None if the sizes do not determine them.

    Calls in the evaluation count where the run itself has none.
    """
    graph, sizes = run.algorithm.trace(), run.sizes()
    prompts = _prompts(graph, role)
    if not prompts and run.evaluation is not None and run.config.evaluation is not None:
        graph, sizes = run.evaluation.trace(), run.sizes(run.config.evaluation.dims)
        prompts = _prompts(graph, role)
    values = infer(graph).values if prompts else ()
    counts = [row_count(graph.nodes[node], rows_in(values[node]), sizes) for node in prompts]
    row_counts = [count for count in counts if count is not None]
    return max(max(row_counts) // (mesh.dp * mesh.micro_dp_size), 1) if row_counts else None


def _prompts(graph: Graph, role: str) -> list[int]:
    """The nodes of the prompts for which a role generates."""
    return [next(iter(node.refs)).node for op, node in calls(graph, "generate") if op.role == role]
